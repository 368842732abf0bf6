"""A proxy between two peers that speak any protocol over TCP or a unix socket, with faults on order.

    async with FaultProxy("127.0.0.1:5432") as proxy:
        ... a client of proxy.address ...
        proxy.cut(REPLY, after=100)     # the next bytes of the server beyond 100 are lost, and the connection with them
        proxy.drop_now()

It carries bytes and understands none of them. Addresses are `host:port` or `unix:/path`, as gRPC writes them.
"""

import asyncio
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

Direction = Literal["request", "reply"]
REQUEST: Direction = "request"
"""From the client to the server."""
REPLY: Direction = "reply"
"""From the server to the client."""


class FaultProxy:
    """Listens at `address` and carries every connection to `target`. Faults hold until `heal`."""

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        self.address = listen
        self.target = target
        self.connections = 0
        self.carried: dict[Direction, int] = {REQUEST: 0, REPLY: 0}
        """Bytes that went through in each direction, since the start or the last `cut`."""
        self.cuts = 0
        self.was_cut = asyncio.Event()
        self._limits: dict[Direction, int | None] = {REQUEST: None, REPLY: None}
        self._gates: dict[Direction, asyncio.Event] = {REQUEST: _open_gate(), REPLY: _open_gate()}
        self._delay = 0.0
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The TCP port of the proxy."""
        return int(self.address.rpartition(":")[2])

    @property
    def open_connections(self) -> int:
        return len(self._pairs)

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._deafen()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, direction: Direction, after: int) -> None:
        """Lets `after` more bytes through in this direction, all connections counted together, then resets the connection; once."""
        self._limits[direction] = after
        self.carried[direction] = 0
        self.was_cut.clear()

    def delay(self, seconds: float) -> None:
        """Every piece of data, in both directions, waits that long."""
        self._delay = seconds

    def hold(self, direction: Direction) -> None:
        """No byte passes in this direction until `heal`; connections stay open, as behind a dead router."""
        self._gates[direction].clear()

    async def refuse(self) -> None:
        """New connections are refused (the port is closed); open ones go on."""
        await self._deafen()

    def drop_now(self) -> None:
        """Resets every open connection."""
        for pair in list(self._pairs):
            pair.reset()

    async def heal(self) -> None:
        """Ends all faults; refused connections are taken again at the same address."""
        self._limits = {REQUEST: None, REPLY: None}
        self._delay = 0.0
        for gate in self._gates.values():
            gate.set()
        if self._server is None:
            await self._listen()

    async def _listen(self) -> None:
        if self.address.startswith("unix:"):
            path = Path(self.address.removeprefix("unix:"))
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._connected, path)
        else:
            host, _, port = self.address.rpartition(":")
            self._server = await asyncio.start_server(self._connected, host, int(port))
            self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def _deafen(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await _connect(self.target)
        pair = _Pair(writer, there_writer)
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(REQUEST, reader, there_writer, pair))
                group.create_task(self._pass_on(REPLY, there_reader, writer, pair))
        except* ConnectionError:
            pair.reset()
        finally:
            self._pairs.discard(pair)
            there_writer.close()

    async def _pass_on(self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter, pair: "_Pair") -> None:
        while data := await source.read(1 << 16):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._gates[direction].wait()
            allowed = self._allowed(direction, data)
            sink.write(allowed)
            await sink.drain()
            self.carried[direction] += len(allowed)
            if len(allowed) < len(data):
                self._limits[direction] = None
                self.cuts += 1
                self.was_cut.set()
                raise ConnectionResetError("cut")
        if sink.can_write_eof():
            sink.write_eof()

    def _allowed(self, direction: Direction, data: bytes) -> bytes:
        limit = self._limits[direction]
        return data if limit is None else data[: max(0, limit - self.carried[direction])]


class _Pair:
    """The two sockets of one carried connection."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers

    def reset(self) -> None:
        """Both sides see the connection die; over TCP as RST."""
        for writer in self._writers:
            raw: socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and raw.family != socket.AF_UNIX and not writer.transport.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))
