"""The database is slow, refuses, forgets its connections, or is looked at: what a client was told is stored, and nothing is half stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.end_to_end.client import Client
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import text
from tests.fakes.streams import check_stream, read_sse

Hand = psycopg.AsyncConnection[tuple[object, ...]]
FORBIDDEN = "a turn with this text is refused"


@pytest.fixture
async def hand(database: str) -> AsyncIterator[Hand]:
    """A connection of the test's own."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("streaming", [False, True])
async def test_nothing_is_said_to_be_completed_before_it_is_stored(ada: Client, engine: FakeEngine, hand: Hand, streaming: bool) -> None:
    """B006, B012: while the write waits, no terminal event and no answer; right after it a follow-up has everything."""
    first = await ada.create("zero")
    async with hand.transaction():
        await hand.execute("lock table response in share mode")
        turn = asyncio.create_task(_raw(ada, "one", streaming, previous_response_id=first["id"]))
        await _until_waiting(hand)
        assert not turn.done()
    response = await turn
    await ada.create("two", previous_response_id=response["id"])

    assert texts(engine.posts[2])[::2] == ["zero", "one", "two"]


async def test_a_stream_waits_for_its_end_with_heartbeats(ada: Client, engine: FakeEngine, hand: Hand) -> None:
    """B006, B123: all of the text is there, the terminal event is not, and comments flow while the database is slow."""
    async with ada.streaming("one") as answer:
        async with hand.transaction():
            await hand.execute("lock table response in share mode")
            raw = await answer.content.readuntil(b": keep-alive\n")
        raw += await answer.content.read()

    sse = read_sse(raw)
    assert check_stream(sse.events)["status"] == "completed"


@pytest.mark.usefixtures("may_log_anything")
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_refused_write_ends_in_a_failure_and_leaves_nothing(ada: Client, engine: FakeEngine, hand: Hand, streaming: bool) -> None:
    """B018, B006: no half pair is ever in a chain; the parent can be continued as if nothing had been."""
    engine.default = lambda received: text("ok")
    first = await ada.create("one")
    async with refusing(hand):
        failed = await _raw(ada, FORBIDDEN, streaming, previous_response_id=first["id"])
        assert failed["status"] == "failed"
        assert failed["error"]["code"] in ("storage_failed", "storage_outcome_unknown")  # type: ignore[index]
    await ada.create("two", previous_response_id=first["id"])

    assert not await ada.is_stored(failed["id"])
    assert texts(engine.posts[2]) == ["one", "ok", "two"]


async def test_killed_connections_are_replaced(ada: Client, engine: FakeEngine, hand: Hand) -> None:
    """B143: all backends die while the gateway is idle; the next turns succeed at once, and so do reads."""
    for turn in range(3):
        parent = await ada.create("before")
        await hand.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()"
        )
        answers = await asyncio.gather(*(ada.create(f"after {turn}", previous_response_id=parent["id"]) for _ in range(8)))
        assert {response["status"] for response in answers} == {"completed"}


async def test_no_connection_is_held_while_the_engine_works(ada: Client, engine: FakeEngine, hand: Hand) -> None:
    """B143: twenty stalled turns, and no backend is in a transaction or busy."""
    first = await ada.create("one")
    hold = asyncio.Event()
    engine.default = lambda received: text("one two").hold(hold, before=4)
    turns = [asyncio.create_task(ada.create("go", previous_response_id=first["id"])) for _ in range(20)]
    await engine.request(20)
    busy = await _scalar(hand, "select count(*) from pg_stat_activity where datname = current_database() and state <> 'idle'")
    hold.set()
    await asyncio.gather(*turns)

    assert busy == 1  # the test's own


async def test_a_conversation_of_fast_turns_loses_none(ada: Client, engine: FakeEngine) -> None:
    """B012: each after the one before, as fast as answers come; every prompt has all earlier turns."""
    parent: Json = {"id": None}
    for turn in range(40):
        parent = await ada.create(f"turn {turn}", previous_response_id=parent["id"])

    assert texts(engine.posts[-1])[::2] == [f"turn {turn}" for turn in range(40)]
    assert [len(received.input) for received in engine.posts] == list(range(1, 81, 2))


async def test_a_late_writer_changes_nothing_that_was_committed(ada: Client, engine: FakeEngine, hand: Hand) -> None:
    """B141: a turn that was left is stored late, as a branch of its own; the line that went on meanwhile is untouched."""
    first = await ada.create("one")
    never = asyncio.Event()
    engine.play(text("left behind").hold(never, before=5))
    async with hand.transaction():
        await hand.execute("lock table response in share mode")
        async with ada.streaming("a", previous_response_id=first["id"]) as answer:
            await answer.content.readuntil(b"output_text.delta")
        await _until_waiting(hand)
    second = await ada.create("b", previous_response_id=first["id"])
    await ada.create("c", previous_response_id=second["id"])

    assert texts(engine.posts[-1])[::2] == ["one", "b", "c"]


async def _raw(client: Client, input: str, streaming: bool, **fields: object) -> Json:
    """A turn without the comparison with what is stored."""
    if not streaming:
        reply = await client.request("POST", "/v1/responses", {"model": "m", "input": input, **fields})
        assert reply.status == 200
        return reply.json
    async with client.streaming(input, **fields) as answer:
        return check_stream(read_sse(await answer.read()).events)


async def _until_waiting(hand: Hand) -> None:
    """Until some backend waits for the lock that the test holds."""
    while not await _scalar(hand, "select count(*) from pg_locks where not granted"):
        await asyncio.sleep(0.01)


async def _scalar(hand: Hand, query: str) -> object:
    row = await (await hand.execute(query)).fetchone()
    assert row is not None
    return row[0]


@asynccontextmanager
async def refusing(hand: Hand) -> AsyncIterator[None]:
    """The database refuses items that hold the forbidden text."""
    await hand.execute(f"alter table item add constraint forbidden check (position('{FORBIDDEN}'::bytea in body) = 0) not valid")
    try:
        yield
    finally:
        await hand.execute("alter table item drop constraint forbidden")
