"""The `responses` wire: what engines send, well or badly, in the neutral vocabulary, and what a turn makes of it."""

import json

import pytest

from orchestrator_svc.items import JsonObject
from orchestrator_svc.providers.responses import Translator
from orchestrator_svc.turn.events import (
    Begun,
    ItemFinished,
    ItemStarted,
    ModelEvent,
    ModelFailed,
    ModelFinished,
    ModelSent,
    PartDelta,
    PartKind,
    Saved,
    Usage,
)
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.turns import HELLO, NOW, WEATHER, Played, play, request, turn

CREATED: JsonObject = {"type": "response.created", "response": {"id": "resp_e", "status": "in_progress", "output": []}}
COMPLETED: JsonObject = {"type": "response.completed", "response": {"status": "completed", "output": []}}


def event(type: str, **fields: object) -> JsonObject:
    return {"type": f"response.{type}"} | fields


def added(type: str, id: str | None, index: int | None = None, **fields: object) -> JsonObject:
    return event("output_item.added", output_index=index, item={"type": type, "id": id} | fields)


def done(type: str, id: str | None, index: int | None = None, **fields: object) -> JsonObject:
    return event("output_item.done", output_index=index, item={"type": type, "id": id} | fields)


def delta(text: object, id: str | None = None, index: int | None = None, **fields: object) -> JsonObject:
    return event("output_text.delta", item_id=id, output_index=index, delta=text, **fields)


def arguments(text: str, id: str | None = None, index: int | None = None) -> JsonObject:
    return event("function_call_arguments.delta", item_id=id, output_index=index, delta=text)


def content(*texts: str) -> list[JsonObject]:
    return [{"type": "output_text", "text": text} for text in texts]


def lines(*events: JsonObject | bytes) -> list[tuple[bytes, bytes]]:
    return [(b"", one if isinstance(one, bytes) else json.dumps(one).encode()) for one in events]


def read(*events: JsonObject | bytes) -> tuple[ModelEvent, ...]:
    return Translator().read(lines(*events))


def read_at_once(*events: JsonObject | bytes) -> tuple[tuple[ModelEvent, ...], int]:
    """The same, event by event, each taken at once where that can be; and how many were."""
    translator, meant, taken = Translator(), list[ModelEvent](), 0
    for name, data in lines(*events):
        more = translator.more(data)
        taken += more is not None
        meant += translator.read([(name, data)]) if more is None else [more]
    return tuple(meant), taken


def lived(*events: JsonObject | bytes) -> Played:
    """A turn whose engine sent these events and then ended its stream; the stream is checked."""
    translator = Translator()
    sent = translator.read(lines(*events))
    sent += () if translator.ended else translator.end([])
    played = play(turn(request(HELLO, tools=[WEATHER])), [Begun(), ModelSent((), NOW), ModelSent(sent, NOW), Saved()])
    check_stream(played.events)
    return played


def said(played: Played) -> list[object]:
    """The output, as what was said: texts of messages and reasoning, and calls."""
    output = played.response["output"]
    assert isinstance(output, list)
    return [
        (item["name"], item["arguments"])
        if item["type"] == "function_call"
        else "|".join(part.get("text", part.get("refusal")) for part in item.get("content", item.get("summary")))
        for item in output
    ]


STORIES: dict[str, tuple[tuple[JsonObject | bytes, ...], list[object]]] = {
    "no added event": ((delta("Hi"), COMPLETED), ["Hi"]),
    "no done event": ((added("message", "a"), delta("Hi", "a"), COMPLETED), ["Hi"]),
    "no delta": ((added("message", "a"), done("message", "a", content=content("Hi")), COMPLETED), ["Hi"]),
    "a delta that is missing": ((delta("H", "a"), done("message", "a", content=content("Hi")), COMPLETED), ["Hi"]),
    "the terminal event alone": ((event("completed", response={"output": [{"type": "message", "content": content("Hi")}]}),), ["Hi"]),
    "B042: output null": ((delta("Hi"), event("completed", response={"status": "completed", "output": None})), ["Hi"]),
    "B042: output missing": ((delta("Hi"), event("completed", response={"status": "completed"})), ["Hi"]),
    "B042: no response": ((delta("Hi"), event("completed")), ["Hi"]),
    "B042: an item that is null": (
        (event("output_item.added", item=None), delta("Hi"), event("output_item.done", item=None), COMPLETED),
        ["Hi"],
    ),
    "B042: a part that is null": ((event("content_part.added", part=None), delta("Hi"), COMPLETED), ["Hi"]),
    "B042: nulls in the content": ((done("message", "a", content=[None, *content("Hi")]), COMPLETED), ["Hi"]),
    "B042: a delta that is null": ((delta(None), delta(5), delta("Hi"), COMPLETED), ["Hi"]),
    "what is no JSON": ((b"{", b"", b"[]", b"null", b"\xff", delta("Hi"), COMPLETED), ["Hi"]),
    "what is too deep": ((b'{"type":"x","item":' + b"[" * 5000 + b"]" * 5000 + b"}", delta("Hi"), COMPLETED), ["Hi"]),
    "numbers of the wrong type": ((delta("Hi", index="0"), delta("Ho"), COMPLETED), ["Ho"]),  # type: ignore[arg-type]
    "events that nobody knows": ((event("odd", delta="x"), delta("Hi"), {"type": "ping"}, COMPLETED), ["Hi"]),
    "items that nobody knows": ((added("web_search_call", "w"), done("web_search_call", "w"), delta("Hi"), COMPLETED), ["Hi"]),
    "B038: one id for the item, another for its deltas": (
        (added("message", "a", 0), delta("H", "b", 0), delta("i", "b", 0), done("message", "a", 0), COMPLETED),
        ["Hi"],
    ),
    "ids that change with every event": (
        (added("message", "a", 0), delta("H", "b", 0), done("message", "c", 0, content=content("Hi")), COMPLETED),
        ["Hi"],
    ),
    "B024: one index for everything": (
        (
            added("message", "a", 0),
            delta("Hi", "a", 0),
            done("message", "a", 0),
            added("function_call", "f", 0, name="weather", call_id="c"),
            arguments("{}", "f", 0),
            done("function_call", "f", 0),
            COMPLETED,
        ),
        ["Hi", ("weather", "{}")],
    ),
    "B027: text before reasoning": (
        (delta("Hi", "a"), event("reasoning_text.delta", item_id="r", delta="Hm"), COMPLETED),
        ["Hi", "Hm"],
    ),
    "calls without indexes that overlap": (
        (
            added("function_call", None, call_id="c1", name="weather"),
            arguments('{"a":1}', "c1"),
            added("function_call", None, call_id="c2", name="weather"),
            arguments('{"b":2}', "c2"),
            done("function_call", None, call_id="c1", name="weather", arguments='{"a":1}'),
            done("function_call", None, call_id="c2", name="weather", arguments='{"b":2}'),
            COMPLETED,
        ),
        [("weather", '{"a":1}'), ("weather", '{"b":2}')],
    ),
    "B051: a name that comes with the end": (
        (
            added("function_call", "f", 0, name=None),
            arguments("{", "f", 0),
            added("message", "m", 1),
            delta("Hi", "m", 1),
            done("function_call", "f", 0, name="weather", call_id="c", arguments="{}"),
            COMPLETED,
        ),
        ["Hi", ("weather", "{}")],
    ),
    "text that goes on behind its item": ((done("message", "a", content=content("Hi")), delta("!", "a"), COMPLETED), ["Hi", "!"]),
    "items that are named anew at the end": (
        (
            done("message", "a", content=content("Hi")),
            done("message", "b", content=content("Ho")),
            event(
                "completed",
                response={"output": [{"type": "message", "id": i, "content": content(t)} for i, t in (("x", "Hi"), ("y", "Ho"))]},
            ),
        ),
        ["Hi", "Ho"],
    ),
    "content that is counted on from item to item": (
        (
            event("reasoning_text.delta", item_id="r", output_index=0, content_index=0, delta="Hm"),
            done("reasoning", "r", 0, content=[{"type": "reasoning_text", "text": "Hm"}]),
            delta("Hi", "m", 1, content_index=1),
            done("message", "m", 1, content=content("Hi")),
            COMPLETED,
        ),
        ["Hm", "Hi"],
    ),
    "a pair in two deltas (B048)": (
        (
            b'{"type":"response.output_text.delta","delta":"\\ud83c"}',
            b'{"type":"response.output_text.delta","delta":"\\udf78!"}',
            COMPLETED,
        ),
        ["\U0001f378!"],
    ),
    "half a pair in a delta (B048, B135)": ((b'{"type":"response.output_text.delta","delta":"a\\ud83d b"}', COMPLETED), ["a\ufffd b"]),
    "half a pair at the end (B135)": (
        (
            b'{"type":"response.output_text.delta","item_id":"a","delta":"a\\ud83d"}',
            b'{"type":"response.output_item.done","item":{"type":"message","id":"a","content":[{"type":"output_text","text":"a\\ud83d"}]}}',
            COMPLETED,
        ),
        ["a\ufffd"],
    ),
    "half a pair in a call (B048, B135)": (
        (
            b'{"type":"response.output_item.added","item":{"type":"function_call","id":"f","name":"weather","call_id":"c\\ud83d"}}',
            b'{"type":"response.function_call_arguments.delta","item_id":"f","delta":"{\\"q\\":\\"\\ud83d\\"}"}',
            COMPLETED,
        ),
        [("weather", '{"q":"\ufffd"}')],
    ),
    "a pair that is escaped twice (B048)": (
        (
            added("function_call", "f", name="weather", call_id="c"),
            arguments('{"q":"\\ud83c', "f"),
            arguments('\\udf78"}', "f"),
            COMPLETED,
        ),
        [("weather", '{"q":"\\ud83c\\udf78"}')],
    ),
    "half a pair in a citation (B135)": (
        (
            delta("Hi", "a"),
            b'{"type":"response.output_text.annotation.added","item_id":"a","annotation":{"type":"url_citation","url":"\\ud83d",'
            b'"title":"\\udf78","start_index":0,"end_index":1}}',
            COMPLETED,
        ),
        ["Hi"],
    ),
    "NUL (B138)": ((delta("a\0b"), COMPLETED), ["a\0b"]),
    "what comes behind the terminal event": ((delta("Hi"), COMPLETED, delta("more"), COMPLETED), ["Hi"]),
    "the other name of reasoning": ((event("reasoning.delta", delta="Hm"), delta("Hi"), COMPLETED), ["Hm", "Hi"]),
    "an end marker": ((delta("Hi"), COMPLETED, b"[DONE]"), ["Hi"]),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_the_engine_meant_is_what_the_turn_says(name: str) -> None:
    events, story = STORIES[name]
    played = lived(CREATED, *events)

    assert said(played) == story
    assert played.response["status"] == "completed"


FAILURES: dict[str, tuple[tuple[JsonObject | bytes, ...], str]] = {
    "nothing more": ((), "engine_stream_interrupted"),
    "an end marker alone": ((b"[DONE]",), "engine_stream_interrupted"),
    "no terminal event": ((delta("Hi"), done("message", None)), "engine_stream_interrupted"),
    "a terminal event that is cut": ((delta("Hi"), b'{"type":"response.completed","resp'), "engine_stream_interrupted"),
    "a failed response": ((event("failed", response={"error": {"code": "server_error", "message": "no"}}),), "server_error"),
    "a failed response without an error": ((event("failed"),), "server_error"),
    "a cancelled response": ((event("cancelled", response={"status": "cancelled"}),), "server_error"),
    "a completed response with an error": (
        (event("completed", response={"error": {"code": "overloaded", "message": "no"}}),),
        "overloaded",
    ),
    "a nested error event": (({"type": "error", "error": {"code": "rate_limit_exceeded", "message": "slow"}},), "rate_limit_exceeded"),
    "a flat error event": (({"type": "error", "code": "insufficient_quota", "message": "pay"},), "insufficient_quota"),
    "B105: an error without a type": (({"error": {"code": 502, "message": "no"}},), "server_error"),
    "an error with a number and a type": (({"error": {"code": 429, "type": "rate_limit_error", "message": "no"}},), "rate_limit_exceeded"),
    "an error in words": (({"type": "error", "error": "no"},), "server_error"),
    "an error in half pairs (B135)": ((b'{"type":"error","error":{"message":"\\ud83d"}}',), "server_error"),
    "a context that is too long": (
        ({"error": {"code": 400, "type": "exceed_context_size_error", "message": "too long"}},),
        "context_length_exceeded",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_is_no_answer_is_a_failure_b032_b105(name: str) -> None:
    events, code = FAILURES[name]
    played = lived(CREATED, *events)

    assert played.response["status"] == "failed"
    assert played.response["error"]["code"] == code  # type: ignore[index]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "length"}}, "max_output_tokens"),
        ({"status": "incomplete", "incomplete_details": None}, "max_output_tokens"),
    ],
)
@pytest.mark.parametrize("name", ["completed", "incomplete"])
def test_a_cut_is_told_by_the_status_and_not_by_the_event(name: str, response: JsonObject, reason: str) -> None:
    played = lived(delta("Hi"), event(name, response=response))

    assert played.response["status"] == "incomplete"
    assert played.response["incomplete_details"] == {"reason": reason}


@pytest.mark.parametrize(
    ("usage", "read_usage"),
    [
        (None, None),
        ("many", None),
        ({}, Usage()),
        ({"input_tokens": 3, "output_tokens": 2, "total_tokens": 99}, Usage(3, 0, 2, 0)),
        (
            {
                "input_tokens": 3,
                "input_tokens_details": {"cached_tokens": 1},
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            Usage(3, 1, 2, 1),
        ),
        ({"input_tokens": "3", "output_tokens": -2, "input_tokens_details": None}, Usage()),
    ],
)
def test_usage_is_read_where_there_is_any(usage: object, read_usage: Usage | None) -> None:
    assert read(event("completed", response={"status": "completed", "usage": usage})) == (ModelFinished(None, read_usage),)


def test_logprobs_are_carried_as_they_are() -> None:
    raw = (
        b'{"type":"response.output_text.delta","delta":"Hi","logprobs":[{"token":"Hi","logprob":-0.10,"bytes":[72,105],"top_logprobs":[]}]}'
    )
    (one,) = read(raw)

    assert one == PartDelta(0, PartKind.TEXT, 0, "Hi", b'[{"token":"Hi","logprob":-0.10,"bytes":[72,105],"top_logprobs":[]}]')
    (part,) = lived(raw, delta("!", logprobs=None), COMPLETED).response["output"][0]["content"]  # type: ignore[index]
    assert [entry["token"] for entry in part["logprobs"]] == ["Hi"]


def test_what_an_engine_says_of_an_item_is_carried_without_its_nulls() -> None:
    played = lived(done("message", "a", content=content("Hi"), phase="commentary", odd={"a": 1}, gone=None), COMPLETED)
    (item,) = played.response["output"]  # type: ignore[misc]

    assert item["phase"] == "commentary"
    assert item["odd"] == {"a": 1}
    assert "gone" not in item
    assert item["id"] != "a"


def test_both_dialects_of_a_call_are_the_same_events() -> None:
    """vLLM numbers everything; llama.cpp numbers nothing and names a call by its call id only."""
    vllm = read(
        added("function_call", "fc", 0, name="weather", call_id="c"),
        arguments("{}", "fc", 0),
        done("function_call", "fc", 0, name="weather", call_id="c", arguments="{}"),
    )
    llama = read(
        added("function_call", None, name="weather", call_id="c"),
        arguments("{}", "c"),
        done("function_call", None, name="weather", call_id="c", arguments="{}"),
    )

    assert vllm[:2] == llama[:2] == (ItemStarted(0, "function_call", "weather", "c"), PartDelta(0, PartKind.ARGUMENTS, 0, "{}"))
    assert [type(one) for one in (vllm[2], llama[2])] == [ItemFinished, ItemFinished]


# Engines that do not stream.


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"<html>", b"{", b"{}", b'{"output":null}', b'{"detail":"no"}', b'{"a":' * 5000],
    ids=["empty", "null", "list", "page", "half", "empty object", "no output", "detail", "deep"],
)
def test_a_body_that_is_no_response_is_a_failure_b105(body: bytes) -> None:
    (failure,) = Translator().whole(body)

    assert isinstance(failure, ModelFailed)
    assert failure.code == "engine_error"


def test_an_error_with_a_good_status_is_a_failure_b105() -> None:
    (failure,) = Translator().whole(b'{"error":{"code":"overloaded","message":"Too much."}}')

    assert isinstance(failure, ModelFailed)
    assert (failure.code, failure.message) == ("overloaded", "Too much.")


def test_a_response_object_is_an_answer_b105() -> None:
    """The error that is null is none."""
    body = json.dumps({"status": "completed", "error": None, "output": [{"type": "message", "content": content("Hi")}]})
    played = play(turn(), [Begun(), ModelSent(Translator().whole(body.encode()), NOW), Saved()])

    check_stream(played.events)
    assert said(played) == ["Hi"]


# What only adds to the open part.

OPEN = (CREATED, added("message", "m", 0), delta("one ", "m", 0))


@pytest.mark.parametrize(
    ("events", "taken"),
    [
        ((*OPEN, delta("two ", "m", 0), delta("three", "m", 0), COMPLETED), 2),
        ((*OPEN, delta("", "m", 0), delta("two", "m", 0)), 1),
        ((*OPEN, delta(None, "m", 0), delta({}, "m", 0)), 0),
        ((*OPEN, delta("zwei ä", "m", 0), delta("日本 🍸", "m", 0)), 2),
        ((*OPEN, b'{"type":"response.output_text.delta","item_id":"m","output_index":0,"delta":"\\ud83c"}', delta("two", "m", 0)), 0),
        ((*OPEN, delta("two", "other", 0), delta("three", "m", 0), delta("four", "m", 0)), 1),
        ((*OPEN, delta("two", "m", 0, content_index=1), delta("three", "m", 0, content_index=1)), 1),
        ((*OPEN, event("refusal.delta", item_id="m", output_index=0, delta="no"), delta("two", "m", 0)), 0),
        ((*OPEN, b"[DONE]", b"nonsense", delta("two", "m", 0)), 1),
        ((*OPEN, COMPLETED, delta("two", "m", 0)), 0),
        ((CREATED, added("function_call", "c", 0, call_id="1", name="weather"), *(arguments(part, "c", 0) for part in ("{", "}"))), 1),
        ((delta("no type", "m", 0) | {"type": None}, delta("no type", "m", 0) | {"type": None}), 0),
    ],
    ids=["text", "empty", "no text", "not ASCII", "half", "other item", "other part", "other kind", "no event", "over", "call", "no type"],
)
def test_what_only_adds_to_the_open_part_means_the_same_when_taken_at_once(events: tuple[JsonObject | bytes, ...], taken: int) -> None:
    assert read_at_once(*events) == (read(*events), taken)
