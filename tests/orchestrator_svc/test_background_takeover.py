"""Background turns whose process dies: another one goes on, shows nothing twice, and runs no call twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ToolCall, ToolResult
from tests.fakes.scripts import Script, function_call, reasoning, text
from tests.orchestrator_svc.background_turns import Queue, Started, open_queue
from tests.orchestrator_svc.tool_turns import LOOK, SEARCH, listed, say_so, server
from tests.orchestrator_svc.turns import HELLO

MORE: JsonObject = {"type": "message", "role": "user", "content": "go on"}
UNKNOWN = "Error: outcome_unknown."


@pytest.fixture
async def queue(queue_database: str) -> AsyncIterator[Queue]:
    async with open_queue(queue_database) as opened:
        opened.lister.tools_of["docs"] = listed("find", "write")
        yield opened


def find(n: int, call_id: str | None = None) -> Script:
    return function_call("docs__find", {"n": n}, call_id)


def kinds(response: JsonObject) -> list[tuple[str, object]]:
    """The items of a response: their types and statuses."""
    output = response["output"]
    assert isinstance(output, list)
    return [(item["type"], item.get("status")) for item in output]


def outputs_told(queue: Queue, request: int = -1) -> list[str]:
    """The outputs of calls that the engine was given in one request."""
    return [str(item["output"]) for item in queue.inputs()[request] if item["type"] == "function_call_output"]


async def never(call: ToolCall) -> ToolResult:
    await asyncio.Event().wait()
    raise AssertionError


async def killed_at_request(queue: Queue, number: int, *input: JsonObject, **fields: object) -> Started:
    """A turn whose process dies once the engine has got a request."""
    async with queue.process() as first:
        started = await first.start(*(input or (HELLO,)), **fields)
        await queue.engine.request(number)
        await first.kill()
    return started


async def test_a_process_dies_between_rounds_and_another_goes_on_with_the_next(queue: Queue) -> None:
    """A viewer that comes back sees every event once, no call is run again, and the engine is asked what it was asked before."""
    held = asyncio.Event()
    queue.engine.play(find(1), find(2), find(3).hold_head(held), find(3), text("Found."), text("More."))
    started = await killed_at_request(queue, 2, tools=[server()])
    before = await queue.seen(started, "response.mcp_call.completed", 2)
    async with queue.process() as second:
        seen = before + await queue.watched(started, behind=int(str(before[-1]["sequence_number"])))
        response = await queue.ended(started)

        assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
        assert seen == await queue.watched(started)
        assert kinds(response) == [("mcp_list_tools", None), *[("mcp_call", "completed")] * 3, ("message", "completed")]
        assert [call.arguments["n"] for call in queue.mcp.calls] == [1, 2, 3]
        inputs = queue.inputs()
        assert inputs[2] == inputs[3]
        await queue.world(second).turn(MORE, previous_response_id=started.id)
    assert queue.inputs()[-1][: len(inputs[-1])] == inputs[-1]
    assert len(queue.inputs()[-1]) == len(inputs[-1]) + 2


async def test_what_was_said_and_not_saved_stays_in_the_output_but_not_in_the_context(queue: Queue) -> None:
    held = asyncio.Event()
    partly = (reasoning("thought") + text("one two three four")).hold(held, before=13)
    queue.engine.play(find(1), partly, text("Found."), text("More."))
    async with queue.process() as first:
        started = await first.start(HELLO, tools=[server()])
        await queue.seen(started, "response.output_text.delta")
        await first.kill()
    async with queue.process() as second:
        response = await queue.ended(started, taken_over=True)
        assert kinds(response) == [
            ("mcp_list_tools", None),
            ("mcp_call", "completed"),
            ("reasoning", None),
            ("message", "incomplete"),
            ("message", "completed"),
        ]
        await queue.world(second).turn(MORE, previous_response_id=started.id)
    inputs = queue.inputs()
    assert inputs[1] == inputs[2]
    assert [item["type"] for item in inputs[3]] == ["message", "function_call", "function_call_output", "message", "message"]
    assert inputs[3][3]["content"] == [{"type": "output_text", "text": "Found."}]


async def test_a_turn_that_dies_before_its_first_save_starts_again(queue: Queue) -> None:
    held = asyncio.Event()
    queue.engine.play(text("one two three").hold(held, before=5), text("Hi."))
    async with queue.process() as first:
        started = await first.start(HELLO)
        await queue.seen(started, "response.output_text.delta")
        await first.kill()
    async with queue.process():
        response = await queue.ended(started, taken_over=True)
    assert kinds(response) == [("message", "incomplete"), ("message", "completed")]
    assert queue.inputs()[0] == queue.inputs()[1]


async def test_a_call_that_was_begun_is_not_begun_again(queue: Queue) -> None:
    """Whatever the engine names it the second time: nobody knows whether it has had its effect."""
    queue.mcp.answer = never
    queue.engine.play(find(1, "call_a"), find(1, "call_b"), text("Found."))
    async with queue.process() as first:
        started = await first.start(HELLO, tools=[server()])
        await queue.mcp.until(lambda: queue.mcp.running == 1)
        await queue.seen(started, "response.mcp_call_arguments.done")
        await first.kill()
    async with queue.process():
        response = await queue.ended(started, taken_over=True)
    assert len(queue.mcp.calls) == 1
    listing = ("mcp_list_tools", None)
    assert kinds(response) == [listing, ("mcp_call", "incomplete"), listing, ("mcp_call", "failed"), ("message", "completed")]
    [told] = outputs_told(queue)
    assert told.startswith(UNKNOWN)


async def test_a_call_that_only_reads_is_run_again(queue: Queue) -> None:
    queue.search.answer = never
    queue.engine.play(*[function_call("web_search", {"query": "x"})] * 2, text("Found."))
    async with queue.process() as first:
        started = await first.start(HELLO, tools=[SEARCH])
        await queue.search.until(lambda: queue.search.running == 1)
        await queue.seen(started, "response.web_search_call.searching")
        await first.kill()
    queue.search.answer = say_so
    async with queue.process():
        response = await queue.ended(started, taken_over=True)
    assert kinds(response) == [("web_search_call", "incomplete"), ("web_search_call", "completed"), ("message", "completed")]
    assert outputs_told(queue) == ["result of web_search"]


async def test_a_call_that_has_ended_gives_what_it_gave(queue: Queue) -> None:
    """Its process died before it could save the round; of two equal calls each has its own outcome."""

    async def counted(call: ToolCall) -> ToolResult:
        return ToolResult(f"outcome {len(queue.mcp.calls)}")

    queue.mcp.answer = counted
    both = function_call("docs__write", {"n": 1}, "call_a") + function_call("docs__write", {"n": 1}, "call_b")
    queue.engine.play(both, both, text("Written."))
    async with queue.process(max_parallel_calls=1) as first:
        saving = asyncio.Event()

        async def die() -> None:
            saving.set()
            await asyncio.Event().wait()

        first.caller.before["CommitTurn"] = die
        started = await first.start(HELLO, tools=[server()])
        await saving.wait()
        await first.kill()
    async with queue.process():
        await queue.ended(started, taken_over=True)
    assert len(queue.mcp.calls) == 2
    assert outputs_told(queue) == ["outcome 1", "outcome 2"]


async def test_a_clients_call_that_was_shown_and_not_saved_does_not_wait_for_its_output(queue: Queue) -> None:
    call = function_call("look", {}, "call_a")
    queue.engine.play(call, call, text("Seen."))
    async with queue.process() as first:
        first.caller.before["CommitTurn"] = asyncio.Event().wait  # type: ignore[assignment]
        started = await first.start(HELLO, tools=[LOOK])
        await queue.seen(started, "response.output_item.done")
        await first.kill()
    async with queue.process() as second:
        response = await queue.ended(started, taken_over=True)
        assert isinstance(response["output"], list)
        shown, asked = response["output"]
        assert shown["call_id"] == "call_a" != asked["call_id"]
        answer: JsonObject = {"type": "function_call_output", "call_id": asked["call_id"], "output": "seen"}
        await queue.world(second).turn(answer, previous_response_id=started.id)
    assert [item["type"] for item in queue.inputs()[-1]] == ["message", "function_call", "function_call_output"]


async def test_a_process_that_wakes_up_late_writes_nothing_more(queue: Queue) -> None:
    """It was away for so long that its lease has passed on; what it goes on to make is nobody's."""
    held = asyncio.Event()
    queue.engine.play(text("late").hold_head(held), text("Hi."))
    async with queue.process() as first:
        started = await first.start(HELLO)
        await queue.engine.request(0)
        first.caller.is_away = True
        async with queue.process():
            response = await queue.ended(started)
            first.caller.is_away = False
            held.set()
            await asyncio.gather(*first.turns._running.values())
        assert await queue.stored(started) == response
    assert [part["text"] for part in response["output"][0]["content"]] == ["Hi."]  # type: ignore[index]


async def test_a_turn_that_kills_every_process_is_given_up(queue: Queue) -> None:
    queue.engine.default = lambda received: text("never").hold_head(asyncio.Event())
    async with queue.process() as first:
        started = await first.start(HELLO)
        await queue.engine.request(0)
        await first.kill()
    for attempt in (1, 2):
        async with queue.process() as next_one:
            await queue.engine.request(attempt)
            await next_one.kill()
    async with queue.process():
        await queue.watched(started)
        response = await queue.stored(started)
    assert (response["status"], response["error"]["code"]) == ("failed", "too_many_attempts")  # type: ignore[index]


async def test_a_turn_is_cancelled_that_nobody_runs_any_more(queue: Queue) -> None:
    held = asyncio.Event()
    queue.engine.play(text("one two three").hold(held, before=5))
    started = await killed_at_request(queue, 0)
    await queue.cancel(started)
    async with queue.process():
        await queue.watched(started)
    assert (await queue.stored(started))["status"] == "cancelled"
    assert len(queue.engine.posts) == 1
