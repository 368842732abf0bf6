"""Background turns: queued, run by a process, logged, saved between rounds, cancelled, and refused at once where they are at fault."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from orchestrator_svc.errors import ConversationNotFound, HistoryUnavailable, InvalidRequest, PreviousResponseNotFound, ShuttingDown
from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ToolCall, ToolResult
from svckit.errors import RemoteError
from tests.fakes.scripts import function_call, status, text
from tests.orchestrator_svc.background_turns import Process, Queue, open_queue
from tests.orchestrator_svc.tool_turns import SEARCH, listed, server
from tests.orchestrator_svc.turns import HELLO
from turnkeep.history.v1 import history_pb2

MORE: JsonObject = {"type": "message", "role": "user", "content": "go on"}
OPENING = ["response.created", "response.queued", "response.in_progress"]


@pytest.fixture
async def queue(queue_database: str) -> AsyncIterator[Queue]:
    async with open_queue(queue_database) as opened:
        opened.lister.tools_of["docs"] = listed("find")
        yield opened


@pytest.fixture
async def process(queue: Queue) -> AsyncIterator[Process]:
    async with queue.process() as opened:
        yield opened


async def test_a_turn_is_queued_at_once_and_runs_by_itself(queue: Queue, process: Process) -> None:
    queue.engine.play(text("Hi."))
    started = await process.start(HELLO)
    assert (started.response["status"], started.response["background"], started.response["output"]) == ("queued", True, [])

    events = await queue.watched(started)
    assert [event["type"] for event in events[:3]] == OPENING
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]  # type: ignore[index]
    response = await queue.ended(started)
    assert (response["status"], response["created_at"]) == ("completed", started.response["created_at"])


async def test_a_turn_waits_for_a_process_that_runs_turns(queue: Queue) -> None:
    queue.engine.play(text("Hi."))
    async with queue.process(background_turns=0) as gate:
        started = await gate.start(HELLO)
        assert (await queue.stored(started))["status"] == "queued"
        async with queue.process():
            assert (await queue.ended(started))["status"] == "completed"


async def test_a_turn_goes_on_over_rounds_and_is_continued_like_any_other(queue: Queue, process: Process) -> None:
    """Each save adds to the one before: the next turn's input starts with the bytes of this one's."""
    queue.engine.play(*(function_call("docs__find", {"n": n}) for n in range(3)), text("Found."), text("More."))
    started = await process.start(HELLO, tools=[server()])
    response = await queue.ended(started)
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "mcp_call", "mcp_call", "message"]  # type: ignore[union-attr]
    assert process.caller.called.count("CommitTurn") == 4

    await queue.world(process).turn(MORE, previous_response_id=started.id)
    inputs = queue.inputs()
    for before, after in pairwise(inputs):
        assert after[: len(before)] == before
    assert [item["type"] for item in inputs[-1][:-2]] == ["message", *["function_call", "function_call_output"] * 3]


async def test_a_turn_in_a_conversation_is_appended_to_it(queue: Queue, process: Process) -> None:
    queue.engine.play(function_call("web_search", {"query": "x"}), text("Found."), text("Again."))
    id = f"conv_{'1' * 16}{'2' * 24}"
    conversation = history_pb2.CreateConversationRequest(owner="ada", conversation_id=id, metadata=b"{}", created_at=1)
    await queue.history.CreateConversation(conversation)
    started = await process.start(HELLO, tools=[SEARCH], conversation_id=id)
    assert (await queue.ended(started))["conversation"] == {"id": id}
    second = await process.start(HELLO, tools=[SEARCH], conversation_id=id)
    await queue.ended(second)
    assert [item["type"] for item in queue.inputs()[-1]] == ["message", "function_call", "function_call_output", "message", "message"]


async def test_what_a_turn_is_refused_with_comes_at_once(queue: Queue, process: Process) -> None:
    unknown = f"resp_{'1' * 16}{'2' * 24}"
    with pytest.raises(PreviousResponseNotFound):
        await process.start(HELLO, previous_response_id=unknown)
    with pytest.raises(ConversationNotFound):
        await process.start(HELLO, conversation_id="conv_1")
    with pytest.raises(InvalidRequest) as refused:
        await process.start(HELLO, store=False)
    assert refused.value.param == "store"


@pytest.mark.parametrize("secret", [{"authorization": "token"}, {"headers": {"X-Key": "key"}}])
async def test_credentials_are_stored_nowhere_so_a_turn_with_them_is_refused(process: Process, secret: JsonObject) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await process.start(HELLO, tools=[SEARCH, server(**secret)])
    assert refused.value.param == f"tools[1].{next(iter(secret))}"


async def test_an_owner_has_so_many_turns_waiting_and_no_more(queue_database: str) -> None:
    async with open_queue(queue_database, queue_limit=2) as queue, queue.process(background_turns=0) as process:
        await process.start(HELLO)
        await process.start(HELLO)
        with pytest.raises(RemoteError) as refused:
            await process.start(HELLO)
        assert refused.value.reason == "queue_full"
        assert (await process.start(HELLO, owner="bob")).response["status"] == "queued"


async def test_a_failing_engine_fails_the_turn_and_not_the_queue(queue: Queue, process: Process) -> None:
    queue.engine.play(status(429), text("Hi."))
    failed = await queue.ended(await process.start(HELLO))
    assert (failed["status"], failed["error"]["code"]) == ("failed", "rate_limit_exceeded")  # type: ignore[index]
    assert (await queue.ended(await process.start(HELLO)))["status"] == "completed"


async def test_a_turn_that_the_taking_process_cannot_read_fails_at_once(queue: Queue) -> None:
    tools: list[JsonObject] = [{"type": "mcp", "server_label": "configured"}]
    async with queue.process(background_turns=0) as gate:
        started = await gate.start(HELLO, tools=tools)
    async with queue.process(servers=frozenset()):
        response = await queue.ended(started)
    assert (response["status"], response["error"]["code"]) == ("failed", "invalid_request")  # type: ignore[index]
    assert response["tools"] == tools


async def test_a_turn_whose_parent_is_gone_when_it_starts_fails(queue: Queue, process: Process) -> None:
    queue.engine.play(text("Hi."))
    parent = await queue.world(process).turn(HELLO)
    async with queue.process(background_turns=0) as gate:
        held = asyncio.Event()
        process.caller.before["TakeTurn"] = held.wait  # type: ignore[assignment]
        await process.caller.until_called("TakeTurn", process.caller.called.count("TakeTurn") + 1)
        started = await gate.start(MORE, previous_response_id=parent.id)
        await queue.history.DeleteResponse(history_pb2.DeleteResponseRequest(owner="ada", response_id=parent.id))
        held.set()
        response = await queue.ended(started)
    assert (response["status"], response["error"]["code"]) == ("failed", "previous_response_not_found")  # type: ignore[index]


async def test_processes_share_the_work_and_no_turn_runs_twice(queue: Queue) -> None:
    async with queue.process(background_turns=2) as one, queue.process(background_turns=2) as other:
        started = [await process.start(HELLO) for _ in range(6) for process in (one, other)]
        responses = await asyncio.gather(*map(queue.ended, started))
    assert {response["status"] for response in responses} == {"completed"}
    assert len(queue.engine.posts) == 12
    assert queue.engine.most_in_flight <= 4


# Cancelling.


async def test_a_waiting_turn_is_cancelled_at_once(queue: Queue) -> None:
    async with queue.process(background_turns=0) as gate:
        started = await gate.start(HELLO)
        assert await queue.cancel(started) == "cancelled"
        assert await queue.watched(started) == []
        async with queue.process() as process:
            await process.caller.until_called("TakeTurn")
    assert queue.engine.posts == []


async def test_a_running_turn_is_cancelled_through_any_process(queue: Queue, process: Process) -> None:
    """What the model has said by then stays, incomplete, and there is no terminal event."""
    held = asyncio.Event()
    queue.engine.play(text("one two three four").hold(held, before=6))
    started = await process.start(HELLO)
    await queue.seen(started, "response.output_text.delta")
    assert await queue.cancel(started) == "in_progress"

    events = await queue.watched(started)
    assert events[-1]["type"] == "response.output_item.done"
    [item] = (await queue.stored(started))["output"]  # type: ignore[misc]
    assert (item, item["status"]) == (events[-1]["item"], "incomplete")
    assert (await queue.stored(started))["status"] == "cancelled"
    assert await queue.cancel(started) == "cancelled"
    await queue.engine.posts[0].finished.wait()


async def test_a_turn_is_cancelled_while_its_tool_runs(queue: Queue, process: Process) -> None:
    async def never(call: ToolCall) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    queue.search.answer = never
    queue.engine.play(function_call("web_search", {"query": "x"}))
    started = await process.start(HELLO, tools=[SEARCH])
    await queue.search.until(lambda: queue.search.running == 1)
    await queue.cancel(started)
    await queue.search.until(lambda: queue.search.ended == ["cancelled"])
    assert (await queue.watched(started))[-1]["item"]["status"] == "incomplete"  # type: ignore[index]
    assert (await queue.stored(started))["status"] == "cancelled"


async def test_a_cancel_that_comes_while_a_round_is_saved_is_heard_after_it(queue: Queue, process: Process) -> None:
    queue.engine.play(function_call("web_search", {"query": "x"}))
    saving, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        saving.set()
        await go_on.wait()

    process.caller.before["CommitTurn"] = hold
    started = await process.start(HELLO, tools=[SEARCH])
    await saving.wait()
    await queue.cancel(started)
    await process.caller.until_called("KeepTurn", process.caller.called.count("KeepTurn") + 2)
    go_on.set()
    await queue.watched(started)
    response = await queue.stored(started)
    assert (response["status"], [item["status"] for item in response["output"]]) == ("cancelled", ["completed"])  # type: ignore[union-attr]
    assert len(queue.engine.posts) == 1


async def test_a_turn_that_has_ended_is_not_cancelled(queue: Queue, process: Process) -> None:
    started = await process.start(HELLO)
    response = await queue.ended(started)
    assert await queue.cancel(started) == "completed"
    assert await queue.stored(started) == response


# A history that is away, and a process that stops.


async def test_a_store_that_is_away_for_a_while_costs_a_turn_nothing(queue: Queue, process: Process) -> None:
    held = asyncio.Event()
    queue.engine.play(function_call("web_search", {"query": "x"}).hold(held, before=2), text("Found."))
    started = await process.start(HELLO, tools=[SEARCH])
    await queue.seen(started, "response.in_progress")
    process.caller.is_away = True
    held.set()
    await process.caller.until_called("AppendEvents", process.caller.called.count("AppendEvents") + 2)
    with pytest.raises((HistoryUnavailable, RemoteError)):
        await process.start(HELLO)
    process.caller.is_away = False
    assert (await queue.ended(started))["status"] == "completed"
    assert queue.search.names == ["web_search"]


async def test_a_process_that_stops_lets_its_turns_end(queue: Queue) -> None:
    held = asyncio.Event()
    queue.engine.play(text("Hi.").hold(held, before=4))
    async with queue.process(drain_seconds=20.0) as process:
        started = await process.start(HELLO)
        await queue.engine.request(0)
        drain = asyncio.create_task(process.turns.drain())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await process.start(HELLO)
        held.set()
        await drain
        assert (await queue.ended(started))["status"] == "completed"


async def test_a_process_that_may_not_wait_gives_its_turns_back(queue: Queue) -> None:
    """Another process goes on at once, without waiting for the lease to run out, and the attempt does not count."""
    held = asyncio.Event()
    queue.engine.play(function_call("web_search", {"query": "x"}), text("never").hold(held, before=4), text("Found."))
    async with queue.process(background_lease_seconds=600.0) as process:
        started = await process.start(HELLO, tools=[SEARCH])
        await queue.engine.request(1)
        await process.turns.drain()
    async with queue.process(background_lease_seconds=600.0):
        response = await queue.ended(started, taken_over=True)
    assert (response["status"], queue.search.names) == ("completed", ["web_search"])
    assert queue.inputs()[1] == queue.inputs()[2]
