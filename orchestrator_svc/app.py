"""The orchestrator as one thing that can be opened: its provider, its desk, and what it serves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex

import grpc

from orchestrator_svc.context.compaction import DEFAULT_PROMPT
from orchestrator_svc.context.sealing import Seals
from orchestrator_svc.conversations import Conversations
from orchestrator_svc.history import History
from orchestrator_svc.providers.registry import open_provider
from orchestrator_svc.request import CompactionRules
from orchestrator_svc.servicer import MESSAGES
from orchestrator_svc.servicer import Orchestrator as Servicer
from orchestrator_svc.settings import Settings
from orchestrator_svc.tools.registry import open_toolbox
from orchestrator_svc.turn.background import BackgroundTurns
from orchestrator_svc.turn.desk import Desk
from orchestrator_svc.turn.opening import Opening
from orchestrator_svc.turn_queue import TurnQueue
from svckit.grpc_client import Caller, open_channel
from svckit.grpc_server import Services, add_health, open_server
from svckit.logs import get_logger
from svckit.settings import SettingsError
from turnkeep.orchestrator.v1.orchestrator_pb2 import DESCRIPTOR
from turnkeep.orchestrator.v1.orchestrator_pb2_grpc import add_OrchestratorServiceServicer_to_server

SERVICE = DESCRIPTOR.services_by_name["OrchestratorService"].full_name
log = get_logger(__name__)

_LAST_CALLS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Orchestrator:
    """A running orchestrator. `address` is None when it listens nowhere."""

    services: Services
    address: str | None
    desk: Desk
    background: BackgroundTurns

    async def drain(self) -> None:
        """Ends its turns, before it is left."""
        await asyncio.gather(self.desk.drain(), self.background.drain())


@asynccontextmanager
async def open_orchestrator(settings: Settings, history: grpc.aio.Channel | None = None) -> AsyncIterator[Orchestrator]:
    """Opens the orchestrator; with no channel to the history service it connects to the address in the settings. Raises SettingsError."""
    if not settings.engine.url:
        raise SettingsError("settings", "engine.url", "an engine is needed")
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(open_provider(settings.engine, settings.orchestrator))
        channel = history if history is not None else await stack.enter_async_context(_history_channel(settings))
        caller = Caller(settings.grpc)
        store = History(channel, caller, settings.orchestrator)
        toolbox = await stack.enter_async_context(open_toolbox(settings))
        rules = _rules(settings)
        opening = Opening(store, toolbox.kinds, rules, settings.compaction.thresholds, provider.name, settings.orchestrator)
        desk = await stack.enter_async_context(Desk(provider, store, toolbox, opening, settings.orchestrator))
        queue = TurnQueue(channel, caller, settings.orchestrator)
        turns = BackgroundTurns(desk, opening, store, queue, settings.orchestrator)
        background = await stack.enter_async_context(turns)
        services = Services(settings.grpc, log_fields=("owner",))
        servicer = Servicer(desk, background, Conversations(store, rules.seals), provider)
        services.add(add_OrchestratorServiceServicer_to_server, servicer, MESSAGES)
        add_health(services, {SERVICE: provider.answers})
        address = None
        if settings.orchestrator.listen:
            server = open_server(services, settings.orchestrator.listen, settings.grpc, _LAST_CALLS_SECONDS)
            address = await stack.enter_async_context(server)
        running = Orchestrator(services, address, desk, background)
        stack.push_async_callback(running.drain)
        yield running


def _rules(settings: Settings) -> CompactionRules:
    secrets = settings.sealing.secrets
    if not secrets:
        log.warning("no secrets are set in [sealing]: what is sealed now is unreadable after the end of this process")
    compaction = settings.compaction
    return CompactionRules(
        seals=Seals(secrets or (token_hex(),)),
        threshold=compaction.threshold,
        keep_share=compaction.keep_share,
        growth=compaction.growth,
        context_window=settings.engine.context_window,
        prompt=compaction.prompt or DEFAULT_PROMPT,
        model=compaction.model,
    )


def _history_channel(settings: Settings) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    if not settings.orchestrator.history:
        raise SettingsError("settings", "orchestrator.history", "the address of the history service is needed")
    return open_channel(settings.orchestrator.history, settings.grpc)
