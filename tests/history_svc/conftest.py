"""A Postgres server for the session, a migrated database for each test, and the history service over it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import hypothesis
import msgspec
import pytest

from history_svc.app import open_history
from history_svc.migrations import migrate
from history_svc.settings import HistorySettings, Settings
from svckit.local_channel import LocalChannel
from tests.history_svc.turns import Client
from tests.postgres import create_database, fresh_database, postgres_server

Open = Callable[..., AbstractAsyncContextManager[Client]]

hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a Postgres server of this session's own."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def migrated(server: str) -> str:
    """The name of a database to copy: the schema and nothing else."""
    dsn = create_database(server, "migrated")
    asyncio.run(migrate(dsn))
    return "migrated"


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    """The DSN of a database without anything in it."""
    with fresh_database(server) as dsn:
        yield dsn


@pytest.fixture
def database(server: str, migrated: str) -> Iterator[str]:
    """The DSN of a database with the schema."""
    with fresh_database(server, migrated) as dsn:
        yield dsn


@pytest.fixture
def settings(database: str) -> HistorySettings:
    """Settings for the test's database: nothing listens, nothing sweeps by itself."""
    return HistorySettings(listen="", database_url=database, migrate_at_start=False, sweep_interval_seconds=0)


@pytest.fixture
def open_client(settings: HistorySettings) -> Open:
    """Opens the service with some settings changed, and a client of it in the same process."""

    @asynccontextmanager
    async def opened(**changes: object) -> AsyncIterator[Client]:
        async with open_history(Settings(history=msgspec.structs.replace(settings, **changes))) as history:
            channel = LocalChannel(history.services, copying=True)
            yield Client(channel)
            await channel.stop(1)

    return opened


@pytest.fixture(params=["local", "socket"])
async def client(request: pytest.FixtureRequest, settings: HistorySettings, open_client: Open, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of the service, once in the same process and once over a socket."""
    if request.param == "local":
        async with open_client() as local:
            yield local
        return
    listening = msgspec.structs.replace(settings, listen="127.0.0.1:0")
    limits = [("grpc.max_receive_message_length", 64 * 1024 * 1024), ("grpc.max_send_message_length", 64 * 1024 * 1024)]
    async with open_history(Settings(history=listening)) as history, grpc.aio.insecure_channel(history.address, limits) as channel:
        yield Client(channel)
