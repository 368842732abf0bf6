"""A scripted inference engine over real sockets: it plays one script per request and writes down everything it is asked.

    async with FakeEngine() as engine:
        engine.play(text("hello"), status(429), text("bye").cut(events=4, ending="reset"))
        ... a gateway at engine.url ...
        first = await engine.request(0)

Without a queued script it echoes the last user text. Scripts are made in `scripts.py`; the refusals of strict mode stand in `strict.py`.
As a process of its own: `python -m tests.fakes.engine --port 9000 [--strict] [--seconds-per-token 0.02]`.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.fakes import other_wires, strict
from tests.fakes.answers import DIALECTS, VLLM, Dialect, Json
from tests.fakes.echo import echo
from tests.fakes.scripts import Reply, Script, Wait, empty, engine_error, status, writes_of

PATIENCE = 20.0


@dataclass(eq=False, slots=True)
class Received:
    """One request as it came in, and what became of it. `closed` is set when the peer leaves or the connection ends."""

    number: int
    connection: int
    reused: bool
    method: str
    path: str
    query: str
    raw_headers: tuple[tuple[str, str], ...]
    body: bytes
    arrived: float
    sent: bytearray = field(default_factory=bytearray)
    """The bytes of the response body, without chunk framing."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the script has been played to its end, whatever that was."""
    refused: str | None = None
    """Why strict mode answered 400."""

    @property
    def headers(self) -> dict[str, str]:
        """Header values by lower-case name; of a repeated header, the last."""
        return {name.lower(): value for name, value in self.raw_headers}

    @property
    def json(self) -> Json:
        """The parsed body; {} when it is no JSON object."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def input(self) -> list[Json]:
        """The input items of a Responses request."""
        given = self.json.get("input")
        return given if isinstance(given, list) else []


class FakeEngine:
    """The engine: `play` queues scripts for the next POSTs, `posts` are those that came."""

    def __init__(self, *, port: int = 0, strict: bool = False, dialect: Dialect = VLLM, seconds_per_token: float = 0.0) -> None:
        self.strict = strict
        self.dialect = dialect
        self.seconds_per_token = seconds_per_token
        self.default: Callable[[Received], Script] = lambda received: echo(received.json)
        """Answers when nothing is queued; replace it to answer by content, for instance with many requests at once."""
        self.models: Script | None = None
        """Answers GET /v1/models; None is a list with one model, `m`."""
        self.drops_when_reused = 0
        """So many requests that arrive on a connection used before are met with RST and no byte; they play no script."""
        self.known_fields: frozenset[str] = frozenset()
        """Top-level fields that strict mode takes besides its own."""
        self.posts: list[Received] = []
        self.gets: list[Received] = []
        self.dropped: list[Received] = []
        self.minted: set[str] = set()
        self.in_flight = 0
        """POST requests that are being answered now."""
        self.most_in_flight = 0
        self._port = port
        self._queue: deque[Script] = deque()
        self._news = asyncio.Event()
        self._connections = itertools.count()
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """The base URL without `/v1`."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        """Opens the port; after `stop` it opens the same one again, so a test can let the engine die and come back."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, limit=1 << 20)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port and every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def play(self, *scripts: Script) -> None:
        """The next POST requests play these scripts, one each, in the order of their arrival."""
        self._queue.extend(scripts)

    def forget(self) -> None:
        """Drops queued scripts and recorded requests; connections stay open."""
        self._queue.clear()
        self.posts.clear()
        self.gets.clear()
        self.dropped.clear()

    async def request(self, number: int) -> Received:
        """POST number `number`, counted from 0, as soon as it has arrived."""
        async with asyncio.timeout(PATIENCE):
            while len(self.posts) <= number:
                self._news.clear()
                await self._news.wait()
        return self.posts[number]

    def mint(self, prefix: str) -> str:
        """A new id of this engine, known to strict mode."""
        made = f"{prefix}_engine{next(self._ids):06d}"
        self.minted.add(made)
        return made

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = _Wire(reader, writer)
        try:
            await self._converse(wire, next(self._connections))
        except (ConnectionError, asyncio.CancelledError, _Over):
            pass
        finally:
            self._tasks.discard(task)
            await wire.shut()

    async def _converse(self, wire: "_Wire", connection: int) -> None:
        reused = False
        while (received := await wire.read_request(connection, reused)) is not None:
            reused = True
            wire.serving = received
            self._note(received)
            try:
                await self._answer(wire, received)
            finally:
                self.in_flight -= received.method == "POST"
                received.finished.set()
            wire.serving = None

    def _note(self, received: Received) -> None:
        kept = self._record_for(received)
        received.number = len(kept)
        kept.append(received)
        self.in_flight += received.method == "POST"
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._news.set()

    def _record_for(self, received: Received) -> list[Received]:
        if received.reused and self.drops_when_reused > 0:
            return self.dropped
        return self.posts if received.method == "POST" else self.gets

    async def _answer(self, wire: "_Wire", received: Received) -> None:
        if received in self.dropped:
            self.drops_when_reused -= 1
            await wire.end("reset")
        script = self._script_for(received)
        if script.head_wait is not None:
            await wire.wait(script.head_wait)
        if script.raw is not None:
            await self._write_body(wire, received, script, script.raw, chunked=False)
            await wire.end("close" if script.ending == "end" else script.ending)
        await self._play(wire, received, script)

    async def _play(self, wire: "_Wire", received: Received, script: Script) -> None:
        reply = self._reply(script, received)
        body = writes_of(script, reply.pieces)
        await wire.write_head(reply, dict(script.headers))
        await self._write_body(wire, received, script, body, reply.chunked)
        if script.ending != "end":
            await wire.end(script.ending)
        if reply.chunked:
            await wire.write(b"0\r\n\r\n")
        if script.close_after or (len(b"".join(body)) < len(b"".join(reply.pieces)) and not reply.chunked):
            await wire.end("close")

    def _script_for(self, received: Received) -> Script:
        if received.method == "GET":
            if received.path == "/v1/models":
                return self.models or status(200, other_wires.models())
            return empty(200) if received.path == "/health" else status(404)
        if self.strict and (reason := strict.refusal(received.path, received.body, self.minted, self.known_fields)) is not None:
            received.refused = reason
            return status(400, engine_error(400, reason))
        return self._queue.popleft() if self._queue else self.default(received)

    def _reply(self, script: Script, received: Received) -> Reply:
        if script.reply is not None:
            return script.reply
        assert script.answer is not None
        return other_wires.render(script.answer, received, script.dialect or self.dialect, self.mint, script.edit)

    async def _write_body(self, wire: "_Wire", received: Received, script: Script, body: tuple[bytes, ...], chunked: bool) -> None:
        pace = script.pace or self.seconds_per_token
        for number, piece in enumerate(body):
            if number in script.waits:
                await wire.wait(script.waits[number])
            if pace:
                await wire.wait(pace)
            await wire.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            received.sent += piece
        if len(body) in script.waits:
            await wire.wait(script.waits[len(body)])


class _Over(Exception):
    """The conversation on this connection has ended; nothing more is read or written."""


class _Wire:
    """One connection: bytes are read all the time, so that a peer that leaves is noticed at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving: Received | None = None
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._pump = asyncio.create_task(self._read_on())

    async def _read_on(self) -> None:
        try:
            while data := await self._reader.read(1 << 16):
                self._buffer += data
                self._news.set()
        except ConnectionError:
            pass
        finally:
            self._leave()

    def _leave(self) -> None:
        self._gone.set()
        self._news.set()
        if self.serving is not None and not self.serving.closed.is_set():
            self.serving.closed_at = asyncio.get_running_loop().time()
            self.serving.closed.set()

    async def read_request(self, connection: int, reused: bool) -> Received | None:
        """The next request, or None when the peer has left."""
        head = await self._take_line_block()
        if head is None:
            return None
        request_line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = request_line.split(" ", 2)
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line))
        known = {name.lower(): value for name, value in headers}
        if known.get("expect", "").lower() == "100-continue":
            await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await self._take_body(known)
        path, _, query = target.partition("?")
        now = asyncio.get_running_loop().time()
        return Received(0, connection, reused, method, path, query, headers, body, now)

    async def _take_line_block(self) -> bytes | None:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not await self._more():
                return None
        return self._take(end + 4)[:-4]

    async def _take_body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._take_exactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int((await self._take_line()).split(b";")[0], 16):
            body += (await self._take_exactly(size + 2))[:-2]
        await self._take_line()
        return body

    async def _take_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not await self._more():
                raise _Over
        return self._take(end + 2)[:-2]

    async def _take_exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not await self._more():
                raise _Over
        return self._take(count)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _more(self) -> bool:
        if self._gone.is_set():
            return False
        self._news.clear()
        await self._news.wait()
        return True

    async def wait(self, what: Wait) -> None:
        """Waits for the event or the seconds; a peer that leaves first ends the conversation."""
        waiting = asyncio.ensure_future(what.wait() if isinstance(what, asyncio.Event) else asyncio.sleep(what))
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            gone.cancel()
        if self._gone.is_set():
            raise _Over

    async def write_head(self, reply: Reply, headers: dict[str, str]) -> None:
        framing = {"Transfer-Encoding": "chunked"} if reply.chunked else {"Content-Length": str(sum(map(len, reply.pieces)))}
        fields = {**reply.headers, **framing, **headers}
        lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        await self.write("\r\n".join(lines).encode("latin-1"))

    async def write(self, data: bytes) -> None:
        if self._gone.is_set():
            raise _Over
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)

    async def end(self, ending: str) -> None:
        """Ends the connection: "close" sends FIN, "reset" sends RST, "hang" waits until the peer leaves."""
        if ending == "hang":
            await self._gone.wait()
        elif ending == "reset":
            self._reset()
        raise _Over

    def _reset(self) -> None:
        raw: socket.socket | None = self._writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def shut(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self._leave()
        self._writer.close()


async def serve(port: int, strict: bool, dialect: str, seconds_per_token: float) -> None:
    """Runs until it is cancelled; the ready line on stdout ends with the URL."""
    engine = FakeEngine(port=port, strict=strict, dialect=DIALECTS[dialect], seconds_per_token=seconds_per_token)
    async with engine:
        print(f"fake engine ready at {engine.url}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.engine")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default=VLLM.name)
    parser.add_argument("--seconds-per-token", type=float, default=0.0)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(given.port, given.strict, given.dialect, given.seconds_per_token))


if __name__ == "__main__":
    main()
