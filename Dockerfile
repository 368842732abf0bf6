# One image for every room: docker run turnkeep serve ROOM...
FROM python:3.11-slim

COPY . /src
RUN pip install --no-cache-dir /src \
    && rm -rf /src \
    && useradd --system --uid 10001 --create-home turnkeep

USER turnkeep
WORKDIR /home/turnkeep
ENTRYPOINT ["turnkeep"]
CMD ["--help"]
