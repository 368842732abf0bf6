"""Clients that send back all they have, item by item: what is stored already is not stored again."""

import psycopg
import pytest

from orchestrator_svc.context import joining
from orchestrator_svc.items import JsonObject
from svckit.ids import IdBlock, tree_key_of
from tests.fakes.scripts import function_call, reasoning, text
from tests.orchestrator_svc.tool_turns import World
from tests.orchestrator_svc.turns import BLOCK, HELLO, WEATHER, request

HOME = IdBlock(7, 1)


def user(words: str, **more: object) -> JsonObject:
    return {"type": "message", "role": "user", "content": words, **more}


async def transcript_of(world: World, response_id: str) -> list[JsonObject]:
    """All items of a response as a client may have them: what it was given, and what it made."""
    page = await world.listed(response_id)
    return [*page, *(await world.stored(response_id))["output"]]  # type: ignore[misc]


def items_stored(database: str, response_id: str) -> int:
    with psycopg.connect(database) as reader:
        row = reader.execute("select count(*) from item where tree_key = %s", [tree_key_of(response_id)]).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_transcript_that_comes_back_is_joined_and_not_stored_again(world: World, database: str) -> None:
    world.engine.play(reasoning("hm") + text("Hi"), text("There"), text("Again"))
    first = await world.turn(user("1"))
    second = await world.turn(user("2"), previous_response_id=first.id)
    known = await transcript_of(world, second.id)
    before = items_stored(database, second.id)

    third = await world.turn(*known, user("3"))

    assert tree_key_of(third.id) == tree_key_of(second.id)
    assert third.response["previous_response_id"] is None
    assert items_stored(database, second.id) == before + 2
    assert world.inputs()[2][: len(world.inputs()[1])] == world.inputs()[1]
    assert [part["text"] for part in _texts(world.inputs()[2])] == ["1", "hm", "Hi", "2", "There", "3"]


async def test_what_was_joined_is_continued_like_anything_else(world: World) -> None:
    world.engine.play(text("Hi"), text("There"), text("Again"))
    first = await world.turn(user("1"))
    joined = await world.turn(*await transcript_of(world, first.id), user("2"))
    await world.turn(user("3"), previous_response_id=joined.id)

    assert [part["text"] for part in _texts(world.inputs()[2])] == ["1", "Hi", "2", "There", "3"]
    assert all(tree_key_of(str(item["id"])) == tree_key_of(first.id) for item in await world.listed(joined.id))


async def test_an_item_that_was_changed_is_stored_as_it_came(world: World, database: str) -> None:
    world.engine.play(text("Hi"), text("There"))
    first = await world.turn(user("1"))
    known = await transcript_of(world, first.id)
    known[0] |= {"content": "another"}

    second = await world.turn(*known, user("2"))

    assert tree_key_of(second.id) != tree_key_of(first.id)
    assert [part["text"] for part in _texts(world.inputs()[1])] == ["another", "Hi", "2"]


async def test_another_owners_items_are_not_joined(world: World) -> None:
    world.engine.play(text("Hi"), text("There"))
    first = await world.turn(user("1"))
    known = await transcript_of(world, first.id)

    second = await world.turn(*known, user("2"), owner="bob")

    assert tree_key_of(second.id) != tree_key_of(first.id)


async def test_a_call_in_the_transcript_keeps_its_output(world: World) -> None:
    world.engine.play(function_call("weather", "{}", "call_1"), text("Sunny"), text("Bye"))
    first = await world.turn(user("1"), tools=[WEATHER])
    output = {"type": "function_call_output", "call_id": "call_1", "output": "sun"}
    second = await world.turn(output, previous_response_id=first.id, tools=[WEATHER])

    third = await world.turn(*await transcript_of(world, second.id), user("2"), tools=[WEATHER])

    assert tree_key_of(third.id) == tree_key_of(first.id)
    assert [item["type"] for item in world.inputs()[2]] == ["message", "function_call", "function_call_output", "message", "message"]


@pytest.mark.parametrize("given", [{"store": False}, {"previous_response_id": HOME.id("resp")}])
def test_only_a_turn_that_is_stored_and_continues_nothing_joins(given: dict[str, object]) -> None:
    read = request(user("1", id=HOME.id("msg")), HELLO, **given)

    assert joining.candidates(read, BLOCK.tree_key) == ()


def test_items_with_ids_of_the_turns_own_have_nothing_to_join() -> None:
    assert joining.candidates(request(HELLO, HELLO), BLOCK.tree_key) == ()


def _texts(input: list[JsonObject]) -> list[JsonObject]:
    return [part for item in input for part in item.get("content", [])]  # type: ignore[attr-defined]
