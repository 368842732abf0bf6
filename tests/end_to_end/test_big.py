"""Sizes: big items, long chains, and what a turn costs the database when its history is long."""

from collections.abc import Iterator
from typing import cast

import psycopg
import pytest

from tests.end_to_end.client import Client, refusal_of, text_of
from tests.end_to_end.prompts import input_bytes, texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import text

MIB = 1024 * 1024
ITEMS = 5_000
TURNS = 20
PER_TURN = ITEMS // TURNS - 1
# What is slow, and only about the messages between services, is tested where there are any.
on_sockets = pytest.mark.parametrize("gateway", ["three_processes"], indirect=True)
MARKS = {"commit_turn": "from commit_turn(", "load_context": "firsts_of(r.checkpoint)"}


@pytest.mark.parametrize("size", [4 * MIB - 1024, 4 * MIB + 1], ids=["just under", "just over"])
async def test_an_item_of_any_size_is_written_and_read(ada: Client, engine: FakeEngine, size: int) -> None:
    """B127: past the message limit that gRPC has by default, in every direction."""
    engine.default = lambda received: text("ok")
    big = "x" * size
    first = await ada.create(big)
    await ada.create("and?", previous_response_id=first["id"])

    assert len(input_bytes(engine.posts[1])) > size
    assert len(str((await ada.input_items(first["id"]))[0])) > size


@on_sockets
async def test_an_item_near_the_limit_is_written_and_read(ada: Client, engine: FakeEngine) -> None:
    """B127: not only around the default limit, but near ours."""
    await test_an_item_of_any_size_is_written_and_read(ada, engine, 20 * MIB)


@on_sockets
async def test_images_that_together_pass_the_limit_are_loaded(ada: Client, engine: FakeEngine) -> None:
    """B127: three turns of 3 MiB each."""
    parent: Json = {"id": None}
    for turn in range(3):
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{'A' * 3 * MIB}"}
        content = [{"type": "input_text", "text": f"turn {turn}"}, image]
        parent = await ada.create([{"role": "user", "content": content}], previous_response_id=parent["id"])

    assert len(input_bytes(engine.posts[2])) > 9 * MIB
    assert len(await ada.input_items(parent["id"], limit=3)) == 5


@on_sockets
async def test_a_body_past_the_limit_is_refused_before_the_engine_runs(ada: Client, engine: FakeEngine) -> None:
    """B127: 413, as one body and as a history that has grown too long."""
    engine.default = lambda received: text("ok")
    body = {"model": "m", "input": "x" * (33 * MIB)}
    refusal = refusal_of(await ada.request("POST", "/v1/responses", body))
    first = await ada.create("x" * (20 * MIB))
    grown = await ada.request("POST", "/v1/responses", {"model": "m", "input": "x" * (20 * MIB), "previous_response_id": first["id"]})

    assert refusal.said == (413, "request_too_large", None)
    assert refusal_of(grown).status in (400, 413)
    assert len(engine.posts) == 1


@on_sockets
async def test_a_long_answer_is_streamed_and_stored(ada: Client, engine: FakeEngine) -> None:
    """B127: the model's side of it."""
    engine.play(text("", deltas=["word " * 1000] * 600))
    streamed = await ada.stream("go")
    await ada.create("and?", previous_response_id=streamed.response["id"])

    assert len(text_of(streamed.response)) == 3_000_000
    assert len(input_bytes(engine.posts[1])) > 3_000_000


async def test_a_chain_of_five_thousand_items_costs_one_read_and_one_commit(
    ada: Client, engine: FakeEngine, database: str, statements: "Statements"
) -> None:
    """B147, B003: whatever is behind it, a turn reads once and writes once; its checkpoint takes as much as the first one's."""
    engine.strict = False  # it would compare each of the items with all others
    engine.default = lambda received: text("ok")
    turns: list[Json] = [{"id": None}]
    for turn in range(TURNS):
        items = [{"role": "user", "content": f"turn {turn}, line {line}"} for line in range(PER_TURN)]
        turns.append(await ada.create(items if turn > 3 else f"turn {turn}", previous_response_id=turns[-1]["id"]))
    rest = ITEMS - len(engine.posts[-1].input) - 2
    turns.append(await ada.create([{"role": "user", "content": f"more {n}"} for n in range(rest)], previous_response_id=turns[-1]["id"]))

    statements.forget()
    engine.forget()
    reply = await ada.request("POST", "/v1/responses", {"model": "m", "input": "the last one", "previous_response_id": turns[-1]["id"]})

    assert reply.status == 200
    assert len(engine.posts[0].input) == ITEMS + 1
    assert sorted(statements.counted()) == [("commit_turn", 1), ("load_context", 1)]
    assert len(_checkpoint_sizes(database, str(turns[1]["id"]))) == 1

    engine.forget()
    await ada.create("instead", previous_response_id=turns[3]["id"])
    assert texts(engine.posts[0])[::2] == ["turn 0", "turn 1", "turn 2", "instead"]


async def test_the_bytes_of_a_turn_do_not_grow_with_the_chain(ada: Client, engine: FakeEngine, database: str) -> None:
    """B147: turn 60 stores what turn 10 stored."""
    parent: Json = {"id": None}
    engine.default = lambda received: text("ok")
    for turn in range(60):
        parent = await ada.create(f"turn {turn:04}", previous_response_id=parent["id"])
    with psycopg.connect(database) as hand:
        rows = hand.execute(
            "select sum(pg_column_size(r.*)) from response r where tree_key = (select tree_key from response where response_id = %s)"
            " group by response_id order by min(created_at), response_id",
            [parent["id"]],
        ).fetchall()

    sizes = [row[0] for row in rows]
    assert len(sizes) == 60
    assert max(sizes[10:]) - min(sizes[10:]) <= 32
    assert len(_checkpoint_sizes(database, str(parent["id"]))) == 1


class Statements:
    """What the database was asked, as pg_stat_statements counts it; only the statements of turns."""

    def __init__(self, hand: psycopg.Connection[tuple[object, ...]]) -> None:
        self._hand = hand

    def forget(self) -> None:
        self._hand.execute("select pg_stat_statements_reset()")

    def counted(self) -> list[tuple[str, int]]:
        """(name, calls) of every statement on the store's tables since `forget`."""
        rows = self._hand.execute(
            "select query, calls from pg_stat_statements s join pg_database d on d.oid = s.dbid and d.datname = current_database()"
            " where query ~* 'commit|begin|item|response|tree' and query !~* 'pg_stat_statements|dirty|expires_at <'"
        ).fetchall()
        return [(_name_of(str(query)), cast(int, calls)) for query, calls in rows]


def _name_of(query: str) -> str:
    return next((name for name, mark in MARKS.items() if mark in query), query)


@pytest.fixture
def statements(database: str) -> Iterator[Statements]:
    """The statements of the gateways' database."""
    with psycopg.connect(database, autocommit=True) as hand:
        yield Statements(hand)


def _checkpoint_sizes(database: str, response_id: str) -> list[int]:
    """The different sizes of the checkpoints of a tree that is one line."""
    with psycopg.connect(database) as hand:
        rows = hand.execute(
            "select distinct pg_column_size(checkpoint) from response"
            " where tree_key = (select tree_key from response where response_id = %s)",
            [response_id],
        ).fetchall()
    return [row[0] for row in rows]
