"""A database for turns that are run for real, and how much the property tests of the orchestrator try: no wall clock judges them."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings

from history_svc.migrations import migrate
from tests.orchestrator_svc.tool_turns import World, open_world
from tests.postgres import fresh_database, postgres_server

settings.register_profile("orchestrator", deadline=None, max_examples=60)
settings.load_profile("orchestrator")


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
