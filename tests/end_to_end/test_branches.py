"""Branches: several turns from one parent, at once or later, each with its own history."""

import asyncio
from typing import cast

from tests.end_to_end.client import Client
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine

BRANCHES = 100


async def test_two_turns_from_one_parent_do_not_see_each_other(ada: Client, engine: FakeEngine) -> None:
    """B140: both succeed, and so do their continuations."""
    root = await ada.create("root")
    left, right = await asyncio.gather(
        ada.create("left", previous_response_id=root["id"]), ada.stream("right", previous_response_id=root["id"])
    )
    await ada.create("more left", previous_response_id=left["id"])
    await ada.create("more right", previous_response_id=right.response["id"])

    assert texts(engine.posts[3])[::2] == ["root", "left", "more left"]
    assert texts(engine.posts[4])[::2] == ["root", "right", "more right"]


async def test_a_hundred_branches_at_once_stay_apart(ada: Client, engine: FakeEngine) -> None:
    """B140: every child and grandchild has its own line and nothing of the others."""
    root = await ada.create("root")

    async def branch(number: int) -> Json:
        child = await ada.create(f"child {number}", previous_response_id=root["id"])
        return await ada.create(f"grandchild {number}", previous_response_id=child["id"])

    leaves = await asyncio.gather(*map(branch, range(BRANCHES)))

    asked = [texts(received)[::2] for received in engine.posts]
    lines = [line for line in asked if line[-1].startswith("grandchild")]
    assert sorted(lines) == sorted(["root", f"child {number}", f"grandchild {number}"] for number in range(BRANCHES))
    listed = await asyncio.gather(*(ada.input_items(leaf["id"]) for leaf in leaves))
    assert [len(items) for items in listed] == [5] * BRANCHES


async def test_a_branch_from_an_early_turn_forgets_the_later_ones(ada: Client, engine: FakeEngine) -> None:
    """Every response stays a point to start from, with exactly what it had."""
    turns: list[Json] = [{"id": None}]
    for number in range(6):
        turns.append(await ada.create(f"turn {number}", previous_response_id=turns[-1]["id"]))
    await ada.create("instead", previous_response_id=turns[3]["id"])

    assert texts(engine.posts[-1])[::2] == ["turn 0", "turn 1", "turn 2", "instead"]


async def test_calls_are_answered_in_each_branch_anew(ada: Client, engine: FakeEngine) -> None:
    """Two answers to one call live side by side."""
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    asked = await ada.create("please look", tools=[tool])
    call_id = cast(list[Json], asked["output"])[0]["call_id"]
    outputs = [{"type": "function_call_output", "call_id": call_id, "output": seen} for seen in ("red", "blue")]
    for output in outputs:
        seen = await ada.create([output], previous_response_id=asked["id"])
        await ada.create("and?", previous_response_id=seen["id"])

    assert [texts(received)[2] for received in engine.posts[1:]] == ["red", "red", "blue", "blue"]
