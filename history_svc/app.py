"""The history service, put together: schema, pools, stores, servicer, sweep, listener. `async with open_history(settings)` runs it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from psycopg import OperationalError

from history_svc.migrations import migrate
from history_svc.servicer import MESSAGES, HistoryServicer
from history_svc.settings import HistorySettings, Settings
from history_svc.stores import open_stores
from history_svc.sweep import keep_sweeping
from svckit.grpc_server import Services, add_health, open_server
from svckit.lifecycle import Background
from svckit.logs import get_logger
from svckit.settings import SettingsError
from turnkeep.history.v1 import history_pb2
from turnkeep.history.v1.history_pb2_grpc import add_HistoryServiceServicer_to_server

SERVICE = history_pb2.DESCRIPTOR.services_by_name["HistoryService"].full_name
RETRY_SECONDS = 0.5

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class History:
    """A running history service; `address` is where its gRPC listens, None without a listener."""

    services: Services
    address: str | None


@asynccontextmanager
async def open_history(settings: Settings) -> AsyncIterator[History]:
    """Runs the service for the block. Raises SettingsError, MigrationChanged, and psycopg's errors while it migrates."""
    if not settings.history.database_url:
        raise SettingsError("settings", "history.database_url", "is not set")
    if settings.history.migrate_at_start:
        await _migrate(settings.history)
    async with open_stores(settings.history) as stores, Background(grace=0) as background:
        services = Services(settings.grpc, log_fields=("owner", "response_id", "conversation_id"))
        services.add(add_HistoryServiceServicer_to_server, HistoryServicer(stores, settings.history), MESSAGES)
        add_health(services, {SERVICE: stores.turns.is_alive})
        if settings.history.sweep_interval_seconds > 0:
            background.start(keep_sweeping(stores, settings.history.sweep_interval_seconds), "sweep")
        async with _listener(settings, services) as address:
            yield History(services, address)


@asynccontextmanager
async def _listener(settings: Settings, services: Services) -> AsyncIterator[str | None]:
    if not settings.history.listen:
        yield None
        return
    async with open_server(services, settings.history.listen, settings.grpc, settings.history.drain_seconds) as address:
        yield address


async def _migrate(settings: HistorySettings) -> None:
    """Migrates, waiting for a database that is not there yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.start_seconds
    said = ""
    while True:
        try:
            for name in await migrate(settings.listen_url or settings.database_url):
                log.info("migration applied", name=name)
            return
        except OperationalError as exc:
            if loop.time() >= deadline:
                raise
            if str(exc) != said:
                said = str(exc)
                log.warning("the database does not answer yet", error=said)
            await asyncio.sleep(RETRY_SECONDS)
