"""The stream checker itself: it takes good streams and refuses each kind of broken one."""

import copy
import itertools
import json
from collections.abc import Callable

import aiohttp
import pytest

from tests.fakes.answers import OPENAI, Answer, Json, response_events
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, function_call, item, reasoning, refusal, stream_bytes, text, texts
from tests.fakes.streams import (
    DONE,
    HEARTBEAT,
    StreamFault,
    check_item_list,
    check_response,
    check_stream,
    check_writes,
    normalised,
    read_sse,
    read_writes,
)

Events = list[Json]
CITED = text("see here", annotations=[{"type": "url_citation", "url": "http://x", "title": "x", "start_index": 0, "end_index": 3}])
CUSTOM = item({"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": ""})
EVERYTHING = (
    reasoning("let me think", summary=["short", "shorter"])
    + CITED
    + function_call("look", {"q": "x y"}, "call_1")
    + refusal("no I will not")
)
WHOLE: Json = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_tool_calls": None,
    "metadata": {},
    "store": True,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "text": {"format": {"type": "text"}},
    "service_tier": "default",
}


def good(script: Script = EVERYTHING) -> Events:
    """A stream as a gateway sends it: OpenAI's dialect, all 31 keys, cached tokens counted both ways."""
    count = itertools.count()
    assert isinstance(script.answer, Answer)
    events = response_events(script.answer, {"model": "m"}, OPENAI, lambda prefix: f"{prefix}_{next(count)}")
    for event in events:
        if isinstance(response := event.get("response"), dict):
            response |= WHOLE
            if isinstance(usage := response["usage"], dict):
                usage["input_tokens_details"] = {"cached_tokens": 0, "cache_write_tokens": 0}
    return json.loads(json.dumps(events))


def at(events: Events, kind: str, nth: int = 0) -> Json:
    return [event for event in events if event["type"] == f"response.{kind}"][nth]


def without(events: Events, kind: str, nth: int = 0) -> None:
    events.remove(at(events, kind, nth))
    renumber(events)


def renumber(events: Events) -> None:
    for number, event in enumerate(events):
        event["sequence_number"] = number


def repeat(events: Events, kind: str, nth: int = 0) -> None:
    event = at(events, kind, nth)
    events.insert(events.index(event), copy.deepcopy(event))
    renumber(events)


def swap(events: Events, first: int, second: int) -> None:
    events[first], events[second] = events[second], events[first]
    renumber(events)


def final(events: Events) -> Json:
    return events[-1]["response"]


@pytest.mark.parametrize(
    "script",
    [
        text("hello"),
        texts("two parts", "of one message"),
        EVERYTHING,
        text("cut here").incomplete(),
        (text("so far") + function_call("look", {}, "c")).failed(),
        text("oh").failed(error_event=True),
        text("hi") + item({"type": "mcp_approval_request", "server_label": "docs", "name": "look", "arguments": "{}"}),
    ],
)
def test_good_streams_pass_and_give_their_response(script: Script) -> None:
    events = good(script)
    assert check_stream(events) == events[-1]["response"]
    assert check_response(final(events)) == final(events)


BROKEN: dict[str, Callable[[Events], object]] = {
    "no created": lambda events: without(events, "created"),
    "in_progress first": lambda events: swap(events, 0, 1),
    "created twice": lambda events: repeat(events, "created"),
    "in_progress twice": lambda events: repeat(events, "in_progress"),
    "in_progress late": lambda events: swap(events, 1, 2),
    "no terminal event": lambda events: events.pop(),
    "two terminal events": lambda events: repeat(events, "completed"),
    "an event behind the terminal one": lambda events: swap(events, -1, -2),
    "nothing at all": lambda events: events.clear(),
    "numbers start at one": lambda events: [event.update(sequence_number=number + 1) for number, event in enumerate(events)],
    "a gap in the numbers": lambda events: [event.update(sequence_number=event["sequence_number"] + 3) for event in events[5:]],
    "numbers restart": lambda events: [event.update(sequence_number=number) for number, event in enumerate(events[9:])],
    "no number": lambda events: events[4].pop("sequence_number"),
    "another response id at the end": lambda events: final(events).update(id="resp_other"),
    "another echo at the end": lambda events: final(events).update(instructions="other"),
    "another previous id in the middle": lambda events: at(events, "in_progress")["response"].update(previous_response_id="resp_x"),
    "output in created": lambda events: at(events, "created")["response"].update(output=final(events)["output"]),
    "usage in created": lambda events: at(events, "created")["response"].update(usage=final(events)["usage"]),
    "completed that says failed": lambda events: final(events).update(status="failed"),
    "failed without an error": lambda events: events[-1].update(type="response.failed", response=final(events) | {"status": "failed"}),
    "incomplete without a reason": lambda events: events[-1].update(
        type="response.incomplete", response=final(events) | {"status": "incomplete", "completed_at": None}
    ),
    "an item index used twice": lambda events: [event.update(output_index=0) for event in events if event.get("output_index") == 1],
    "an item index skipped": lambda events: [event.update(output_index=9) for event in events if event.get("output_index") == 3],
    "an index that moves": lambda events: at(events, "output_text.delta").update(output_index=2),
    "an index that moves at done": lambda events: at(events, "output_item.done", 1).update(output_index=0),
    "an item never announced": lambda events: without(events, "output_item.added", 1),
    "an item announced twice": lambda events: repeat(events, "output_item.added", 1),
    "an item never closed": lambda events: without(events, "output_item.done", 1),
    "an item closed twice": lambda events: repeat(events, "output_item.done", 1),
    "a null item": lambda events: at(events, "output_item.added").update(item=None),
    "another item id at done": lambda events: at(events, "output_item.done", 1)["item"].update(id="msg_other"),
    "a delta of no item": lambda events: at(events, "output_text.delta").update(item_id="msg_other"),
    "a delta of no part": lambda events: at(events, "output_text.delta").update(content_index=4),
    "a lost delta": lambda events: without(events, "output_text.delta"),
    "a doubled delta": lambda events: repeat(events, "output_text.delta"),
    "a delta behind its done": lambda events: swap(
        events, *[events.index(at(events, f"output_text.{name}")) for name in ("delta", "done")]
    ),
    "done text that differs": lambda events: at(events, "output_text.done").update(text="other"),
    "done part that differs": lambda events: at(events, "content_part.done", 1)["part"].update(text="other"),
    "no text done": lambda events: without(events, "output_text.done"),
    "no part added": lambda events: without(events, "content_part.added", 1),
    "no part done": lambda events: without(events, "content_part.done", 1),
    "a part that starts full": lambda events: at(events, "content_part.added", 1)["part"].update(text="full"),
    "a part of another kind": lambda events: at(events, "content_part.added", 1).update(part={"type": "refusal", "refusal": ""}),
    "an annotation never announced": lambda events: without(events, "output_text.annotation.added"),
    "a lost reasoning delta": lambda events: without(events, "reasoning_text.delta"),
    "a lost summary delta": lambda events: without(events, "reasoning_summary_text.delta"),
    "a summary part left open": lambda events: without(events, "reasoning_summary_part.done", 1),
    "a lost refusal delta": lambda events: without(events, "refusal.delta"),
    "a lost argument delta": lambda events: without(events, "function_call_arguments.delta"),
    "no arguments done": lambda events: without(events, "function_call_arguments.done"),
    "whole arguments at the start": lambda events: at(events, "output_item.added", 2)["item"].update(arguments='{"q": "x y"}'),
    "other arguments in the item": lambda events: at(events, "output_item.done", 2)["item"].update(arguments="{}"),
    "arguments as an object": lambda events: at(events, "output_item.done", 2)["item"].update(arguments={}),
    "another call id at done": lambda events: at(events, "output_item.done", 2)["item"].update(call_id="call_9"),
    "an item left in progress": lambda events: at(events, "output_item.done", 1)["item"].update(status="in_progress"),
    "output in another order": lambda events: final(events)["output"].reverse(),
    "an item missing from the output": lambda events: final(events)["output"].pop(),
    "an item only in the output": lambda events: final(events)["output"].append({**final(events)["output"][1], "id": "msg_new"}),
    "other text in the output": lambda events: final(events)["output"][1]["content"][0].update(text="other"),
    "null output": lambda events: final(events).update(output=None),
    "a missing key of the response": lambda events: [event["response"].pop("store") for event in events if "response" in event],
    "a null phase": lambda events: [event["item"].update(phase=None) for event in events if "item" in event],
    "null logprobs": lambda events: at(events, "output_text.delta").update(logprobs=None),
    "an invented event": lambda events: at(events, "in_progress").update(type="response.thinking"),
    "usage that does not add up": lambda events: final(events)["usage"].update(total_tokens=1),
    "usage without details": lambda events: final(events)["usage"].pop("input_tokens_details"),
    "completed without a time": lambda events: final(events).update(completed_at=None),
    "completed with an incomplete item": lambda events: [
        at(events, "output_item.done", 3)["item"].update(status="incomplete"),
        final(events)["output"][3].update(status="incomplete"),
    ],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_refused(name: str) -> None:
    events = good()
    BROKEN[name](events)
    with pytest.raises(StreamFault):
        check_stream(events)


def test_an_incomplete_item_must_be_the_last() -> None:
    events = good((text("a") + text("b")).incomplete())
    for body in (at(events, "output_item.done")["item"], final(events)["output"][0]):
        body["status"] = "incomplete"
    with pytest.raises(StreamFault, match="not the last"):
        check_stream(events)


def test_an_error_event_must_be_followed_by_failed() -> None:
    events = good(text("oh").failed(error_event=True))
    events[-2], events[-3] = events[-3], events[-2]
    renumber(events)
    with pytest.raises(StreamFault, match="may follow"):
        check_stream(events)


def test_a_custom_call_is_rebuilt_from_its_deltas() -> None:
    events = good(CUSTOM)
    done = {"type": "response.custom_tool_call_input.done", "item_id": "it_1", "output_index": 0, "input": "abc"}
    deltas = [
        {"type": "response.custom_tool_call_input.delta", "item_id": "it_1", "output_index": 0, "delta": part} for part in ("a", "bc")
    ]
    events[3:3] = [*deltas, done]
    for body in (at(events, "output_item.done")["item"], final(events)["output"][0]):
        body["input"] = "abc"
    renumber(events)
    check_stream(events)
    without(events, "custom_tool_call_input.delta")
    with pytest.raises(StreamFault):
        check_stream(events)


def test_an_echoed_json_schema_passes_although_the_file_wants_null() -> None:
    events = good()
    shape = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None}
    for event in events:
        if "response" in event:
            event["response"]["text"] = {"format": shape}
    check_stream(events)


@pytest.mark.parametrize(
    ("field", "value"),
    [("metadata", None), ("created_at", 1.5), ("tools", None), ("object", "thing"), ("status", "done"), ("temperature", None)],
)
def test_a_plain_response_with_a_wrong_field_is_refused(field: str, value: object) -> None:
    with pytest.raises(StreamFault):
        check_response(final(good()) | {field: value})


def page(*items: Json, **fields: object) -> Json:
    ids = [item.get("id") for item in items]
    return {"object": "list", "data": list(items), "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None} | {
        "has_more": False,
        **fields,
    }


def test_a_list_of_items_is_checked() -> None:
    one, two = final(good())["output"][:2]
    assert check_item_list(page(one, two)) == [one, two]
    assert check_item_list(page()) == []
    for broken in (
        page(one, one),
        page(one, last_id="x"),
        page(one | {"id": ""}),
        page({**two, "content": None}),
        page(one, has_more=None),
    ):
        with pytest.raises(StreamFault):
            check_item_list(broken)


def wire(*events: Json) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def test_the_bytes_of_a_stream_are_read_with_their_heartbeats() -> None:
    first, second = good()[:2]
    sse = read_sse(HEARTBEAT + wire(first) + HEARTBEAT + HEARTBEAT + wire(second) + DONE)
    assert sse.events == (first, second)
    assert sse.gaps == (HEARTBEAT, HEARTBEAT * 2, b"")
    assert (sse.heartbeats, sse.done) == (3, True)


ONE = wire({"type": "a"})
BAD_WIRES = {
    "carriage returns": ONE.replace(b"\n", b"\r\n") + DONE,
    "no done marker": ONE,
    "done twice": ONE + DONE + DONE,
    "bytes behind done": ONE + DONE + ONE,
    "another comment": b": ping\n" + ONE + DONE,
    "a blank line behind a heartbeat": HEARTBEAT + b"\n" + ONE + DONE,
    "no event name": ONE.removeprefix(b"event: a\n") + DONE,
    "another event name": ONE.replace(b"event: a", b"event: b") + DONE,
    "data in two lines": ONE.replace(b'{"type": ', b'{"type":\ndata: ') + DONE,
    "broken data": ONE.replace(b"}", b"") + DONE,
    "data that is no object": b"event: a\ndata: 3\n\n" + DONE,
    "a heartbeat inside an event": ONE.replace(b"data:", HEARTBEAT + b"data:") + DONE,
    "an id field": b"id: 1\n" + ONE + DONE,
    "a cut event": ONE + ONE[:-1],
    "an empty stream": b"",
}


@pytest.mark.parametrize("name", BAD_WIRES)
def test_another_wire_form_is_refused(name: str) -> None:
    with pytest.raises(StreamFault):
        read_sse(BAD_WIRES[name])


async def test_an_event_split_over_two_writes_is_refused() -> None:
    async with FakeEngine() as engine, aiohttp.ClientSession() as client:
        engine.play(stream_bytes(ONE + HEARTBEAT, ONE + ONE, DONE), stream_bytes(ONE[:5], ONE[5:], DONE))
        async with client.post(engine.url + "/v1/responses", json={}) as answer:
            writes = await read_writes(answer)
        assert writes == (ONE + HEARTBEAT, ONE + ONE, DONE)
        assert len(check_writes(writes).events) == 3
        async with client.post(engine.url + "/v1/responses", json={}) as answer:
            broken = await read_writes(answer)
        with pytest.raises(StreamFault):
            check_writes(broken)


def test_two_runs_are_equal_when_normalised_and_only_then() -> None:
    one, two, other = final(good()), final(good()), final(good(text("x")))
    two |= {"id": "resp_new", "created_at": 7, "completed_at": 8}
    two["output"][0]["id"] = "rs_new"
    assert one != two
    assert normalised(one) == normalised(two)
    assert normalised(one) != normalised(other)
    assert normalised(one) != normalised(two | {"completed_at": None})


# What a gateway does itself.

SEARCHED: Json = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
LISTED: Json = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "docs", "tools": [{"name": "look", "input_schema": {}}]}


def hosted(item: Json, added: Json, *stages: str) -> Events:
    """A stream of one hosted item with these steps between its announcement and its end."""
    events = [event for event in good(text("x")) if event["type"] in ("response.created", "response.in_progress", "response.completed")]
    final(events).update(output=[item])
    place = {"output_index": 0, "item_id": item["id"]}
    kind = f"response.{item['type']}"
    between: Events = [{"type": "response.output_item.added", "output_index": 0, "item": added}]
    between += [{"type": f"{kind}.{stage}", **place} for stage in stages]
    between += [{"type": "response.output_item.done", "output_index": 0, "item": item}]
    events[2:2] = between
    renumber(events)
    return events


SEARCHING: Json = {"id": "ws_1", "type": "web_search_call", "status": "in_progress"}
FAILED_SEARCH = SEARCHED | {"status": "failed"}
FAILED_LISTING = LISTED | {"tools": [], "error": "unreachable"}
LISTING = LISTED | {"tools": []}


@pytest.mark.parametrize(
    "events",
    [
        hosted(SEARCHED, SEARCHING, "in_progress", "searching", "completed"),
        hosted(FAILED_SEARCH, SEARCHING, "in_progress", "searching"),
        hosted(LISTED, LISTING, "in_progress", "completed"),
        hosted(FAILED_LISTING, LISTING, "in_progress", "failed"),
    ],
)
def test_hosted_items_in_the_recorded_steps_pass(events: Events) -> None:
    assert check_stream(events) == final(events)


@pytest.mark.parametrize(
    "events",
    [
        hosted(SEARCHED, SEARCHING, "in_progress", "completed"),
        hosted(SEARCHED, SEARCHING, "searching", "in_progress", "completed"),
        hosted(SEARCHED, SEARCHING, "in_progress", "searching"),
        hosted(FAILED_SEARCH, SEARCHING, "in_progress", "searching", "completed"),
        hosted(SEARCHED, SEARCHED, "in_progress", "searching", "completed"),
        hosted(LISTED, LISTED, "in_progress", "completed"),
        hosted(FAILED_LISTING, LISTING, "in_progress", "completed"),
    ],
)
def test_hosted_items_in_other_steps_do_not(events: Events) -> None:
    with pytest.raises(StreamFault):
        check_stream(events)
