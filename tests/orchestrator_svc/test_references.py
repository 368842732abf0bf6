"""Items that a request names instead of holding them, and chains of responses that are stored nowhere."""

from contextlib import aclosing
from dataclasses import replace

import msgspec
import pytest

from orchestrator_svc.context import parent as parents
from orchestrator_svc.errors import InvalidRequest, PreviousResponseNotFound
from orchestrator_svc.items import JsonObject
from tests.end_to_end.prompts import kinds, texts
from tests.fakes.scripts import function_call, reasoning, text
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.scribe import Scribe, over, summed_up, user
from tests.orchestrator_svc.tool_turns import LOOK, SEARCH, Turned, World
from tests.orchestrator_svc.turns import asked


def ref(item: object, **more: object) -> JsonObject:
    return {"type": "item_reference", "id": item, **more}


@pytest.fixture
def scribe(world: World) -> Scribe:
    scribe = Scribe()
    world.engine.default = scribe
    return scribe


# References.


async def test_a_reference_is_what_it_refers_to(world: World) -> None:
    """With and without its type; in a tree of its own the item is a copy with the same id."""
    world.engine.play(text("one"), text("two"), text("three"), text("four"))
    first = await world.turn(user("1"))
    made = first.output[0]

    for reference in (ref(made["id"]), {"id": made["id"]}, {"id": made["id"], "type": None}):
        turned = await world.turn(reference, user("2"))
        assert texts(world.engine.posts[-1]) == ["one", "2"]
        listed = await world.listed(turned.id)
        assert listed[0] == made


async def test_what_a_client_wrote_can_be_referred_to(world: World, scribe: Scribe) -> None:
    first = await world.turn(user("1"))
    given = (await world.listed(first.id))[0]
    await world.turn(ref(given["id"]), user("2"), store=False)
    assert texts(world.engine.posts[-1]) == ["1", "2"]


async def test_a_whole_output_can_be_referred_to_with_its_calls_in_pairs(world: World) -> None:
    """Reasoning, a search of the gateway's, a call of the client's."""
    world.engine.play(
        function_call("web_search", {"query": "q"}, "call_w"),
        reasoning("Hm.") + function_call("look", {}, "call_l"),
        text("Yes."),
        text("So."),
    )
    first = await world.turn(user("1"), tools=[SEARCH, LOOK])
    seen = {"type": "function_call_output", "call_id": "call_l", "output": "seen"}
    await world.turn(seen, previous_response_id=first.id, tools=[SEARCH, LOOK])  # type: ignore[arg-type]

    await world.turn(user("1"), *[ref(item["id"]) for item in first.output], seen, tools=[SEARCH, LOOK])  # type: ignore[arg-type]

    assert world.engine.posts[3].json["input"] == world.engine.posts[2].json["input"]
    assert kinds(world.engine.posts[3]) == [
        "user",
        "function_call",
        "function_call_output",
        "reasoning",
        "function_call",
        "function_call_output",
    ]


async def test_a_call_alone_is_no_more_allowed_by_reference_than_in_full(world: World) -> None:
    world.engine.play(function_call("look", {}, "call_l"))
    first = await world.turn(user("1"), tools=[LOOK])
    with pytest.raises(InvalidRequest) as caught:
        await world.turn(ref(first.output[0]["id"]), tools=[LOOK])
    assert caught.value.param == "input"


@pytest.mark.parametrize("unknown", ["msg_" + "0" * 40, "msg_1", "resp_" + "0" * 40, "x"])
async def test_a_reference_to_nothing_is_named(world: World, unknown: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await world.turn(user("1"), ref(unknown))
    assert caught.value.param == "input[1].id"
    assert unknown in caught.value.message


async def test_the_items_of_another_owner_cannot_be_referred_to(world: World, scribe: Scribe) -> None:
    first = await world.turn(user("1"), owner="bob")
    with pytest.raises(InvalidRequest) as caught:
        await world.turn(ref(first.output[0]["id"]))
    assert caught.value.param == "input[0].id"


async def test_an_id_stands_once_in_an_input(world: World, scribe: Scribe) -> None:
    first = await world.turn(user("1"))
    made = first.output[0]
    for input in ((ref(made["id"]), ref(made["id"])), (made, ref(made["id"])), (user("1", id="msg_x"), user("2", id="msg_x"))):
        with pytest.raises(InvalidRequest) as caught:
            await world.turn(*input, user("on"))
        assert caught.value.param == "input[1].id"


async def test_a_reference_into_the_turns_own_past_is_an_item_of_its_own(world: World, scribe: Scribe) -> None:
    """A list whose ids are not unique could not be paged through."""
    first = await world.turn(user("1"))
    turned = await world.turn(ref(first.output[0]["id"]), user("2"), previous_response_id=first.id)
    assert texts(world.engine.posts[-1]) == ["1", "re: 1", "re: 1", "2"]
    listed = await world.listed(turned.id)
    assert len({str(item["id"]) for item in listed}) == len(listed) == 4


# Chains that are stored nowhere.


async def unstored(
    world: World, *input: JsonObject, continuation: bytes = b"", owner: str = "ada", **fields: object
) -> tuple[Turned, bytes]:
    """A turn whose client's connection keeps what a continuation needs."""
    fields = {"store": False} | fields
    request = replace(asked(*input, **fields), owner=owner, keep_continuation=True, continuation=continuation)  # type: ignore[arg-type]
    events: list[JsonObject] = []
    kept = b""
    async with aclosing(world.desk.respond(request)) as batches:
        async for batch in batches:
            events += [msgspec.json.decode(event.data) for event in batch.events]
            kept = batch.continuation or kept
    return Turned(tuple(events), check_stream(events)), kept


async def test_a_chain_that_is_not_stored_goes_on(world: World, scribe: Scribe) -> None:
    turned, kept = await unstored(world, user("0"))
    for number in range(1, 4):
        turned, kept = await unstored(world, user(str(number)), previous_response_id=turned.id, continuation=kept)
    assert texts(world.engine.posts[-1]) == ["0", "re: 0", "1", "re: 1", "2", "re: 2", "3"]
    with pytest.raises(PreviousResponseNotFound):
        await world.turn(user("4"), previous_response_id=turned.id)


@pytest.mark.parametrize("begins_stored", [False, True])
async def test_a_chain_that_is_stored_after_all_is_stored_whole(world: World, scribe: Scribe, begins_stored: bool) -> None:
    turned, kept = await world.turn(user("0")) if begins_stored else None, b""
    fields = {"previous_response_id": turned.id} if turned else {}
    turned, kept = await unstored(world, user("1"), **fields)  # type: ignore[arg-type]
    turned, kept = await unstored(world, user("2"), previous_response_id=turned.id, continuation=kept)
    stored, kept = await unstored(world, user("3"), previous_response_id=turned.id, continuation=kept, store=True)

    after = await world.turn(user("4"), previous_response_id=stored.id)

    start = ["0", "re: 0"] if begins_stored else []
    assert kept == b""
    assert texts(world.engine.posts[-1]) == [*start, "1", "re: 1", "2", "re: 2", "3", "re: 3", "4"]
    assert len(await world.listed(after.id)) == len(start) + 7
    assert (await world.stored(stored.id))["previous_response_id"] == turned.id


async def test_calls_wait_in_a_chain_that_is_not_stored(world: World) -> None:
    world.engine.play(reasoning("Hm.") + function_call("look", {}, "call_l"), text("Yes."))
    turned, kept = await unstored(world, user("1"), tools=[LOOK])
    with pytest.raises(InvalidRequest):
        await unstored(world, user("2"), previous_response_id=turned.id, continuation=kept)
    seen = {"type": "function_call_output", "call_id": "call_l", "output": "seen"}
    await unstored(world, seen, previous_response_id=turned.id, continuation=kept)  # type: ignore[arg-type]
    assert kinds(world.engine.posts[-1]) == ["user", "reasoning", "function_call", "function_call_output"]


@pytest.mark.parametrize("begins_stored", [False, True])
async def test_a_chain_that_is_not_stored_is_compacted_like_any_other(world: World, scribe: Scribe, begins_stored: bool) -> None:
    fields = {"previous_response_id": (await world.turn(user("0"))).id} if begins_stored else {}
    turned, kept = await unstored(world, user("1"), **fields)  # type: ignore[arg-type]
    turned, kept = await unstored(world, user("2"), previous_response_id=turned.id, continuation=kept, context_management=over(1))
    assert turned.types == ["compaction", "message"]
    turned, kept = await unstored(world, user("3"), previous_response_id=turned.id, continuation=kept)
    stored, _ = await unstored(world, user("4"), previous_response_id=turned.id, continuation=kept, store=True)
    await world.turn(user("5"), previous_response_id=stored.id)
    assert texts(world.engine.posts[-1])[:3] == ["2", summed_up(1), f"re: {summed_up(1)}"]
    assert texts(world.engine.posts[-1])[3:] == ["3", "re: 3", "4", "re: 4", "5"]


async def test_a_damaged_continuation_is_no_parent(world: World, scribe: Scribe) -> None:
    turned, kept = await unstored(world, user("1"))
    other, _ = await unstored(world, user("1"))
    for damaged in (kept[:-1], kept + b"x", b"x", msgspec.msgpack.encode({}), b"\x00" * 40):
        with pytest.raises(PreviousResponseNotFound):
            await unstored(world, user("2"), previous_response_id=turned.id, continuation=damaged)
    with pytest.raises(PreviousResponseNotFound):
        await unstored(world, user("2"), previous_response_id=other.id, continuation=kept)


async def test_a_continuation_of_a_response_that_was_deleted_meanwhile_is_no_parent(world: World, scribe: Scribe) -> None:
    """Nor is one of a response that belongs to somebody else."""
    stored = await world.turn(user("1"))
    turned, kept = await unstored(world, user("2"), previous_response_id=stored.id)
    with pytest.raises(PreviousResponseNotFound):
        await unstored(world, user("3"), previous_response_id=turned.id, continuation=kept, owner="bob")
    assert parents.read(kept, turned.id).stored_id == stored.id


async def test_a_turn_that_failed_leaves_nothing_to_continue_from(world: World) -> None:
    world.engine.play(text("this is half of it").cut(events=5))
    turned, kept = await unstored(world, user("1"))
    assert turned.response["status"] == "failed"
    assert kept == b""
