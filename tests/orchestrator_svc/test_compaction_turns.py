"""Turns that compact their context: when, what the model is shown then, what is stored, and what happens when no summary comes."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import cast

import msgspec
import pytest
from msgspec import structs
from prometheus_client import REGISTRY

from orchestrator_svc.context.compaction import DEFAULT_PROMPT, DROPPED_MARKER
from orchestrator_svc.errors import EngineError, InvalidRequest, ShuttingDown
from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ToolCall, ToolResult
from orchestrator_svc.turn.events import Begun, GracePassed, ModelFailed, ModelFinished, Saved
from svckit.errors import ServiceError
from svckit.ids import new_block, new_tree_key
from tests.end_to_end.prompts import input_bytes, kinds, texts
from tests.fakes.answers import Usage
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, function_call, reasoning, refusal, silence, status, text
from tests.orchestrator_svc.scribe import Scribe, answer_to, over, summary_requests, summed_up, user, wants_summary
from tests.orchestrator_svc.tool_turns import LOOK, PATCH, SEARCH, Turned, World, listed, open_world, server
from tests.orchestrator_svc.turns import RULES, asked, play, request, sent, turn

LONG = "x" * 400
COMPACTED = ["output_item.added", "compaction.compacting", "output_item.done"]
TRIGGER: JsonObject = {"type": "compaction_trigger"}


@pytest.fixture
def scribe(world: World) -> Scribe:
    """The model of the world's engine."""
    scribe = Scribe()
    world.engine.default = scribe
    return scribe


def told(engine: FakeEngine, request: int = -1) -> list[str]:
    """The texts that the engine was given in one request."""
    return texts(engine.posts[request])


async def long_talk(world: World, turns: int = 3, **fields: object) -> Turned:
    """A chain of turns with long messages, each about 130 tokens with its short answer."""
    turned = await world.turn(user(f"1 {LONG}"), **fields)  # type: ignore[arg-type]
    for number in range(2, turns + 1):
        turned = await world.turn(user(f"{number} {LONG}"), previous_response_id=turned.id, **fields)  # type: ignore[arg-type]
    return turned


# When.


async def test_a_context_over_the_threshold_is_compacted_before_the_first_round(world: World, scribe: Scribe) -> None:
    before = await long_talk(world)

    turned = await world.turn(user("now"), previous_response_id=before.id, context_management=over(300))

    assert turned.types == ["compaction", "message"]
    assert turned.story[:3] == COMPACTED
    assert told(world.engine, -2) == [*told(world.engine, -3), answer_to(f"3 {LONG}"), "now", DEFAULT_PROMPT]
    assert told(world.engine) == [f"3 {LONG}", "now", summed_up(1)]


async def test_a_context_under_the_threshold_is_left_alone(world: World, scribe: Scribe) -> None:
    before = await long_talk(world, context_management=over(100_000))
    assert (await world.turn(user("now"), previous_response_id=before.id)).types == ["message"]
    assert scribe.summaries == 0


async def test_a_context_is_measured_with_its_instructions_and_tools(world: World, scribe: Scribe) -> None:
    tool = {"type": "function", "name": "look", "description": "y" * 2000, "parameters": {"type": "object"}}
    for fields in ({"instructions": "z" * 2000}, {"tools": [tool]}):
        before = await world.turn(user("hi"))
        turned = await world.turn(user("now"), previous_response_id=before.id, context_management=over(300), **fields)
        assert turned.types == ["compaction", "message"]
    assert scribe.summaries == 2


async def test_a_context_is_compacted_between_two_rounds(world: World) -> None:
    async def find_a_lot(call: ToolCall) -> ToolResult:
        return ToolResult("found " + LONG * 10)

    world.search.answer = find_a_lot
    world.engine.play(
        function_call("web_search", {"query": "q"}).using(Usage(200, 1)),
        text("the summary").using(Usage(100, 20)),
        text("It is so.").using(Usage(30, 4)),
    )

    turned = await world.turn(user("look it up"), tools=[SEARCH], context_management=over(500))

    assert turned.types == ["web_search_call", "compaction", "message"]
    first, summing, last = world.engine.posts
    assert input_bytes(summing).startswith(input_bytes(first) + b",")
    assert kinds(summing) == ["user", "function_call", "function_call_output", "user"]
    assert summing.json["tool_choice"] == "none"
    assert summing.json["tools"] == first.json["tools"]
    assert kinds(last) == ["user", "user"]
    assert cast(JsonObject, turned.response["usage"])["total_tokens"] == 355


async def test_a_model_may_have_a_threshold_of_its_own(database: str) -> None:
    async with open_world(database, rules=structs.replace(RULES, threshold=100_000), thresholds={"m": 500}) as world:
        world.engine.default = scribe = Scribe()
        before = await long_talk(world, 2)
        assert scribe.summaries == 0
        assert (await world.turn(user("now " + LONG), previous_response_id=before.id)).types == ["compaction", "message"]


async def test_the_count_of_the_engine_corrects_the_estimate(world: World) -> None:
    """The estimate of the second round is far under the threshold; the engine counted three times what was estimated for the first."""
    world.engine.play(function_call("web_search", {"query": "q"}).using(Usage(1000, 1)), text("the summary"), text("It is so."))
    turned = await world.turn(user("look " + LONG), tools=[SEARCH], context_management=over(500))
    assert turned.types == ["web_search_call", "compaction", "message"]


async def test_messages_that_alone_exceed_the_threshold_are_not_summed_up_every_turn(world: World, scribe: Scribe) -> None:
    turned = await world.turn(user("0 " + LONG * 10), context_management=over(400))
    assert scribe.summaries == 1
    for number in range(1, 4):
        turned = await world.turn(user(str(number)), previous_response_id=turned.id, context_management=over(400))
    assert scribe.summaries == 1

    await world.turn(user("5 " + LONG * 3), previous_response_id=turned.id, context_management=over(400))
    assert scribe.summaries == 2


@pytest.mark.parametrize("growth", [0.0, 0.25])
async def test_what_no_compaction_makes_smaller_is_compacted_once(database: str, growth: float) -> None:
    """Instructions larger than the threshold, in a turn of several rounds."""
    async with open_world(database, rules=structs.replace(RULES, threshold=100, growth=growth)) as world:
        world.engine.play(text("the summary"), function_call("web_search", {"query": "q"}), text("It is so."))
        turned = await world.turn(user("hi"), tools=[SEARCH], instructions="z" * 8000, **({} if growth else {"max_tool_calls": 0}))  # type: ignore[arg-type]
        assert turned.types[0] == "compaction"
        assert len(summary_requests(world.engine)) <= 2


# What stands afterwards.


async def test_what_comes_after_a_compaction_continues_its_bytes(world: World, scribe: Scribe) -> None:
    turned = await world.turn(user("now"), previous_response_id=(await long_talk(world)).id, context_management=over(300))
    start = len(world.engine.posts) - 1
    for said in ("and", "so", "on"):
        turned = await world.turn(user(said), previous_response_id=turned.id)

    for before, after in pairwise(world.engine.posts[start:]):
        assert input_bytes(after).startswith(input_bytes(before) + b",")
    assert told(world.engine)[1:] == ["now", summed_up(1), answer_to(summed_up(1)), "and", "re: and", "so", "re: so", "on"]


async def test_ids_from_before_a_compaction_continue_from_their_own_history(world: World, scribe: Scribe) -> None:
    """B091."""
    before = await long_talk(world)
    history = [*told(world.engine), answer_to(f"3 {LONG}")]
    turned = await world.turn(user("now"), previous_response_id=before.id, context_management=over(300))
    await world.turn(user("later"), previous_response_id=turned.id)

    branch = await world.turn(user("instead"), previous_response_id=before.id)

    assert told(world.engine) == [*history, "instead"]
    await world.turn(user("more"), previous_response_id=branch.id)
    assert told(world.engine) == [*history, "instead", "re: instead", "more"]


async def test_compactions_of_compactions(world: World, scribe: Scribe) -> None:
    """B091: each summary is made of the one before, which then is gone."""
    turned = await world.turn(user("start"))
    for number in range(1, 4):
        turned = await world.turn(user(f"{number} {LONG}"), previous_response_id=turned.id, context_management=over(100))
        assert told(world.engine) == [f"{number} {LONG}", summed_up(number)]
        if number > 1:
            assert summed_up(number - 1) in told(world.engine, -2)


async def test_a_compaction_is_stored_as_it_was_sent(world: World, scribe: Scribe) -> None:
    """B094."""
    turned = await world.turn(user("now"), previous_response_id=(await long_talk(world)).id, context_management=over(300))

    (announced, closed) = (event["item"] for event in turned.events if event["type"] in _ITEM_EVENTS and event["output_index"] == 0)
    assert closed == turned.output[0]
    assert announced == {**turned.output[0], "encrypted_content": ""}
    assert (await world.stored(turned.id))["output"] == turned.output
    assert LONG not in json.dumps(turned.output[0])


_ITEM_EVENTS = ("response.output_item.added", "response.output_item.done")


async def test_a_summary_may_have_a_model_and_a_prompt_of_its_own(database: str) -> None:
    async with open_world(database, rules=structs.replace(RULES, threshold=50, model="small", prompt="In short?")) as world:
        world.engine.play(text("the summary"), text("Well."))
        await world.turn(user(LONG), text={"verbosity": "low"}, max_output_tokens=900, temperature=0.5)

        summing, answering = (post.json for post in world.engine.posts)
        assert (summing["model"], answering["model"]) == ("small", "m")
        assert told(world.engine, 0)[-1] == "In short?"
        assert {"text", "max_output_tokens"} & summing.keys() == set()
        assert answering["max_output_tokens"] == 900


async def test_a_summary_in_whole_items_is_taken_whole(world: World) -> None:
    """An engine that gives no deltas, and writes two messages."""
    whole = text("the first half, ") + text("the second half")
    world.engine.play(whole.edited(lambda event: event if "delta" not in event else None), text("Well."))
    await world.turn(user(LONG), context_management=over(50))
    assert told(world.engine)[-1].endswith("\nthe first half, the second half")


# No summary.

FAILURES = {
    "refused": status(500),
    "rate limit": status(429),
    "too long": status(400, {"error": {"message": "maximum context length is 10 tokens", "type": "BadRequestError", "code": 400}}),
    "nothing": silence(),
    "blank": text("  \n"),
    "a refusal": refusal("I will not."),
    "only thoughts": reasoning("Hm."),
    "cut short": text("half of").incomplete(),
    "failed": text("half of").failed(),
    **{f"broken off after {events}": text("this is half of it").cut(events=events) for events in (0, 1, 3, 5, 7)},
    "reset": text("this is half of it").cut(events=4, ending="reset"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_a_turn_goes_on_without_a_summary(world: World, failure: Script) -> None:
    """B098: with all that it had, and so do the turns after it; nothing of the attempt is shown or stored."""
    world.engine.play(text("one"))
    before = await world.turn(user("1 " + LONG))
    world.engine.play(failure, text("two"), text("three"))

    turned = await world.turn(user("2"), previous_response_id=before.id, context_management=over(50))
    after = await world.turn(user("3"), previous_response_id=turned.id)

    assert turned.types == ["message"]
    assert turned.response["status"] == "completed"
    assert wants_summary(world.engine.posts[1])
    assert told(world.engine, 2) == ["1 " + LONG, "one", "2"]
    assert told(world.engine, 3) == ["1 " + LONG, "one", "2", "two", "3"]
    assert (await world.stored(after.id))["output"] == after.output


async def test_compactions_are_counted(world: World) -> None:
    def counted(outcome: str) -> float:
        return REGISTRY.get_sample_value("turnkeep_orchestrator_compactions_total", {"outcome": outcome}) or 0.0

    made, failed = counted("made"), counted("failed")
    world.engine.play(text("the summary"), text("one"), status(500), text("two"))
    for said in ("1", "2"):
        await world.turn(user(said), context_management=over(1))
    assert (counted("made"), counted("failed")) == (made + 1, failed + 1)


async def test_a_summary_that_failed_is_not_asked_for_again_in_the_turn(world: World) -> None:
    world.engine.play(status(500), function_call("web_search", {"query": "q"}), text("So."))
    turned = await world.turn(user(LONG), tools=[SEARCH], context_management=over(50))
    assert turned.types == ["web_search_call", "message"]
    assert len(summary_requests(world.engine)) == 1


async def test_without_a_summary_a_context_that_does_not_fit_loses_its_oldest_turns(database: str) -> None:
    """B098."""
    async with open_world(database, rules=structs.replace(RULES, context_window=400)) as world:
        world.engine.play(text("one"), text("two"), text("three"), status(500), text("four"), text("five"))
        before = await long_talk(world)
        turned = await world.turn(user("4"), previous_response_id=before.id, context_management=over(300))
        assert told(world.engine) == [DROPPED_MARKER, f"2 {LONG}", "two", f"3 {LONG}", "three", "4"]

        await world.turn(user("5"), previous_response_id=turned.id)
        assert told(world.engine) == [f"1 {LONG}", "one", f"2 {LONG}", "two", f"3 {LONG}", "three", "4", "four", "5"]


async def test_truncation_leaves_out_the_oldest_whole_turns_where_the_window_is_known(database: str) -> None:
    async with open_world(database, rules=structs.replace(RULES, context_window=400)) as world:
        world.engine.default = Scribe()
        before = await long_talk(world, truncation="auto")
        turned = await world.turn(user("4"), previous_response_id=before.id, truncation="auto")
        assert told(world.engine) == [DROPPED_MARKER, f"3 {LONG}", answer_to(f"3 {LONG}"), "4"]
        assert turned.response["truncation"] == "auto"

        await world.turn(user("5"), previous_response_id=turned.id)
        assert len(told(world.engine)) == 9


async def test_truncation_leaves_room_for_the_answer(database: str) -> None:
    async with open_world(database, rules=structs.replace(RULES, context_window=700)) as world:
        world.engine.play(text("one"), text("two"), text("three"), text("four"))
        before = await long_talk(world)
        await world.turn(user("4"), previous_response_id=before.id, truncation="auto", max_output_tokens=300)
        assert told(world.engine)[0] == DROPPED_MARKER


async def test_truncation_without_a_known_window_changes_nothing(world: World, scribe: Scribe) -> None:
    before = await long_talk(world)
    await world.turn(user("4"), previous_response_id=before.id, truncation="auto")
    assert len(told(world.engine)) == 7


# Asked for.


async def test_a_trigger_asks_for_one_compaction_and_nothing_else(world: World, scribe: Scribe) -> None:
    """B097."""
    before = await long_talk(world)
    turned = await world.turn(user("so far"), TRIGGER, previous_response_id=before.id, tools=[LOOK])

    assert turned.types == ["compaction"]
    assert turned.story == COMPACTED
    assert told(world.engine)[-2:] == ["so far", DEFAULT_PROMPT]
    assert turned.response["usage"]

    await world.turn(user("go on"), previous_response_id=turned.id)
    assert told(world.engine)[-3:] == ["so far", summed_up(1), "go on"]


async def test_a_trigger_stands_last(world: World) -> None:
    for input in ((TRIGGER, user("hi")), (user("hi"), TRIGGER, TRIGGER)):
        with pytest.raises(InvalidRequest) as caught:
            await world.turn(*input)
        assert str(caught.value.param) == f"input[{input.index(TRIGGER)}].type"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_a_trigger_without_a_summary_is_refused(world: World, failure: Script) -> None:
    """B097, B098: never a success without a compaction; the chain before it is as it was."""
    world.engine.play(text("one"))
    before = await world.turn(user("1"))
    world.engine.play(failure, text("two"))

    with pytest.raises(ServiceError):
        await world.turn(TRIGGER, previous_response_id=before.id)

    await world.turn(user("2"), previous_response_id=before.id)
    assert told(world.engine) == ["1", "one", "2"]


def test_a_stream_that_has_begun_ends_in_a_failure_without_a_summary() -> None:
    """B097."""
    failed = ModelFailed("engine_error", "It broke.", EngineError())
    for end, code in ((failed, "engine_error"), (ModelFinished(None, None), "compaction_failed")):
        played = play(turn(request(user("hi"), TRIGGER)), [Begun(), GracePassed(), sent(end), Saved()])
        assert [event["type"] for event in played.events] == ["response.created", "response.in_progress", "response.failed"]
        assert cast(JsonObject, played.response["error"])["code"] == code


async def compact(world: World, *input: JsonObject, owner: str = "ada", **fields: object) -> JsonObject:
    """POST /v1/responses/compact, as the desk answers it."""
    request = replace(asked(*input, **fields), owner=owner)  # type: ignore[arg-type]
    return msgspec.json.decode(await world.desk.compact(request), type=JsonObject)


async def test_a_conversation_is_not_compacted_on_its_own(world: World) -> None:
    """It would be written to without its lease."""
    with pytest.raises(InvalidRequest) as refused:
        await compact(world, user("Hello"), conversation_id=new_block(new_tree_key()).id("conv"))
    assert refused.value.param == "conversation_id"


async def test_a_compaction_on_its_own_gives_the_users_messages_and_one_item(world: World, scribe: Scribe) -> None:
    """B097."""
    given = [user("be kind", role="developer"), user("one"), user("two", role="assistant"), user("three")]
    made = await compact(world, *given)

    output = cast(list[JsonObject], made["output"])
    assert set(made) == {"id", "object", "created_at", "output", "usage"}
    assert made["object"] == "response.compaction"
    assert [item["type"] for item in output] == ["message", "message", "compaction"]
    assert [item["role"] for item in output[:2]] == ["user", "user"]
    assert len({str(item["id"]) for item in output}) == 3
    assert isinstance(made["usage"], dict)

    await world.turn(*output, user("four"))
    assert told(world.engine) == ["one", "three", summed_up(1), "four"]


async def test_a_compaction_on_its_own_may_continue_a_response(world: World, scribe: Scribe) -> None:
    before = await long_talk(world, 2)
    made = await compact(world, previous_response_id=before.id)
    await world.turn(*cast(list[JsonObject], made["output"]), user("on"), store=False)
    assert told(world.engine)[-2:] == [summed_up(1), "on"]


async def test_a_compaction_on_its_own_is_no_more_work_than_a_turn(world: World) -> None:
    await world.desk.drain()
    with pytest.raises(ShuttingDown):
        await compact(world, user("one"))


async def test_a_summary_larger_than_an_output_may_be_is_none(database: str) -> None:
    async with open_world(database, max_output_chars=100) as world:
        world.engine.play(text("", deltas=["x" * 60] * 2), text("on"))
        turned = await world.turn(user("one"), user("two"), context_management=over(1))
        assert [item["type"] for item in turned.output] == ["message"]
        assert told(world.engine) == ["one", "two"]


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_a_compaction_on_its_own_without_a_summary_is_an_error(world: World, failure: Script) -> None:
    """B097."""
    world.engine.play(failure)
    with pytest.raises(ServiceError):
        await compact(world, user("one"))


# Calls that wait.

SEARCHES: JsonObject = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}}
WAITING = {
    "function": (LOOK, "look", {}, "function_call_output"),
    "custom": (PATCH, "apply_patch", {"input": "*** Begin"}, "custom_tool_call_output"),
    "tool_search": (SEARCHES, "tool_search", {"query": "q"}, "tool_search_output"),
}


@pytest.mark.parametrize(("tool", "name", "arguments", "kind"), WAITING.values(), ids=WAITING)
async def test_a_call_that_waits_is_answered_after_a_compaction(
    world: World, tool: JsonObject, name: str, arguments: JsonObject, kind: str
) -> None:
    """B089, B092: the call stands behind the summary as it was made, and its output follows it."""
    world.engine.play(text("Let me see.") + function_call(name, arguments, "call_1"), text("the summary"), text("Done."))
    asking = await world.turn(user("do it"), tools=[tool])
    made = next(item for item in asking.output if "call_id" in item)

    compacted = await world.turn(TRIGGER, previous_response_id=asking.id, tools=[tool])
    result = {"tools": [], "execution": "client"} if kind == "tool_search_output" else {"output": "seen"}
    answered = await world.turn({"type": kind, "call_id": made["call_id"], **result}, previous_response_id=compacted.id, tools=[tool])

    assert compacted.types == ["compaction"]
    assert answered.types == ["message"]
    assert kinds(world.engine.posts[1]) == ["user", "assistant", "user"]
    assert kinds(world.engine.posts[2]) == ["user", "user", "function_call", "function_call_output"]


@pytest.mark.parametrize("compacted_first", [True, False])
async def test_a_call_that_waits_for_approval_is_run_after_a_compaction(world: World, compacted_first: bool) -> None:
    """B092: what is approved is what was asked for, also when the turn that runs it compacts."""
    docs = server(require_approval="always")
    world.lister.tools_of["docs"] = listed("find")
    world.engine.play(function_call("docs__find", {"query": "q"}), text("the summary"), text("Done."), text("More."))
    asking = await world.turn(user("do it"), tools=[docs])
    assert asking.types == ["mcp_list_tools", "mcp_approval_request"]
    yes: JsonObject = {"type": "mcp_approval_response", "approval_request_id": asking.output[1]["id"], "approve": True}

    if compacted_first:
        compacted = await world.turn(TRIGGER, previous_response_id=asking.id, tools=[docs])
        turned = await world.turn(yes, previous_response_id=compacted.id, tools=[docs])
        assert turned.types == ["mcp_call", "message"]
        assert kinds(world.engine.posts[2]) == ["user", "user", "function_call", "function_call_output"]
    else:
        turned = await world.turn(yes, previous_response_id=asking.id, tools=[docs], context_management=over(1))
        assert turned.types == ["mcp_call", "compaction", "message"]
        assert kinds(world.engine.posts[2]) == ["user", "user"]
    await world.turn(user("more"), previous_response_id=turned.id, tools=[docs])
    assert [call.arguments for call in world.mcp.calls] == [{"query": "q"}]


async def test_answered_calls_of_all_kinds_go_into_the_summary_together(world: World) -> None:
    """B092."""
    tools = [LOOK, PATCH, SEARCH]
    world.engine.play(
        function_call("web_search", {"query": "q"}, "call_w"),
        function_call("look", {}, "call_l") + function_call("apply_patch", {"input": "p"}, "call_p"),
    )
    asking = await world.turn(user("do it"), tools=tools)
    outputs = [
        {"type": f"{str(item['type']).removesuffix('_call')}_call_output", "call_id": item["call_id"], "output": "ok"}
        for item in asking.output
        if "call_id" in item
    ]
    world.engine.play(text("the summary"), text("Done."), text("More."))

    turned = await world.turn(*outputs, previous_response_id=asking.id, tools=tools, context_management=over(20))
    await world.turn(user("more"), previous_response_id=turned.id)

    assert len(outputs) == 2
    assert turned.types == ["compaction", "message"]
    assert kinds(world.engine.posts[2]).count("function_call") == kinds(world.engine.posts[2]).count("function_call_output") == 3
    assert kinds(world.engine.posts[-1]) == ["user", "user", "assistant", "user"]


async def test_a_client_that_leaves_during_a_summary_leaves_the_chain_as_it_was(world: World, scribe: Scribe) -> None:
    """B098: nothing of the turn can be continued."""
    before = await world.turn(user("1"))
    world.engine.play(text("never said").hold_head(asyncio.Event()))
    leaving = asyncio.create_task(world.turn(user("2"), previous_response_id=before.id, context_management=over(1)))
    summing = await world.engine.request(1)

    leaving.cancel()

    with pytest.raises(asyncio.CancelledError):
        await leaving
    await summing.closed.wait()
    await world.turn(user("3"), previous_response_id=before.id)
    assert told(world.engine) == ["1", "re: 1", "3"]


async def test_tools_that_items_declared_are_there_after_a_compaction(world: World, scribe: Scribe) -> None:
    declared: JsonObject = {"type": "additional_tools", "role": "developer", "tools": [LOOK]}
    turned = await world.turn(declared, user("1"))
    for said in ("2", "3"):
        turned = await world.turn(user(said), previous_response_id=turned.id, context_management=over(1))
        assert [tool["name"] for tool in cast(list[JsonObject], world.engine.posts[-1].json["tools"])] == ["look"]


async def test_a_call_of_a_conversation_waits_through_a_compaction(world: World) -> None:
    """B089."""
    world.engine.play(function_call("look", {}, "call_1"), text("the summary"), text("Done."))
    talk = (await world.conversations.create("ada", b"{}", [])).id
    await world.turn(user("1"), conversation_id=talk, tools=[LOOK])
    await world.turn(TRIGGER, conversation_id=talk, tools=[LOOK])
    await world.turn({"type": "function_call_output", "call_id": "call_1", "output": "seen"}, conversation_id=talk, tools=[LOOK])
    assert kinds(world.engine.posts[-1]) == ["user", "user", "function_call", "function_call_output"]
