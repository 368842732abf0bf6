"""A database for turns that are run for real, and how much the property tests of the orchestrator try: no wall clock judges them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import uvloop
from hypothesis import settings

from history_svc.migrations import migrate
from tests.orchestrator_svc.tool_turns import World, open_world
from tests.postgres import fresh_database, postgres_server

settings.register_profile("orchestrator", deadline=None, max_examples=60)
settings.load_profile("orchestrator")


ON_BOTH_LOOPS = ("test_engine_http.py", "test_provider.py")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests of what talks to the event loop itself run on asyncio's own and on the one that processes have."""
    own: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    return own | {"uvloop": uvloop.new_event_loop} if item.path.name in ON_BOTH_LOOPS else own


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a Postgres server of this session's own."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def database(postgres: str) -> Iterator[str]:
    """The DSN of a database with the history's schema; the turns of all tests share it."""
    with fresh_database(postgres) as dsn:
        asyncio.run(migrate(dsn))
        yield dsn


@pytest.fixture
def queue_database(postgres: str) -> Iterator[str]:
    """The DSN of a database of the test's own: nobody else takes turns from its queue."""
    with fresh_database(postgres) as dsn:
        asyncio.run(migrate(dsn))
        yield dsn


@pytest.fixture
async def world(database: str) -> AsyncIterator[World]:
    """A desk with fake tools before a strict engine."""
    async with open_world(database) as opened:
        yield opened
