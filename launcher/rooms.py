"""The three rooms in one process: their settings, and any set of them opened in order with local channels between them.

What a room does is its own business; which rooms a process has is the caller's.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from history_svc.app import open_history
from history_svc.settings import Settings as HistorySettings
from http_edge.app import open_edge
from http_edge.settings import Settings as EdgeSettings
from orchestrator_svc.app import Orchestrator, open_orchestrator
from orchestrator_svc.settings import Settings as OrchestratorSettings
from svckit.grpc_server import Services
from svckit.local_channel import LocalChannel
from svckit.settings import Sections, check_sections, load
from svckit.telemetry import open_metrics_listener

ROOMS = ("history", "orchestrator", "edge")

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Source:
    """Where settings come from: a file, the environment, flags."""

    file: Path | None
    environ: Mapping[str, str]
    flags: Sections

    def load(self, kind: type[T]) -> T:
        """The sections of `kind`. Raises SettingsError."""
        return load(kind, file=self.file, environ=self.environ, flags=self.flags)


@dataclass(frozen=True, slots=True)
class RoomSettings:
    """The settings of all rooms."""

    history: HistorySettings
    orchestrator: OrchestratorSettings
    edge: EdgeSettings


@dataclass(frozen=True, slots=True)
class Opened:
    """What a process serves: addresses of rooms that listen, by name."""

    addresses: Mapping[str, str]


def load_settings(source: Source) -> RoomSettings:
    """The settings of all rooms. Raises SettingsError, also for a section that no room has."""
    kinds = (HistorySettings, OrchestratorSettings, EdgeSettings)
    if source.file is not None:
        check_sections(source.file, kinds)
    return RoomSettings(source.load(HistorySettings), source.load(OrchestratorSettings), source.load(EdgeSettings))


@asynccontextmanager
async def open_rooms(names: frozenset[str], settings: RoomSettings) -> AsyncIterator[Opened]:
    """Opens the named rooms, the edge last; leaving closes the edge first."""
    addresses: dict[str, str] = {}
    history = orchestrator = None
    endings: set[asyncio.Task[None]] = set()
    async with AsyncExitStack() as stack:
        if "edge" not in names:
            await _open_metrics(stack, names, settings)
        if "history" in names:
            opened = await stack.enter_async_context(open_history(settings.history))
            addresses["history"] = opened.address or "in this process"
            history = _local_channel(stack, opened.services, settings.history.history.drain_seconds)
        if "orchestrator" in names:
            running = await stack.enter_async_context(open_orchestrator(settings.orchestrator, history))
            addresses["orchestrator"] = running.address or "in this process"
            orchestrator = _local_channel(stack, running.services, settings.orchestrator.orchestrator.drain_seconds)
        if "edge" in names:
            edge = await stack.enter_async_context(open_edge(settings.edge, history, orchestrator))
            addresses["edge"] = edge.url
            if "orchestrator" in names:
                stack.callback(_start_draining, running, endings)
        yield Opened(addresses)


def _start_draining(running: Orchestrator, endings: set[asyncio.Task[None]]) -> None:
    """Turns are told to end while the edge still carries their last events; it would only see them cancelled otherwise."""
    endings.add(asyncio.create_task(running.drain()))


def _local_channel(stack: AsyncExitStack, services: Services, grace: float) -> LocalChannel:
    channel = LocalChannel(services)
    stack.push_async_callback(channel.stop, grace)
    return channel


async def _open_metrics(stack: AsyncExitStack, names: frozenset[str], settings: RoomSettings) -> None:
    """Metrics of rooms without an edge beside them, which would serve them."""
    listens = {
        "history": settings.history.history.metrics_listen,
        "orchestrator": settings.orchestrator.orchestrator.metrics_listen,
    }
    for name, address in listens.items():
        if name in names and address:
            await stack.enter_async_context(open_metrics_listener(address))
