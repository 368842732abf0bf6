"""Turns at the desk: saved before they are told, stored whoever leaves, refused for what they continue from, stopped at shutdown."""

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import grpc
import msgspec
import pytest

from orchestrator_svc.errors import (
    EngineRateLimited,
    EngineTimeout,
    HistoryUnavailable,
    InvalidRequest,
    Overloaded,
    PreviousResponseNotFound,
    RequestTooLarge,
    ResponseNotContinuable,
    ResponseNotFinished,
    ShuttingDown,
)
from orchestrator_svc.items import JsonObject
from orchestrator_svc.turn.actions import Batch
from svckit.errors import RemoteError
from svckit.ids import IdBlock, tree_key_of
from tests.fakes.engine import Received
from tests.fakes.scripts import function_call, message_and_call, reasoning, status, text
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.house import STATUSES, Conflict, Incomplete, Unavailable, fails, open_house, soon
from tests.orchestrator_svc.turns import HELLO, WEATHER

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def user(words: str) -> JsonObject:
    return {"role": "user", "content": words}


def output_of(response: JsonObject) -> list[JsonObject]:
    output = response["output"]
    assert isinstance(output, list)
    return output


def code_of(response: JsonObject) -> object:
    error = response["error"]
    assert isinstance(error, dict)
    return error["code"]


def input_bytes(post: Received) -> bytes:
    """The elements of the input array that the engine got."""
    return post.body.partition(b'"input":[')[2].removesuffix(b"]}")


# Saved, then told.


async def test_the_terminal_event_waits_for_the_save_b004_b006_b012() -> None:
    async with open_house() as house:
        may_save, told = asyncio.Event(), list[str]()
        house.history.before_save = [may_save.wait]  # type: ignore[list-item]

        async def read() -> None:
            async for batch in house.respond():
                told.extend(event.type for event in batch.events)

        reading = asyncio.create_task(read())
        await soon(house.history.saving.wait())
        assert told[-1] == "response.output_item.done"
        may_save.set()
        await soon(reading)

        assert told[-1] == "response.completed"


async def test_what_is_stored_is_what_was_told() -> None:
    async with open_house() as house:
        house.engine.play(reasoning("Hm.") + text("Hi"))
        response = await house.response()

        assert house.history.body(response["id"]) == response


async def test_a_turn_that_is_not_stored_leaves_nothing() -> None:
    async with open_house() as house:
        first = await house.response()
        second = await house.response(user("more"), previous_response_id=first["id"], store=False)

        assert second["status"] == "completed"
        assert second["previous_response_id"] == first["id"]
        assert [commit.response_id for commit in house.history.asked] == [first["id"]]
        assert len(house.engine.posts[1].input) == 3


async def test_an_engine_that_refuses_leaves_nothing_b041_b103() -> None:
    async with open_house() as house:
        house.engine.play(status(429, headers={"Retry-After": "7"}))
        with pytest.raises(EngineRateLimited) as caught:
            await house.events()

        assert caught.value.headers == {"retry-after": "7"}
        assert house.history.asked == []


async def test_a_save_without_an_answer_is_made_again_with_the_same_id_b132_b133() -> None:
    async with open_house() as house:
        house.history.before_save = [fails(Unavailable())]
        house.history.after_save = [fails(Unavailable())]
        response = await house.response()

        first, *again = house.history.asked
        assert response["status"] == "completed"
        assert len(again) == 2
        assert all(commit == first for commit in again)
        assert len(first.content_hash) == 32


@pytest.mark.parametrize("error", [RuntimeError("planted"), asyncio.CancelledError()], ids=["crash", "cancelled"])
async def test_a_save_that_nobody_knows_of_is_told_as_such_b130(error: Exception) -> None:
    async with open_house() as house:
        house.history.after_save = [fails(error)]
        response = await house.response()

        assert code_of(response) == "storage_outcome_unknown"
        assert "planted" not in str(response)
        assert [item["status"] for item in output_of(response)] == ["completed"]


async def test_a_save_that_never_answers_is_told_as_unknown() -> None:
    async with open_house(commit_timeout_seconds=0.2) as house:
        house.history.before_save = [asyncio.Event().wait]  # type: ignore[list-item]

        assert code_of(await house.response()) == "storage_outcome_unknown"


async def test_a_save_that_is_refused_fails_the_response_b018() -> None:
    async with open_house() as house:
        house.history.before_save = [fails(Conflict())]
        response = await house.response()

        assert code_of(response) == "storage_failed"
        assert len(house.history.asked) == 1
        with pytest.raises(PreviousResponseNotFound):
            await house.events(previous_response_id=response["id"])


# Chains.


async def test_a_chain_gives_the_engine_everything_once_and_in_order_b001_b003_b016() -> None:
    async with open_house() as house:
        house.engine.play(
            reasoning("Hm.") + message_and_call("Let me look.", "weather", {"city": "Rome"}, "call_1"), text("65F."), text("It said 65F.")
        )
        first = await house.response(user("weather?"), tools=[WEATHER])
        answer: JsonObject = {"type": "function_call_output", "call_id": "call_1", "output": "65F  foggy"}
        second = await house.response(answer, previous_response_id=first["id"], tools=[WEATHER])
        await house.response(user("what did it say?"), previous_response_id=second["id"])

        kinds = [item.get("role", item["type"]) for item in house.engine.posts[2].input]
        assert kinds == ["user", "reasoning", "assistant", "function_call", "function_call_output", "assistant", "user"]
        assert house.engine.posts[2].input[4] == answer
        assert [post.refused for post in house.engine.posts] == [None, None, None]


async def test_each_input_starts_with_the_bytes_of_the_one_before() -> None:
    async with open_house() as house:
        house.engine.play(*(text(f"answer {n} é🍸") for n in range(4)))
        response = await house.response(user("0"))
        for n in range(1, 4):
            response = await house.response(user(str(n)), previous_response_id=response["id"])

        inputs = [input_bytes(post) for post in house.engine.posts]
        for before, now in itertools.pairwise(inputs):
            assert now.startswith(before + b",")


async def test_a_continuation_is_in_its_parent_s_tree() -> None:
    async with open_house() as house:
        first = await house.response()
        second = await house.response(user("more"), previous_response_id=first["id"])
        (_, commit) = house.history.asked

        assert tree_key_of(str(first["id"])) == tree_key_of(str(second["id"]))
        assert {tree_key_of(new.item.id) for new in commit.items} == {tree_key_of(str(first["id"]))}
        assert commit.parent_response_id == first["id"]
        assert commit.base_response_id == ""


async def test_a_full_tree_is_continued_in_a_new_one() -> None:
    async with open_house() as house:
        first = await house.response()
        house.history.stored["ada", str(first["id"])].tree_full = True
        second = await house.response(user("more"), previous_response_id=first["id"])
        (_, commit) = house.history.asked

        assert tree_key_of(str(first["id"])) != tree_key_of(str(second["id"]))
        assert (commit.parent_response_id, commit.base_response_id) == (first["id"], first["id"])


@pytest.mark.parametrize("cut", [False, True])
async def test_a_turn_without_input_continues_from_its_parent_b013(cut: bool) -> None:
    async with open_house() as house:
        house.engine.play(text("Once upon").incomplete() if cut else text("Yes."), text("a time."))
        first = await house.response()
        second = await house.response(previous_response_id=first["id"])

        assert first["status"] == ("incomplete" if cut else "completed")
        assert second["status"] == "completed"
        assert len(house.engine.posts[1].input) == 2


async def test_a_call_that_was_cut_does_not_spoil_the_chain_b056_b068() -> None:
    async with open_house() as house:
        house.engine.play(function_call("weather", '{"city": "Ro', "call_1").incomplete(), text("Go on."))
        first = await house.response(tools=[WEATHER])
        second = await house.response(user("go on"), previous_response_id=first["id"])

        assert (first["status"], second["status"]) == ("incomplete", "completed")
        assert house.engine.posts[1].refused is None


async def test_arguments_that_are_no_json_do_not_spoil_the_chain_b056() -> None:
    async with open_house() as house:
        house.engine.play(function_call("weather", '{"city": "Ro', "call_1"), text("Go on."))
        first = await house.response(tools=[WEATHER])
        answer: JsonObject = {"type": "function_call_output", "call_id": "call_1", "output": "what?"}
        await house.response(answer, previous_response_id=first["id"])

        assert output_of(first)[0]["arguments"] == '{"city": "Ro'
        assert house.engine.posts[1].refused is None


# What cannot be continued.


@pytest.mark.parametrize("state", ["queued", "in_progress"])
async def test_a_parent_that_still_runs_is_waited_for(state: str) -> None:
    async with open_house() as house:
        first = await house.response()
        house.history.stored["ada", str(first["id"])].status = STATUSES[state]
        with pytest.raises(ResponseNotFinished) as caught:
            await house.events(user("more"), previous_response_id=first["id"])

        assert (caught.value.status, caught.value.param) == (grpc.StatusCode.ABORTED, "previous_response_id")
        assert len(house.engine.posts) == 1


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_parent_that_did_not_end_well_names_its_own_parent(state: str) -> None:
    async with open_house() as house:
        first = await house.response()
        second = await house.response(user("more"), previous_response_id=first["id"])
        for response, instead in ((second, str(first["id"])), (first, "the start")):
            house.history.stored["ada", str(response["id"])].status = STATUSES[state]
            with pytest.raises(ResponseNotContinuable) as caught:
                await house.events(user("more"), previous_response_id=response["id"])

            assert caught.value.param == "previous_response_id"
            assert instead in caught.value.message
        assert len(house.engine.posts) == 2


UNKNOWN = ["resp_1", "", " ", "resp_" + "f" * 40, IdBlock(5, 5).id("resp"), "x" * 5000, "../../x", "resp_\u0661" + "0" * 39]


@pytest.mark.parametrize("response_id", [id for id in UNKNOWN if id], ids=range(len(UNKNOWN) - 1))
async def test_a_parent_that_is_not_there_is_not_found(response_id: str) -> None:
    async with open_house() as house:
        with pytest.raises(PreviousResponseNotFound) as caught:
            await house.events(user("more"), previous_response_id=response_id)

        assert caught.value.param == "previous_response_id"
        assert house.engine.posts == []


async def test_a_history_with_holes_is_no_history_b010() -> None:
    async with open_house() as house:
        first = await house.response()
        house.history.before_load = [fails(Incomplete())]
        with pytest.raises(RemoteError) as caught:
            await house.events(user("more"), previous_response_id=first["id"])

        assert (caught.value.status, caught.value.reason) == (grpc.StatusCode.DATA_LOSS, "history_incomplete")
        assert len(house.engine.posts) == 1


async def test_a_history_that_comes_back_in_time_is_read_b133() -> None:
    async with open_house() as house:
        first = await house.response()
        house.history.before_load = [fails(Unavailable()), fails(Unavailable())]

        assert (await house.response(user("more"), previous_response_id=first["id"]))["status"] == "completed"


async def test_a_history_that_is_not_there_is_named() -> None:
    async with open_house(load_timeout_seconds=0.2) as house:
        first = await house.response()
        house.history.before_load = [asyncio.Event().wait]  # type: ignore[list-item]
        with pytest.raises(HistoryUnavailable):
            await house.events(user("more"), previous_response_id=first["id"])


@pytest.mark.parametrize(
    "input",
    [
        (),
        (user("more"),),
        ({"type": "function_call_output", "call_id": "call_2", "output": ""},),
        (
            {"type": "function_call_output", "call_id": "call_1", "output": ""},
            {"type": "function_call_output", "call_id": "call_1", "output": ""},
        ),
    ],
    ids=["nothing", "a message", "another call's output", "two outputs"],
)
async def test_an_open_call_wants_its_one_output(input: tuple[JsonObject, ...]) -> None:
    async with open_house() as house:
        house.engine.play(function_call("weather", {}, "call_1"))
        first = await house.response(tools=[WEATHER])
        with pytest.raises(InvalidRequest) as caught:
            await house.events(*input, previous_response_id=first["id"])

        assert caught.value.param == "input"
        assert "call_" in caught.value.message
        assert len(house.engine.posts) == 1


# The client leaves.


async def test_a_client_that_leaves_while_waiting_cancels_its_turn_b114() -> None:
    async with open_house() as house:
        house.engine.play(text("Hi").hold_head(asyncio.Event()))
        client = house.start()
        post = await house.engine.request(0)
        client.cancel()
        await soon(house.history.saved.wait())
        await asyncio.wait_for(post.closed.wait(), 1)

        (commit,) = house.history.asked
        assert commit.status == STATUSES["cancelled"]
        assert len(commit.items) == commit.input_count == 1


@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_a_client_that_leaves_while_reading_cancels_its_turn_b114(way: str) -> None:
    async with open_house() as house:
        house.engine.play(text("Hi there").hold(asyncio.Event(), before=6))
        post, begun = asyncio.create_task(house.engine.request(0)), asyncio.Event()
        batches = house.respond()

        async def read() -> None:
            async for batch in batches:
                if any(event.type == "response.output_text.delta" for event in batch.events):
                    begun.set()
                    if way == "close":
                        return

        client = asyncio.create_task(read())
        await soon(begun.wait())
        client.cancel()
        await asyncio.wait({client})
        await batches.aclose()
        await soon(house.history.saved.wait())
        await asyncio.wait_for((await post).closed.wait(), 1)

        (commit,) = house.history.asked
        assert commit.status == STATUSES["cancelled"]
        last = msgspec.json.decode(commit.items[-1].item.body)
        assert last["status"] == "incomplete"
        assert last["content"][0]["text"].startswith("Hi")


async def test_a_client_that_leaves_while_its_turn_is_saved_changes_nothing_b125() -> None:
    async with open_house() as house:
        may_save = asyncio.Event()
        house.history.before_save = [may_save.wait]  # type: ignore[list-item]
        client = house.start()
        await soon(house.history.saving.wait())
        client.cancel()
        await asyncio.wait({client})
        may_save.set()
        await soon(house.history.saved.wait())

        (commit,) = house.history.asked
        assert client.cancelled()
        assert commit.status == STATUSES["completed"]


@pytest.mark.parametrize("later", [0.0, 0.01, 0.02])
async def test_a_client_that_leaves_while_the_engine_is_hung_up_on_loses_nothing_b125(later: float) -> None:
    async with open_house() as house:
        house.engine.play(replace(text("Hi"), ending="hang"))
        said = asyncio.Event()

        async def read() -> None:
            async for batch in house.respond():
                if "response.output_item.done" in [event.type for event in batch.events]:
                    said.set()

        client = asyncio.create_task(read())
        await soon(said.wait())
        await asyncio.sleep(later)
        client.cancel()
        await asyncio.wait({client})
        await soon(house.history.saved.wait())

        assert [commit.status for commit in house.history.asked] == [STATUSES["completed"]]


async def test_a_client_that_leaves_at_the_terminal_event_has_a_completed_turn() -> None:
    """Codex closes its connection right there."""
    async with open_house() as house:
        batches = house.respond()
        async for batch in batches:
            if batch.events[-1].type in TERMINAL:
                break
        await batches.aclose()

        assert [commit.status for commit in house.history.asked] == [STATUSES["completed"]]


# Limits.


async def test_more_turns_than_allowed_are_turned_away() -> None:
    async with open_house(max_turns=1) as house:
        house.engine.play(text("Hi").hold_head(asyncio.Event()))
        house.start()
        await house.engine.request(0)
        with pytest.raises(Overloaded) as caught:
            await house.events()

        assert caught.value.headers == {"retry-after": "1"}


async def test_a_context_that_is_too_large_is_refused() -> None:
    async with open_house(max_context_bytes=400) as house:
        first = await house.response(user("x" * 200))
        with pytest.raises(RequestTooLarge):
            await house.events(user("x" * 100), previous_response_id=first["id"])
        with pytest.raises(RequestTooLarge):
            await house.events(user("x" * 400))

        assert len(house.engine.posts) == 1


async def test_an_engine_that_takes_its_time_does_not_keep_the_client_waiting() -> None:
    async with open_house(first_event_grace_seconds=0.05) as house:
        may_answer = asyncio.Event()
        house.engine.play(text("Hi").hold_head(may_answer))
        batches = house.respond()
        first = await anext(batches)
        may_answer.set()
        rest = [event.type async for batch in batches for event in batch.events]

        assert [event.type for event in first.events] == ["response.created", "response.in_progress"]
        assert rest[-1] == "response.completed"


async def test_an_engine_that_fails_after_the_grace_fails_the_response() -> None:
    async with open_house(first_event_grace_seconds=0.05) as house:
        may_answer = asyncio.Event()
        house.engine.play(status(500).hold_head(may_answer))
        batches = house.respond()
        await anext(batches)
        may_answer.set()
        (last,) = [event async for batch in batches for event in batch.events]

        assert last.type == "response.failed"
        assert [commit.status for commit in house.history.asked] == [STATUSES["failed"]]


async def test_a_turn_that_takes_too_long_has_failed() -> None:
    async with open_house(turn_timeout_seconds=0.3) as house:
        house.engine.play(text("one two three").hold(asyncio.Event(), before=6))
        response = await house.response()

        assert code_of(response) == "turn_timeout"
        assert house.history.body(response["id"]) == response
        await asyncio.wait_for(house.engine.posts[0].closed.wait(), 1)


async def test_a_turn_that_never_began_is_refused_when_its_time_is_up() -> None:
    async with open_house(turn_timeout_seconds=0.1) as house:
        house.engine.play(text("Hi").hold_head(asyncio.Event()))
        with pytest.raises(EngineTimeout):
            await house.events()

        assert house.history.asked == []


# Text that is handed over the moment it comes.


class Listener:
    """Takes batches while it may; `events` is all that a turn has told, in the order in which it came, handed over or not."""

    is_open = True

    def __init__(self, takes: Callable[[int], bool] = lambda number: True) -> None:
        self.events: list[JsonObject] = []
        self.taken = asyncio.Event()
        self.handed: list[JsonObject] = []
        self._takes = takes
        self._offers = itertools.count()

    def __call__(self, batch: Batch) -> bool:
        if not self._takes(next(self._offers)):
            return False
        told = [msgspec.json.decode(event.data) for event in batch.events]
        self.events += told
        self.handed += told
        self.taken.set()
        return True

    async def hear(self, batches: AsyncGenerator[Batch, None]) -> None:
        async with aclosing(batches):
            async for batch in batches:
                self.events += [msgspec.json.decode(event.data) for event in batch.events]


WORDS = "a b č d 日 f 🍸 h"


@pytest.mark.parametrize("every", [1, 2, 3, 100])
async def test_what_is_handed_over_and_what_is_not_comes_in_one_order(every: int) -> None:
    listener = Listener(lambda number: number % every == 0)
    async with open_house() as house:
        script = (
            reasoning("Well, well, well.") + text(WORDS, deltas=re.findall(r"\S ?", WORDS)) + function_call("weather", {"city": "Rome"})
        )
        house.engine.play(script.paced(0.005))
        await soon(listener.hear(house.respond(hand_over=listener, tools=[WEATHER])))

        check_stream(listener.events)
        assert house.history.body(listener.events[-1]["response"]["id"]) == listener.events[-1]["response"]  # type: ignore[index]
    deltas = [event for event in listener.events if str(event["type"]).endswith("output_text.delta")]
    assert "".join(str(event["delta"]) for event in deltas) == WORDS
    assert len(listener.handed) >= (5 if every == 1 else 1)
    assert {event["type"] for event in listener.handed} <= {
        "response.reasoning_text.delta",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
    }


async def test_a_listener_that_does_not_listen_is_offered_nothing() -> None:
    listener = Listener()
    listener.is_open = False
    async with open_house() as house:
        house.engine.play(text(WORDS, deltas=re.findall(r"\S ?", WORDS)).paced(0.005))
        await soon(listener.hear(house.respond(hand_over=listener)))

        check_stream(listener.events)
    assert listener.handed == []


async def test_a_turn_that_only_hands_over_still_has_a_deadline() -> None:
    listener = Listener()
    async with open_house(turn_timeout_seconds=1.0) as house:
        house.engine.play(text(WORDS, deltas=re.findall(r"\S ?", WORDS)).paced(0.01).hold(asyncio.Event(), before=9))
        await soon(listener.hear(house.respond(hand_over=listener)))
        check_stream(listener.events)
        await soon(house.engine.posts[0].closed.wait())

        last = listener.events[-1]["response"]
        assert isinstance(last, dict)
        assert code_of(last) == "turn_timeout"
        assert house.history.body(last["id"]) == last
        (item,) = output_of(last)
        assert WORDS.startswith(item["content"][0]["text"])  # type: ignore[index]
        assert listener.handed


async def test_an_output_that_grows_too_large_while_it_is_handed_over_is_cut() -> None:
    listener = Listener()
    async with open_house(max_output_chars=6) as house:
        house.engine.play(text(WORDS, deltas=re.findall(r"\S ?", WORDS)).paced(0.01))
        await soon(listener.hear(house.respond(hand_over=listener)))
        check_stream(listener.events)

    assert listener.events[-1]["type"] != "response.completed"
    assert listener.handed


async def test_what_was_handed_over_is_stored_when_the_client_leaves() -> None:
    listener = Listener()
    async with open_house() as house:
        house.engine.play(text(WORDS, deltas=re.findall(r"\S ?", WORDS)).paced(0.01).hold(asyncio.Event(), before=9))
        batches = house.respond(hand_over=listener)
        hearing = asyncio.create_task(listener.hear(batches))
        while len(listener.handed) < 3:
            await soon(listener.taken.wait())
            listener.taken.clear()
        hearing.cancel()
        await asyncio.wait({hearing})
        await soon(house.history.saved.wait())
        (commit,) = house.history.asked
        told = "".join(str(event["delta"]) for event in listener.events if "delta" in event)
        await soon(house.engine.posts[0].closed.wait())

    assert commit.status == STATUSES["cancelled"]
    assert told
    assert told.encode() in commit.items[-1].item.body


@pytest.mark.parametrize("error", [ZeroDivisionError(), ConnectionResetError()])
async def test_a_listener_that_fails_ends_the_turn_as_one_that_leaves(error: Exception) -> None:
    def fail(number: int) -> bool:
        if number == 3:
            raise error
        return True

    listener = Listener(fail)
    async with open_house() as house:
        house.engine.play(text(WORDS, deltas=re.findall(r"\S ?", WORDS)).paced(0.01))
        with pytest.raises(type(error)):
            await soon(listener.hear(house.respond(hand_over=listener)))
        await soon(house.engine.posts[0].closed.wait())
        await soon(house.history.saved.wait())
        (commit,) = house.history.asked
        told = "".join(str(event["delta"]) for event in listener.events if "delta" in event)

    assert commit.status == STATUSES["cancelled"]
    assert msgspec.json.encode(told) in commit.items[-1].item.body


# Shutdown.


async def test_a_drain_waits_for_turns_and_takes_no_more() -> None:
    async with open_house(drain_seconds=30.0) as house:
        may_go_on = asyncio.Event()
        house.engine.play(text("Hi there").hold(may_go_on, before=6))
        client = house.start()
        await house.engine.request(0)
        draining = asyncio.create_task(house.orchestrator.desk.drain())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await house.events()
        may_go_on.set()
        events = await asyncio.wait_for(client, 10)
        await soon(draining)

        assert events[-1]["type"] == "response.completed"


async def test_a_turn_that_outlasts_the_drain_is_stored_as_failed() -> None:
    async with open_house(first_event_grace_seconds=0.0) as house:
        house.engine.play(text("Hi there").hold(asyncio.Event(), before=6))
        client = house.start()
        await house.engine.request(0)
        await soon(house.orchestrator.desk.drain())
        response = (await client)[-1]["response"]
        assert isinstance(response, dict)

        assert code_of(response) == "server_shutdown"
        assert house.history.body(response["id"]) == response


async def test_a_turn_that_has_not_begun_when_the_drain_ends_is_refused() -> None:
    async with open_house() as house:
        house.engine.play(text("Hi").hold_head(asyncio.Event()))
        client = house.start()
        await house.engine.request(0)
        await soon(house.orchestrator.desk.drain())
        with pytest.raises(ShuttingDown):
            await client

        assert house.history.asked == []


async def test_a_turn_that_is_loading_when_the_drain_ends_is_refused() -> None:
    async with open_house() as house:
        first = await house.response()
        house.history.loading.clear()
        house.history.before_load = [asyncio.Event().wait]  # type: ignore[list-item]
        client = house.start(user("more"), previous_response_id=first["id"])
        await soon(house.history.loading.wait())
        await soon(house.orchestrator.desk.drain())

        with pytest.raises(ShuttingDown):
            await client


async def test_a_turn_that_is_being_saved_when_the_drain_ends_is_told() -> None:
    async with open_house() as house:
        may_save = asyncio.Event()
        house.history.before_save = [may_save.wait]  # type: ignore[list-item]
        client = house.start()
        await soon(house.history.saving.wait())
        draining = asyncio.create_task(house.orchestrator.desk.drain())
        await asyncio.wait({draining}, timeout=0.05)
        may_save.set()
        events = await asyncio.wait_for(client, 10)
        await soon(draining)

        assert events[-1]["type"] == "response.completed"
        assert [commit.status for commit in house.history.asked] == [STATUSES["completed"]]


async def test_the_desk_is_left_only_when_everything_is_stored() -> None:
    """A client that left just before the shutdown loses nothing."""
    async with open_house() as house:
        house.engine.play(text("Hi there").hold(asyncio.Event(), before=6))
        batches = house.respond()
        await anext(batches)
        await batches.aclose()

    assert [commit.status for commit in house.history.asked] == [STATUSES["cancelled"]]


async def test_a_hello_is_enough() -> None:
    async with open_house() as house:
        assert (await house.response(HELLO))["status"] == "completed"
