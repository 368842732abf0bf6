"""A history service whose answers each test writes, and the four ways to call it. It stores nothing."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from svckit.grpc_client import Caller, open_channel
from svckit.grpc_server import Services, open_server
from svckit.local_channel import LocalChannel
from svckit.settings import GrpcSettings
from turnkeep.history.v1 import history_pb2, history_pb2_grpc

LOCAL_WAYS = ("reference", "copying")
SOCKET_WAYS = ("unix", "tcp")
WAYS = LOCAL_WAYS + SOCKET_WAYS
PATIENCE = 10.0

Reply = history_pb2.GetResponseReply
Request = history_pb2.GetResponseRequest
Part = history_pb2.LoadContextReply
LoadRequest = history_pb2.LoadContextRequest


async def soon(wait: Awaitable[object]) -> None:
    """Waits for what must happen; a test fails when it does not."""
    await asyncio.wait_for(wait, PATIENCE)


def part(text: str | bytes) -> Part:
    """One message of a stream."""
    return Part(items=[history_pb2.ContextItem(prompt=text.encode() if isinstance(text, str) else text)])


def texts(parts: list[Part]) -> list[str]:
    """What the messages of a stream say."""
    return [one.items[0].prompt.decode() for one in parts]


class Words:
    """A value that a handler gives in place of a message: it has its fields."""

    def __init__(self, text: str) -> None:
        self.items = part(text).items

    def ByteSize(self) -> int:
        return len(self.items[0].prompt)


class ScriptedHistory(history_pb2_grpc.HistoryServiceServicer):
    """GetResponse answers with `unary`, LoadContext with `stream`."""

    def __init__(self) -> None:
        self.unary: Callable[[Request, grpc.aio.ServicerContext], Awaitable[Reply]]
        self.stream: Callable[[LoadRequest, grpc.aio.ServicerContext], AsyncIterator[Part]]

    async def GetResponse(self, request: Request, context: grpc.aio.ServicerContext) -> Reply:
        return await self.unary(request, context)

    async def LoadContext(self, request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        async for one in self.stream(request, context):
            yield one


@dataclass
class Wired:
    """The scripted service at one end, a caller at the other."""

    way: str
    service: ScriptedHistory
    stub: history_pb2_grpc.HistoryServiceStub
    channel: grpc.aio.Channel
    caller: Caller
    stop: Callable[[], Awaitable[None]] = field(repr=False)

    async def get(self, request: Request | None = None, deadline: float = PATIENCE) -> Reply:
        return await self.caller.unary(self.stub.GetResponse, request or Request(owner="ada"), deadline)

    def load(self, deadline: float | None = PATIENCE):
        return self.caller.stream(self.stub.LoadContext, LoadRequest(owner="ada"), deadline)

    async def loaded(self) -> list[Part]:
        async with self.load() as parts:
            return [one async for one in parts]


@asynccontextmanager
async def wired(way: str, *, settings: GrpcSettings | None = None, grace: float = 0.0) -> AsyncIterator[Wired]:
    """The scripted service reached in one of WAYS; `grace` is how long its stop waits for calls that run."""
    settings = settings or GrpcSettings()
    service, services = ScriptedHistory(), Services(settings, log_fields=("owner",))
    services.add(history_pb2_grpc.add_HistoryServiceServicer_to_server, service, {Words: lambda words: Part(items=words.items)})
    async with AsyncExitStack() as client_side, AsyncExitStack() as server_side:
        if way in LOCAL_WAYS:
            local = LocalChannel(services, copying=way == "copying")
            channel: grpc.aio.Channel = local
            server_side.push_async_callback(local.stop, grace)
        else:
            directory = client_side.enter_context(tempfile.TemporaryDirectory(prefix="tk"))
            listen = f"unix:{Path(directory) / 's'}" if way == "unix" else "127.0.0.1:0"
            address = await server_side.enter_async_context(open_server(services, listen, settings, grace))
            channel = await client_side.enter_async_context(open_channel(address, settings))
        stub = history_pb2_grpc.HistoryServiceStub(channel)
        yield Wired(way, service, stub, channel, Caller(settings), server_side.aclose)
