"""The load: requests over connections that stay open, and what their answers say. A client of our own, so that it costs little itself."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from bench.engine import STAMP, STAMP_DIGITS

PATH = "/v1/responses"
DEADLINE_SECONDS = 60.0
COMPLETED = b'"status":"completed"'

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class LoadError(Exception):
    """A request was not answered as it should have been."""


@dataclass(slots=True)
class Answer:
    """One answer: its bytes, seconds from the request to its last byte, microseconds that each stamped token was under way."""

    head: bytes = b""
    parts: list[bytes] = field(default_factory=list)
    seconds: float = 0.0
    delays: list[int] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """The body without its framing."""
        raw = b"".join(self.parts)
        return _unchunked(raw) if _CHUNKED.search(self.head) else raw

    def checked(self, expected: bytes) -> "Answer":
        """Itself, if it is a success with `expected` in it. Raises LoadError."""
        if not self.head.startswith(b"HTTP/1.1 200") or expected not in self.body:
            raise LoadError(f"{self.head[:200]!r} {self.body[-500:]!r}")
        return self

    @property
    def events(self) -> int:
        """How many stream events it has."""
        return self.body.count(b"event: response.")


def _unchunked(raw: bytes) -> bytes:
    parts: list[bytes] = []
    place = 0
    while True:
        end = raw.index(b"\r\n", place)
        size = int(raw[place:end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(raw[end + 2 : end + 2 + size])
        place = end + 2 + size + 2


class Connection(asyncio.Protocol):
    """A connection to one server; one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] | None = None
        self._answer = Answer()
        self._left: int | None = None
        self._tail = b""
        self._started = 0.0

    async def ask(self, request: bytes, expected: bytes = COMPLETED) -> Answer:
        """Sends a request and waits for its whole answer, which must have `expected` in it. Raises LoadError and TimeoutError."""
        self._answer, self._left, self._tail = Answer(), None, b""
        self._done = self._loop.create_future()
        self._started = time.perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._done
        return self._answer.checked(expected)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(LoadError(f"the connection was lost: {exc}"))

    def data_received(self, data: bytes) -> None:
        if not self._answer.head:
            data = self._head_taken(data)
        if STAMP in data:
            self._take_stamps(data, time.monotonic_ns() // 1000)
        self._answer.parts.append(data)
        if self._is_whole(data) and self._done is not None and not self._done.done():
            self._answer.seconds = time.perf_counter() - self._started
            self._done.set_result(None)

    def _head_taken(self, data: bytes) -> bytes:
        head, _, rest = data.partition(b"\r\n\r\n")
        self._answer.head = head
        length = _LENGTH.search(head)
        self._left = int(length[1]) if length else None
        return rest

    def _is_whole(self, data: bytes) -> bool:
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        return self._tail == _LAST_CHUNK

    def _take_stamps(self, data: bytes, now: int) -> None:
        place = data.find(STAMP)
        while place >= 0:
            digits = data[place + len(STAMP) : place + len(STAMP) + STAMP_DIGITS]
            if len(digits) == STAMP_DIGITS and int(digits):
                self._answer.delays.append(now - int(digits))
            place = data.find(STAMP, place + 1)

    def close(self) -> None:
        """Hangs up."""
        self._transport.close()


@asynccontextmanager
async def connected(url: str, count: int = 1) -> AsyncIterator[list[Connection]]:
    """So many connections to a server."""
    host, _, port = urlsplit(url).netloc.rpartition(":")
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, host, int(port)))[1] for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def request_of(body: dict[str, object], path: str = PATH) -> bytes:
    """A request, for one response unless another path is given."""
    data = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def asked(model: str, *, store: bool, stream: bool = True, **fields: object) -> bytes:
    """A request for a turn."""
    return request_of({"model": model, "stream": stream, "store": store, "input": "How many tokens are there?", **fields})


async def one_by_one(url: str, request: bytes, count: int) -> list[Answer]:
    """The same request again and again over one connection."""
    async with connected(url) as (connection,):
        return [await connection.ask(request) for _ in range(count)]


async def side_by_side(url: str, request: bytes, count: int, spread: float, meanwhile: Callable[[], object] = bool) -> list[Answer]:
    """The same request over many connections at once, begun evenly within `spread` seconds; `meanwhile` is called once while all run."""
    async with connected(url, count) as connections:
        tasks = []
        for connection in connections:
            tasks.append(asyncio.create_task(connection.ask(request)))
            await asyncio.sleep(spread / count)
        meanwhile()
        return await asyncio.gather(*tasks)
