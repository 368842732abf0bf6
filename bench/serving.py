"""The least that serving HTTP takes: the framing of requests over kept connections, one at a time. What is answered, its subclasses say."""

import asyncio
import re
from abc import ABC, abstractmethod

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


async def serve(kind: type["Requests"]) -> None:
    """Serves on a free port, prints the URL, and goes on until the process is ended."""
    server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def json_answer(body: bytes) -> bytes:
    """A success."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def failure(status: bytes) -> bytes:
    """A refusal without a body; `status` is its number and phrase."""
    return b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status


class Requests(asyncio.Protocol, ABC):
    """One client's connection."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._expected = 0

    @abstractmethod
    def answer(self, request: bytes) -> None:
        """Writes the answer to a whole request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.WriteTransport)
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        """A part of a request has arrived."""
        self._received += data
        if not self._expected:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._received, 0, end)
            self._expected = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= self._expected:
            request, self._received = bytes(self._received[: self._expected]), self._received[self._expected :]
            self._expected = 0
            self.answer(request)
