"""Stored responses: retrieving, listing, deleting; what is not stored; what is stored and damaged."""

from typing import cast

import psycopg
import pytest

from tests.end_to_end.client import Client, refusal_of, types_of
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import message_and_call, reasoning, text

LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}}


async def test_input_items_are_the_whole_chain(ada: Client, engine: FakeEngine) -> None:
    """Context and own input, oldest first on demand; outputs under the ids they were announced with."""
    engine.play(reasoning("Hm.") + message_and_call("let me look", "look", {}, "call_1"), text("red"))
    first = await ada.create([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "look"}], tools=[LOOK])
    second = await ada.create([{"type": "function_call_output", "call_id": "call_1", "output": "red"}], previous_response_id=first["id"])

    items = await ada.input_items(second["id"])
    assert types_of(items) == ["message", "message", "reasoning", "message", "function_call", "function_call_output"]
    assert items[2:5] == first["output"]
    assert [item.get("role") for item in items[:2]] == ["system", "user"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_hold_every_item_once_in_both_orders(ada: Client, engine: FakeEngine, limit: int) -> None:
    """Newest first is the default; the id of the last item leads to the next page."""
    parent: Json = {"id": None}
    for turn in range(4):
        parent = await ada.create(f"turn {turn}", previous_response_id=parent["id"])

    rising = await ada.input_items(parent["id"], "asc", limit)
    falling = await ada.input_items(parent["id"], "desc", limit)
    default = await ada.page(parent["id"])

    assert len(rising) == 7
    assert rising == falling[::-1] == cast(list[Json], default["data"])[::-1]


async def test_a_default_page_has_twenty_items(ada: Client, engine: FakeEngine) -> None:
    """And says that there are more."""
    response = await ada.create([{"role": "user", "content": f"line {number}"} for number in range(25)])
    page = await ada.page(response["id"])

    assert (len(cast(list[Json], page["data"])), page["has_more"]) == (20, True)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_nowhere", "include=nonsense"])
async def test_a_page_that_cannot_be_is_refused(ada: Client, engine: FakeEngine, query: str) -> None:
    """The parameter at fault is named."""
    response = await ada.create("hello")
    reply = await ada.request("GET", f"/v1/responses/{response['id']}/input_items?{query}")

    refusal = refusal_of(reply)
    assert (refusal.status, refusal.param) == (400, query.partition("=")[0])


async def test_a_deleted_response_is_gone_everywhere(ada: Client, engine: FakeEngine) -> None:
    """GET, DELETE and input_items are 404 alike, with the same code."""
    response = await ada.create("hello")
    await ada.delete(response["id"])

    path = f"/v1/responses/{response['id']}"
    replies = [await ada.request(method, path + tail) for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"))]
    assert [refusal_of(reply).said for reply in replies] == [(404, "response_not_found", None)] * 3


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_unstored_turn_has_the_history_and_leaves_none(ada: Client, engine: FakeEngine, streaming: bool) -> None:
    """Hydrated, not retrievable, not continuable; the client checks that GET finds nothing."""
    first = await ada.create("one")
    asked: Json = {"previous_response_id": first["id"], "store": False}
    second = (await ada.stream("two", **asked)).response if streaming else await ada.create("two", **asked)
    continued = await ada.refused("three", previous_response_id=second["id"])

    assert texts(engine.posts[1])[::2] == ["one", "two"]
    assert (second["store"], second["status"]) == (False, "completed")
    assert continued.said == (400, "previous_response_not_found", "previous_response_id")
    assert len(engine.posts) == 2


async def test_a_history_with_a_hole_is_never_given_to_a_model(ada: Client, engine: FakeEngine, database: str) -> None:
    """B010: a missing row is an error with its own code, the engine is not asked, and the metric counts it."""
    parent: Json = {"id": None}
    for turn in range(3):
        parent = await ada.create(f"turn {turn}", previous_response_id=parent["id"])
    with psycopg.connect(database) as hand:
        hand.execute("delete from item where response_id = %s", [parent["previous_response_id"]])

    refusal = await ada.refused("turn 3", previous_response_id=parent["id"])
    listed = await ada.request("GET", f"/v1/responses/{parent['id']}/input_items?limit=100")

    assert (refusal.status, refusal.code) == (500, "history_incomplete")
    assert refusal_of(listed).said == (500, "history_incomplete", None)
    assert len(engine.posts) == 3


async def test_a_circle_of_parents_is_no_trap(ada: Client, engine: FakeEngine, database: str) -> None:
    """B022: no chain is walked, so a chain that never ends takes no time."""
    first = await ada.create("one")
    second = await ada.create("two", previous_response_id=first["id"])
    with psycopg.connect(database) as hand:
        hand.execute("update response set parent_id = %s where response_id = %s", [second["id"], first["id"]])

    await ada.create("three", previous_response_id=second["id"])

    assert texts(engine.posts[2])[::2] == ["one", "two", "three"]


async def test_an_item_of_a_kind_from_the_future_is_kept_and_shown(ada: Client, engine: FakeEngine, database: str) -> None:
    """B149: a row of a type and with fields that nobody here knows is listed and got as it is; its prompt is what it says."""
    first = await ada.create("one")
    body = b'{"type":"hologram","status":"completed","beams":[1,2,{"x":null}]}'
    with psycopg.connect(database) as hand:
        hand.execute("update item set type = 'hologram', body = %s, prompt = '' where response_id = %s and seq = 2", [body, first["id"]])

    await ada.create("two", previous_response_id=first["id"])
    got = await ada.request("GET", f"/v1/responses/{first['id']}")
    assert types_of(got.json["output"]) == ["hologram"]
    assert texts(engine.posts[1]) == ["one", "two"]


async def test_an_unknown_id_is_not_found(ada: Client, engine: FakeEngine) -> None:
    """Unknown ids look alike, well-formed or not."""
    unknown = f"resp_{'0' * 40}"
    refusal = await ada.refused("hi", previous_response_id=unknown)

    assert refusal.said == (400, "previous_response_not_found", "previous_response_id")
    assert not await ada.is_stored(unknown)
    assert engine.posts == []
