"""Answers: whatever the engine says and however it says it, the stream is right, and what is not streamed is the same.

The client checks each stream, each response and its stored copy; a test here adds only what is special to it.
"""

from typing import cast

import pytest

from tests.end_to_end.client import Client, same_but_for_ids, text_of, types_of
from tests.fakes.answers import DIALECTS, VLLM, Dialect, Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, function_call, message_and_call, reasoning, refusal, silence, status, stream_bytes, text, texts

TOOLS: list[Json] = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "apply_patch")]
FORM: Json = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
CITED = {"type": "url_citation", "url": "https://example.org", "title": "Example", "start_index": 0, "end_index": 3}
# How an engine speaks makes no difference to the wire between the services.
SPOKEN = [("three_processes", VLLM), *(("one_process", dialect) for dialect in DIALECTS.values())]

SCRIPTS: dict[str, tuple[Script, list[str]]] = {
    "text": (text("Three words here."), ["message"]),
    "two parts": (texts("One.", "Two."), ["message"]),
    "cited": (text("See there.", annotations=[CITED]), ["message"]),
    "refusal": (refusal("I cannot do that."), ["message"]),
    "cut": (text("This goes on and on").incomplete(), ["message"]),
    "reasoning": (reasoning("Hm, well.") + text("Yes."), ["reasoning", "message"]),
    "summaries": (reasoning(summary=("First.", "Then.")) + text("Yes."), ["reasoning", "message"]),
    "call": (function_call("look", {"at": "it"}, "call_1"), ["function_call"]),
    "text and call": (message_and_call("let me check", "look", {}, "call_1"), ["message", "function_call"]),
    "reasoning and patch": (reasoning("Hm.") + function_call("apply_patch", {"p": "x"}, "call_1"), ["reasoning", "function_call"]),
    "parallel calls": (function_call("look", {}, "call_1") + function_call("look", {}, "call_2"), ["function_call", "function_call"]),
    "text before reasoning": (text("Yes.") + reasoning("Why did I say so?"), ["message", "reasoning"]),
}


@pytest.mark.parametrize(("gateway", "dialect"), SPOKEN, ids=lambda value: getattr(value, "name", value), indirect=["gateway"])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_streamed_and_unstreamed_are_one_answer(ada: Client, engine: FakeEngine, name: str, dialect: Dialect) -> None:
    """B024, B026, B027, B029, B035, B036, B038: one place per item, contiguous numbers, the order of the stream, the same object."""
    script, kinds = SCRIPTS[name]
    script = script.speaking(dialect).using(None)
    if name == "summaries" and dialect.overlapping:
        pytest.skip("llama.cpp has no summaries")
    engine.play(script, script)

    plain = await ada.create("go", tools=TOOLS)
    streamed = await ada.stream("go", tools=TOOLS)

    same_but_for_ids(plain, streamed.response)
    assert types_of(plain["output"]) == kinds
    assert [event["output_index"] for event in streamed.of_type("response.output_item.added")] == list(range(len(kinds)))


async def test_structured_output_is_the_same_both_ways(ada: Client, engine: FakeEngine) -> None:
    """B035: the format is echoed in both."""
    plain = await ada.create("go", text=FORM)
    streamed = await ada.stream("go", text=FORM)

    same_but_for_ids(plain, streamed.response)


async def test_usage_is_passed_through(ada: Client, engine: FakeEngine) -> None:
    """The engine's counts, with the details that SDKs require."""
    streamed = await ada.stream("hello")

    usage = cast(Json, streamed.response["usage"])
    assert usage["output_tokens"] == 3
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


@pytest.mark.parametrize("output", [None, [], "missing"])
async def test_items_that_only_the_stream_had_are_in_the_output(ada: Client, engine: FakeEngine, output: object) -> None:
    """B042: a terminal event without output takes nothing away."""

    def without_output(event: Json) -> Json:
        if event["type"] != "response.completed":
            return event
        response = {key: value for key, value in cast(Json, event["response"]).items() if key != "output"}
        return event | {"response": response if output == "missing" else response | {"output": output}}

    engine.play(text("All of it.").edited(without_output))
    streamed = await ada.stream("go")

    assert text_of(streamed.response) == "All of it."


@pytest.mark.parametrize("key", ["item", "part", "item_id", "delta"])
async def test_malformed_events_are_not_passed_on(ada: Client, engine: FakeEngine, key: str) -> None:
    """B042: null items and parts, deltas of no item: dropped or understood, never relayed."""

    def spoiled(event: Json) -> Json:
        return event | {key: None} if key in event and event["type"] != "response.output_item.done" else event

    engine.play(text("All of it.").edited(spoiled))
    streamed = await ada.stream("go")

    assert text_of(streamed.response) == "All of it."


async def test_an_answer_in_one_terminal_event_is_streamed_whole(ada: Client, engine: FakeEngine) -> None:
    """B036: an item that only the terminal event has is announced, filled and closed before it."""

    def only_ends(event: Json) -> Json | None:
        return event if event["type"] in ("response.created", "response.completed") else None

    engine.play(text("All of it.").edited(only_ends))
    streamed = await ada.stream("go")

    assert text_of(streamed.response) == "All of it."
    assert len(streamed.of_type("response.output_text.delta")) == 1


async def test_an_engine_that_does_not_stream_is_understood(ada: Client, engine: FakeEngine) -> None:
    """A JSON body is as good as a stream."""
    answer: Json = {"object": "response", "status": "completed", "output": [_message("All of it.")]}
    engine.play(status(200, answer), status(201, answer))

    streamed = await ada.stream("go")
    created = await ada.create("go")

    assert text_of(streamed.response) == text_of(created) == "All of it."


async def test_an_empty_answer_is_asked_for_once_more(ada: Client, engine: FakeEngine) -> None:
    """B044: one retry, in the same response."""
    engine.play(silence(), text("Here I am."))
    streamed = await ada.stream("go")

    assert text_of(streamed.response) == "Here I am."
    assert [received.body for received in engine.posts] == [engine.posts[0].body] * 2


@pytest.mark.parametrize("empty", [silence(), text(""), reasoning("  \n")], ids=["no item", "empty text", "blank reasoning"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_answer_that_stays_empty_is_a_failure(ada: Client, engine: FakeEngine, empty: Script, streaming: bool) -> None:
    """B044: never a success without anything in it, never more than two requests; the stored status says the same."""
    engine.play(empty, empty)
    response = (await ada.stream("go")).response if streaming else await ada.create("go")
    continued = await ada.refused("more", previous_response_id=response["id"])

    assert (response["status"], cast(Json, response["error"])["code"]) == ("failed", "engine_empty_output")
    assert continued.said == (400, "response_not_continuable", "previous_response_id")
    assert len(engine.posts) == 2


@pytest.mark.parametrize("size", [1, 3, 7, 64, 4096])
async def test_events_are_found_however_the_bytes_are_split(ada: Client, engine: FakeEngine, size: int) -> None:
    """B119, B120: the same events from writes of any size, characters cut in the middle included."""
    said = "阴气渐重🍸é and more"
    engine.play(text(said, deltas=list(said)).using(None).written_in(size), text(said, deltas=list(said)).using(None))

    split = await ada.stream("go")
    whole = await ada.stream("go")

    same_but_for_ids(split.response, whole.response)
    assert [event["delta"] for event in split.of_type("response.output_text.delta")] == list(said)
    assert text_of(split.response) == said


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b""], ids=["lf", "crlf", "cr", "one lf", "nothing"])
async def test_every_spelling_of_an_event_stream_is_read(ada: Client, engine: FakeEngine, end: bytes) -> None:
    """B119: CRLF, CR, no space behind the colon, comments, several data lines, no blank line at the end."""
    line = b"\r\n" if end.startswith(b"\r\n") else b"\r" if end.startswith(b"\r") else b"\n"
    events = [
        b": PROCESSING" + line + line,
        line.join([b"event:response.created", b'data:{"type":"response.created","response":{}}']) + line + line,
        line.join([b"id: 7", b'data: {"type":"response.output_text.delta",', b'data: "item_id":"a","delta":"Hi"}']) + line + line,
        b'data: {"type":"response.completed","response":{"status":"completed","output":[]}}' + end,
    ]
    engine.play(stream_bytes(*events))
    streamed = await ada.stream("go")

    assert text_of(streamed.response) == "Hi"


async def test_a_limit_that_the_engine_does_not_admit_is_noticed(ada: Client, engine: FakeEngine) -> None:
    """Output tokens as many as were asked for mean a cut, whatever the engine calls it."""
    engine.play(text(" ".join(["word"] * 16)).speaking(DIALECTS["llama.cpp"]))
    response = await ada.create("go", max_output_tokens=16)

    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


async def test_an_incomplete_answer_can_be_continued(ada: Client, engine: FakeEngine) -> None:
    """The cut text is part of the history."""
    engine.play(text("This goes on").incomplete(), text("and on"))
    first = await ada.create("go")
    await ada.create("continue", previous_response_id=first["id"])

    assert [item.get("role") for item in engine.posts[1].input] == ["user", "assistant", "user"]


def _message(said: str) -> Json:
    content = [{"type": "output_text", "text": said, "annotations": []}]
    return {"type": "message", "id": "msg_x", "role": "assistant", "status": "completed", "content": content}
