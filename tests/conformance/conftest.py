"""A gateway of default settings, but for the name that Open Responses has for the events of raw reasoning."""

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.conformance.talk import Server, Talk
from tests.end_to_end.gateway import Gateway, Place, reserved_port
from tests.fakes.engine import FakeEngine
from tests.postgres import fresh_database, postgres_server

KEY = "sk-conformance"
SETTINGS = {"orchestrator": {"reasoning_events": "response.reasoning"}}


@pytest.fixture(scope="session")
def engine_port() -> Iterator[int]:
    """The port of every engine, one after another."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="session")
def gateway(engine_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """All rooms in one process, over a database of their own."""
    with (
        postgres_server(tmp_path_factory.mktemp("postgres")) as postgres,
        fresh_database(postgres) as dsn,
        Gateway(Place(dsn, f"http://127.0.0.1:{engine_port}/v1", {"ada": KEY}, SETTINGS)) as gateway,
    ):
        yield gateway


@pytest.fixture
async def engine(engine_port: int) -> AsyncIterator[FakeEngine]:
    """A strict engine that repeats what the user says, and calls the tool that the user speaks of."""
    async with FakeEngine(port=engine_port, strict=True) as engine:
        yield engine
        assert [received.refused for received in engine.posts if received.refused] == []


@pytest.fixture
async def server(gateway: Gateway, engine: FakeEngine) -> AsyncIterator[Server]:
    """What is tested."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=40)) as http:
        yield Server(http, gateway.url, KEY)


@pytest.fixture(params=["plain", "streamed", "by_socket"])
def talk(request: pytest.FixtureRequest, server: Server) -> Talk:
    """Each way to ask for a turn."""
    way: Talk = getattr(server, request.param)
    return way
