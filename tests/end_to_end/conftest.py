"""What every black-box test stands on: a database, a strict engine at a fixed address, a gateway in both shapes, and clients of two owners.

Gateways live as long as the test process; engines and clients live as long as a test. A gateway that logs something unforeseen fails the
test that made it do so.
"""

from collections.abc import AsyncIterator, Iterator

import aiohttp
import psycopg
import pytest

from tests.end_to_end.client import Client
from tests.end_to_end.gateway import ONE_PROCESS, THREE_PROCESSES, UNFORESEEN, Gateway, Place, Sections, reserved_port, twin_of
from tests.fakes.engine import FakeEngine
from tests.fakes.secrets import marker
from tests.postgres import fresh_database, postgres_server

ENGINE_KEY = "TEST_ENGINE_KEY"
KEYS = {"ada": marker("key-of-ada"), "bob": marker("key-of-bob")}
SETTINGS: dict[str, dict[str, object]] = {
    "engine": {"api_key_env": ENGINE_KEY},
    "edge": {"keep_alive_seconds": 0.25, "client_timeout_seconds": 2.0},
    # a background turn brings its own gateway: looking for one would run into the statements that a test counts
    "orchestrator": {"first_event_grace_seconds": 1.5, "connect_timeout_seconds": 2.0, "background_turns": 0},
    "outbound": {"allow_hosts": ["127.0.0.1"]},
}


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a Postgres server of this session's own."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def database(postgres: str) -> Iterator[str]:
    """The DSN of the gateways' database, where a test may look for what HTTP does not show."""
    with fresh_database(postgres) as dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("create extension pg_stat_statements")
        yield dsn


@pytest.fixture(scope="session")
def engine_port() -> Iterator[int]:
    """The port of every engine of this session, one after another."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="session")
def search_port() -> Iterator[int]:
    """The port of every search service of this session."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="session")
def place(database: str, engine_port: int, search_port: int) -> Place:
    """The gateways' surroundings."""
    settings: Sections = {**SETTINGS, "web_search": {"backend": "searxng", "url": f"http://127.0.0.1:{search_port}"}}
    return Place(database, f"http://127.0.0.1:{engine_port}/v1", KEYS, settings, {ENGINE_KEY: marker("engine-key")})


@pytest.fixture(scope="session")
def one_process(place: Place) -> Iterator[Gateway]:
    """All rooms in one process."""
    with Gateway(place, ONE_PROCESS) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def three_processes(place: Place) -> Iterator[Gateway]:
    """A process for each room."""
    with Gateway(place, THREE_PROCESSES) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def twin(one_process: Gateway) -> Iterator[Gateway]:
    """One more gateway over the same database and engine."""
    with twin_of(one_process) as gateway:
        yield gateway


@pytest.fixture(params=["one_process", "three_processes"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """A gateway in each shape; whatever it logs during the test must have been foreseen."""
    gateway: Gateway = request.getfixturevalue(request.param)
    start = len(gateway.log_bytes())
    yield gateway
    logged = b"" if "may_log_anything" in request.fixturenames else gateway.log_bytes(start)
    assert not [words for words in UNFORESEEN if words in logged], logged.decode(errors="replace")[-4000:]


@pytest.fixture
def may_log_anything() -> None:
    """For a test that makes something happen that nobody could foresee."""


@pytest.fixture
async def engine(engine_port: int) -> AsyncIterator[FakeEngine]:
    """A strict engine; a request that it refuses fails the test."""
    async with FakeEngine(port=engine_port, strict=True) as engine:
        yield engine
        assert [received.refused for received in engine.posts if received.refused] == []


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Connections of the test's clients."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=50)) as session:
        yield session


@pytest.fixture
def ada(gateway: Gateway, http: aiohttp.ClientSession) -> Client:
    """A client with ada's key."""
    return Client(http, gateway.url, KEYS["ada"])


@pytest.fixture
def bob(gateway: Gateway, http: aiohttp.ClientSession) -> Client:
    """A client with bob's key."""
    return Client(http, gateway.url, KEYS["bob"])
