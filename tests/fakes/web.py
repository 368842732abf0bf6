"""A web server that answers what a test has set for each path, over real sockets, and writes down who asked for what.

async with FakeWeb() as web:
    web.answers["/page"] = html("<p>hello</p>")
    ... something that fetches f"{web.url}/page" ...
    assert [request.target for request in web.requests] == ["/page"]
"""

import asyncio
import contextlib
import json
import ssl
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. After the body: `complete`, `hang` (more is promised and never comes) or `cut` (the connection drops instead)."""

    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    ending: str = "complete"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        """The query parameters; of a repeated one, the last."""
        return {key: values[-1] for key, values in parse_qs(urlsplit(self.target).query, keep_blank_values=True).items()}

    @property
    def json(self) -> object:
        return json.loads(self.body)


@dataclass
class FakeWeb:
    """Listens on loopback. `answers` is looked up by path; one without an answer is 404. `hung` is set when a client gave up waiting."""

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    fixed_port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[Asked] = field(default_factory=list)
    connections: int = 0
    hung: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._connected, self.host, self.fixed_port, ssl=self.tls)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
            while await self._answered(reader, writer):
                pass
        writer.close()
        self._tasks.discard(task)

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; whether another may follow."""
        asked = await _read(reader)
        self.requests.append(asked)
        answer = self.answers.get(urlsplit(asked.target).path, Answer(404))
        missing = 0 if answer.ending == "complete" else 1000
        writer.write(_head(answer, len(answer.body) + missing) + answer.body)
        await writer.drain()
        if answer.ending == "hang":
            await reader.read()
            self.hung.set()
        return answer.ending == "complete"


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def _head(answer: Answer, length: int) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} Scripted", f"Content-Length: {length}", *(f"{name}: {value}" for name, value in answer.headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def html(text: str, **rest: object) -> Answer:
    """A page in UTF-8."""
    return Answer(headers=(("Content-Type", "text/html; charset=utf-8"),), body=text.encode(), **rest)  # type: ignore[arg-type]


def as_json(value: object, status: int = 200) -> Answer:
    """A JSON document."""
    return Answer(status, (("Content-Type", "application/json"),), json.dumps(value).encode())


def redirect(to: str, status: int = 302) -> Answer:
    """An answer that sends the client elsewhere."""
    return Answer(status, (("Location", to),))
