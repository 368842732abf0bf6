"""Services that hang, die and come back, and the wire between them cut: three processes, with a proxy in front of the history service.

Nothing that a client was told is lost, nothing is there twice, no call waits for ever, and nobody has to restart anything.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import aiohttp
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.end_to_end.client import Client, refusal_of, text_of
from tests.end_to_end.conftest import KEYS, SETTINGS
from tests.end_to_end.gateway import THREE_PROCESSES, Gateway, Place, until_ready
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.fault_proxy import REPLY, REQUEST, Direction, FaultProxy
from tests.fakes.scripts import text
from tests.fakes.streams import check_response, check_stream, read_sse

DEADLINE = 2.0
CHAINS = 6
UNKNOWN = f"resp_{5:040x}"
RESTARTS = 2


@pytest.fixture(scope="module")
def wire() -> Iterator[str]:
    """Where the proxy listens."""
    directory = tempfile.mkdtemp(prefix="tkwire-")
    yield f"unix:{directory}/history.sock"
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def gateway(place: Place, wire: str) -> Iterator[Gateway]:
    """Three processes whose deadlines are short; history is reached through the proxy."""
    deadlines = {"load_timeout_seconds": DEADLINE, "commit_timeout_seconds": DEADLINE, "drain_seconds": 5.0}
    settings = {
        **SETTINGS,
        "orchestrator": {**SETTINGS["orchestrator"], **deadlines, "history": wire},
        "edge": {**SETTINGS["edge"], "history": wire, "history_timeout_seconds": DEADLINE},
    }
    with Gateway(replace(place, settings=settings), THREE_PROCESSES) as gateway:
        yield gateway


@pytest.fixture
async def proxy(gateway: Gateway, wire: str) -> AsyncIterator[FaultProxy]:
    """The wire between the history service and whoever calls it."""
    async with FaultProxy(gateway.address("history"), wire) as proxy:
        yield proxy


@pytest.fixture
async def ada(gateway: Gateway, proxy: FaultProxy, engine: FakeEngine, http: aiohttp.ClientSession) -> Client:
    """A client of a gateway that is ready."""
    await until_ready(gateway.url)
    return Client(http, gateway.url, KEYS["ada"])


async def test_a_service_that_hangs_is_given_up(ada: Client, proxy: FaultProxy, engine: FakeEngine) -> None:
    """B130: every call has a deadline: reads, deletes and loads are errors, a save is a failed turn; then all is well again."""
    first = await ada.create("one")
    path = f"/v1/responses/{first['id']}"
    proxy.hold(REPLY)
    got, listed, deleted, turn, fresh = await asyncio.gather(
        ada.request("GET", path),
        ada.request("GET", f"{path}/input_items"),
        ada.request("DELETE", f"/v1/responses/{UNKNOWN}"),
        ada.request("POST", "/v1/responses", {"model": "m", "input": "two", "previous_response_id": first["id"]}),
        ada.request("POST", "/v1/responses", {"model": "m", "input": "other"}),
    )
    await proxy.heal()

    assert {refusal_of(reply).status for reply in (got, listed, deleted, turn)} <= {503, 504}
    assert cast(Json, check_response(fresh.json)["error"])["code"] == "storage_outcome_unknown"
    await until_ready(ada.url)
    assert text_of(await ada.create("three", previous_response_id=first["id"])) == "You said: three"


@pytest.mark.parametrize("direction", [REQUEST, REPLY])
async def test_a_cut_wire_loses_and_doubles_nothing(ada: Client, proxy: FaultProxy, engine: FakeEngine, direction: Direction) -> None:
    """B132: cut after any number of bytes; a save that is repeated is one save, and a chain holds each item once."""
    parent = await ada.create("turn 0")
    for turn in range(1, 21):
        proxy.cut(direction, after=turn * 37 % 400)
        parent = await ada.create(f"turn {turn}", previous_response_id=parent["id"])

    assert proxy.cuts >= 10
    assert texts(engine.posts[-1])[::2] == [f"turn {turn}" for turn in range(21)]
    assert len(await ada.input_items(parent["id"])) == 41


@pytest.mark.parametrize("room", ["history", "orchestrator"])
async def test_a_service_that_dies_under_load_takes_nothing_with_it(gateway: Gateway, ada: Client, engine: FakeEngine, room: str) -> None:
    """B133: kill -9 and restart during traffic: what was completed is there and can be continued, and errors end by themselves."""
    chains = [_Chain(ada, number) for number in range(CHAINS)]
    stop = asyncio.Event()
    running = [asyncio.create_task(chain.run(stop)) for chain in chains]
    for restart in range(RESTARTS):
        await _until_each_has(chains, restart + 1)
        gateway.kill(room)
        await gateway.restart()
    stop.set()
    await asyncio.gather(*running)
    await until_ready(gateway.url)

    for chain in chains:
        assert [await ada.is_stored(response_id) for response_id in chain.completed] == [True] * len(chain.completed)
        continued = await ada.create("the end", previous_response_id=chain.completed[-1])
        assert continued["status"] == "completed"
        assert texts(engine.posts[-1])[::2] == [*chain.said, "the end"]


async def test_a_stream_whose_orchestrator_dies_is_failed(gateway: Gateway, ada: Client, engine: FakeEngine) -> None:
    """B032, B133: the edge ends it with `response.failed`, the same id and the next number; the next turn finds a new process."""
    engine.play(text("one two three").hold(asyncio.Event(), before=5))
    async with ada.streaming("go") as answer:
        raw = await answer.content.readuntil(b"output_text.delta")
        gateway.kill("orchestrator")
        raw += await answer.content.read()
    await gateway.restart()
    await until_ready(gateway.url)
    response = json.loads(raw.rsplit(b"data: ", 2)[1])["response"]

    assert response["status"] == "failed"
    assert [event["type"] for event in read_sse(raw).events][-1] == "response.failed"
    assert text_of(await ada.create("again")) == "You said: again"


@pytest.mark.parametrize("room", ["history", "orchestrator", "edge"])
async def test_a_service_that_is_asked_to_stop_ends_its_work_first(gateway: Gateway, ada: Client, engine: FakeEngine, room: str) -> None:
    """SIGTERM in the middle of a stream: it goes on to its end, the exit status is 0, and a restart takes over."""
    hold = asyncio.Event()
    engine.play(text("one two three").hold(hold, before=5))
    async with ada.streaming("go") as answer:
        raw = await answer.content.readuntil(b"output_text.delta")
        stopping = asyncio.create_task(asyncio.to_thread(gateway.stop, room))
        if room != "history":  # a history service has nothing to wait for: the turn's save is not there yet
            hold.set()
            raw += await answer.content.read()
            assert await stopping == 0
        else:
            assert await stopping == 0
            await gateway.restart()
            hold.set()
            raw += await answer.content.read()
    await gateway.restart()
    await until_ready(gateway.url)

    assert check_stream(read_sse(raw).events)["status"] == "completed"


async def test_a_turn_past_the_drain_limit_is_stored_as_failed(place: Place, engine: FakeEngine, http: aiohttp.ClientSession) -> None:
    """A shutdown that cannot wait longer: `server_shutdown`, to the client and in the database; the process ends by itself."""
    settings = {**SETTINGS, "orchestrator": {**SETTINGS["orchestrator"], "drain_seconds": 0.3}}
    with Gateway(replace(place, settings=settings)) as gateway:
        engine.play(text("one two three").hold(asyncio.Event(), before=5))
        async with Client(http, gateway.url, KEYS["ada"]).streaming("go") as answer:
            raw = await answer.content.readuntil(b"output_text.delta")
            stopping = asyncio.create_task(asyncio.to_thread(gateway.stop, "edge"))
            raw += await answer.content.read()
        assert await stopping == 0
        response = check_stream(read_sse(raw).events)
        await gateway.restart()
        stored = await Client(http, gateway.url, KEYS["ada"]).get(response["id"])

    assert cast(Json, response["error"])["code"] == "server_shutdown"
    assert stored == response


async def test_readiness_follows_the_database(gateway: Gateway, ada: Client, database: str) -> None:
    """B133: red while nobody may connect, green again by itself; a turn meanwhile is refused or failed, never said to be stored."""
    stored = await ada.create("one")
    async with _closed_to_all(database):
        await until_ready(gateway.url, ready=False)
        turn = await ada.request("POST", "/v1/responses", {"model": "m", "input": "x", "previous_response_id": stored["id"]})
        got = await ada.request("GET", f"/v1/responses/{stored['id']}")
    await until_ready(gateway.url)

    assert (turn.status, turn.json.get("status")) in ((503, None), (200, "failed"))
    assert refusal_of(got).status in (503, 504)
    assert text_of(await ada.create("two", previous_response_id=stored["id"])) == "You said: two"


class _Chain:
    """A client that goes on from its last completed turn for as long as it may."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._number = number
        self.completed: list[str] = []
        self.said: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            said = f"chain {self._number}, turn {len(self.completed)}"
            parent = self.completed[-1] if self.completed else None
            body = {"model": "m", "input": said, "previous_response_id": parent}
            reply = await self._client.request("POST", "/v1/responses", body)
            if reply.status == 200 and reply.json["status"] == "completed":
                self.completed.append(str(reply.json["id"]))
                self.said.append(said)
            else:
                assert reply.status in (200, 500, 502, 503, 504), reply.body


async def _until_each_has(chains: list[_Chain], completed: int) -> None:
    async with asyncio.timeout(40):
        while any(len(chain.completed) < completed for chain in chains):
            await asyncio.sleep(0.02)


@asynccontextmanager
async def _closed_to_all(database: str) -> AsyncIterator[None]:
    """Nobody may connect to the database, and nobody is connected."""
    name = str(conninfo_to_dict(database)["dbname"])
    async with await psycopg.AsyncConnection.connect(make_conninfo(database, dbname="postgres"), autocommit=True) as admin:
        await admin.execute(sql.SQL("alter database {} allow_connections false").format(sql.Identifier(name)))
        try:
            await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
            yield
        finally:
            await admin.execute(sql.SQL("alter database {} allow_connections true").format(sql.Identifier(name)))
