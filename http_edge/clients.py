"""The two services as the edge calls them: generated stubs over whatever channel leads there."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web
from grpc import aio
from grpc_health.v1.health_pb2_grpc import HealthStub

from http_edge.settings import Settings
from svckit.grpc_client import Caller, open_channel
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceStub
from turnkeep.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

if TYPE_CHECKING:
    from turnkeep.history.v1.history_pb2_grpc import HistoryServiceAsyncStub
    from turnkeep.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceAsyncStub


@dataclass(frozen=True, slots=True)
class Clients:
    """What the edge calls, and the one way of calling it."""

    caller: Caller
    history: "HistoryServiceAsyncStub"
    orchestrator: "OrchestratorServiceAsyncStub"
    history_health: HealthStub
    orchestrator_health: HealthStub


CLIENTS = web.AppKey("clients", Clients)


@asynccontextmanager
async def open_clients(settings: Settings, history: aio.Channel | None, orchestrator: aio.Channel | None) -> AsyncIterator[Clients]:
    """Opens a channel to each service that no channel is given for."""
    async with AsyncExitStack() as stack:
        if history is None:
            history = await stack.enter_async_context(open_channel(settings.edge.history, settings.grpc))
        if orchestrator is None:
            orchestrator = await stack.enter_async_context(open_channel(settings.edge.orchestrator, settings.grpc))
        yield Clients(
            caller=Caller(settings.grpc),
            history=HistoryServiceStub(history),
            orchestrator=OrchestratorServiceStub(orchestrator),
            history_health=HealthStub(history),
            orchestrator_health=HealthStub(orchestrator),
        )
