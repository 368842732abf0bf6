"""Engine failures: before the first byte an HTTP error, after it a stream that is ended properly, stored as what it was."""

import asyncio
from typing import cast

import pytest

from tests.end_to_end.client import Client, Refusal, Streamed, refusal_of, text_of
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, empty, function_call, hang_up, raw, reasoning, status, stream_bytes, text

TOOL: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}}
LONG = reasoning("Hm, let me think.") + text("One two three four five.") + function_call("look", {"at": "it"}, "call_1")
EVENTS = 27
BYTES = 6000
ERROR: Json = {"error": {"message": "overloaded", "type": "x", "code": 502, "param": None}}


@pytest.mark.parametrize("ending", ["close", "reset", "end"])
@pytest.mark.parametrize("events", range(0, EVENTS, 3))
async def test_a_stream_that_breaks_off_is_failed(ada: Client, engine: FakeEngine, events: int, ending: str) -> None:
    """B030, B033: the same id, the next number, open items closed as incomplete, the items so far; stored as failed."""
    engine.play(LONG.cut(events=events, ending=ending))  # type: ignore[arg-type]
    if events == 0:
        assert (await _refused(ada)).status in (502, 503)
        return
    streamed = await ada.stream("go", tools=[TOOL])

    _check_broken(streamed, finished=("reasoning", "message", "function_call")[: _finished(events)])
    assert len(engine.posts) == 1


@pytest.mark.parametrize("offset", range(0, BYTES, 197))
async def test_only_a_terminal_event_that_came_whole_completes(ada: Client, engine: FakeEngine, offset: int) -> None:
    """B032: cut anywhere, in the middle of a line or of a character; completed only when the engine said so to the end."""
    said = text("阴气渐重🍸é and more and more")
    engine.play(said.cut(bytes=offset, ending="reset" if offset % 2 else "close"))
    reply = await ada.request("POST", "/v1/responses", {"model": "m", "input": "go"})

    whole = len(engine.posts[0].sent) < offset
    if reply.status == 200:
        assert (reply.json["status"] == "completed") is whole
        assert await ada.get(reply.json["id"]) == reply.json
    else:
        assert refusal_of(reply).status in (502, 503)
        assert not whole


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_failed_turn_is_named_when_somebody_goes_on_from_it(ada: Client, engine: FakeEngine, ending: str) -> None:
    """B030, B018: the failed turn cannot be continued; its parent still can, with nothing of the failure in it."""
    engine.play(text("first"), text("one two three").cut(events=6, ending=ending), text("third"))  # type: ignore[arg-type]
    first = await ada.create("one")
    failed = await ada.stream("two", previous_response_id=first["id"])
    refusal = await ada.refused("three", previous_response_id=failed.response["id"])
    await ada.create("instead", previous_response_id=first["id"])

    assert refusal.said == (400, "response_not_continuable", "previous_response_id")
    assert str(first["id"]) in refusal.message
    assert texts(engine.posts[2]) == ["one", "first", "instead"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (status(400, {"error": {"message": "no such field", "param": "top_k", "code": 400}}), (400, "engine_invalid_request", "top_k")),
        (status(422, {"detail": "unprocessable"}), (400, "engine_invalid_request", None)),
        (status(400, "<html>no</html>"), (400, "engine_invalid_request", None)),
        (status(400, {"error": {"message": "maximum context length is 10", "code": 400}}), (400, "context_length_exceeded", "input")),
        (status(401, {"error": "bad key"}), (502, "engine_error", None)),
        (status(403), (502, "engine_error", None)),
        (status(404), (404, "model_not_found", "model")),
        (status(413), (413, "request_too_large", "input")),
        (status(429), (429, "rate_limit_exceeded", None)),
        (status(500, "Internal Server Error"), (502, "engine_error", None)),
        (status(502, b"\xff\xfe"), (502, "engine_error", None)),
        (status(503), (503, "engine_unavailable", None)),
        (status(504), (504, "engine_timeout", None)),
        (status(301, "elsewhere", headers={"Location": "http://127.0.0.1:1/"}), (502, "engine_error", None)),
        (empty(204), (502, "engine_error", None)),
        (hang_up(), (503, "engine_unavailable", None)),
        (hang_up("reset"), (503, "engine_unavailable", None)),
        (raw(b"garbage\r\n\r\n"), (503, "engine_unavailable", None)),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
async def test_a_failure_before_the_first_byte_keeps_its_status(ada: Client, engine: FakeEngine, answer: Script, told: object) -> None:
    """B106, B041, B102, B109, B111: never 200 and a lone error frame; one request, streamed or not; nothing is stored."""
    engine.play(answer, answer)
    refusal = await ada.refused("go")

    assert refusal.said == told
    assert len(engine.posts) == 2


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_rate_limit_says_when_to_come_back(ada: Client, engine: FakeEngine, streaming: bool) -> None:
    """B103: 429 with Retry-After and what else the engine says of its limits."""
    engine.play(status(429, headers={"Retry-After": "7", "retry-after-ms": "7000", "x-ratelimit-remaining": "0"}))
    reply = await ada.request("POST", "/v1/responses", {"model": "m", "input": "go", "stream": streaming})

    assert refusal_of(reply).status == 429
    assert [reply.headers[name] for name in ("retry-after", "retry-after-ms", "x-ratelimit-remaining")] == ["7", "7000", "0"]


@pytest.mark.parametrize(
    "answer",
    [
        status(200, ERROR),
        status(200, "<html>Welcome</html>"),
        empty(200),
        status(200, b"{"),
        stream_bytes(b'event: error\ndata: {"error":{"message":"overloaded","code":502}}\n\n'),
        stream_bytes(b'data: {"error":{"message":"overloaded","code":502}}\n\n'),
        stream_bytes(),
        stream_bytes(b"data: [DONE]\n\n"),
    ],
    ids=["error object", "page", "empty", "half an object", "error event", "unnamed error", "empty stream", "done only"],
)
async def test_a_success_that_is_none_is_a_failure(ada: Client, engine: FakeEngine, answer: Script) -> None:
    """B105: an HTTP 200 around an error is an error of the engine; nothing is stored as completed."""
    engine.play(answer, answer)
    refusal = await ada.refused("go")

    assert refusal.status == 502
    assert refusal.code in ("engine_error", "engine_stream_interrupted")


async def test_a_stream_that_only_begins_is_a_failed_response(ada: Client, engine: FakeEngine) -> None:
    """B105, B032: whatever came, it was no terminal event."""
    begun = stream_bytes(b'data: {"type":"response.created","response":{}}\n\n')
    engine.play(begun, begun)
    responses = [(await ada.stream("go")).response, await ada.create("go")]

    assert {cast(Json, response["error"])["code"] for response in responses} == {"engine_stream_interrupted"}


async def test_an_error_that_is_null_is_none(ada: Client, engine: FakeEngine) -> None:
    """B105: the control."""
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "fine"}]}
    engine.play(status(200, {"status": "completed", "error": None, "output": [message]}))

    assert text_of(await ada.create("go")) == "fine"


@pytest.mark.parametrize("with_event", [False, True])
async def test_a_failure_that_the_engine_reports_ends_the_stream(ada: Client, engine: FakeEngine, with_event: bool) -> None:
    """B041: `response.failed` with the engine's code and words and the items so far; an error event of the engine's is not passed on."""
    engine.play(text("One two.").failed("rate_limit_exceeded", "Try again in 1.5s.", error_event=with_event))
    streamed = await ada.stream("go")

    assert streamed.response["error"] == {"code": "rate_limit_exceeded", "message": "Try again in 1.5s."}
    assert text_of(streamed.response) == "One two."


async def test_a_dead_engine_is_unavailable_and_comes_back(ada: Client, engine: FakeEngine) -> None:
    """B106: connection refused is 503; /readyz shows it; nothing needs a restart."""
    await engine.stop()
    refusal = await ada.refused("go")
    ready = await ada.request("GET", "/readyz")
    await engine.start()

    assert refusal.said == (503, "engine_unavailable", None)
    assert "retry-after" in refusal.headers
    assert (ready.status, ready.json["checks"]) == (503, {"database": "ok", "engine": "not_serving"})
    assert text_of(await ada.create("back")) == "You said: back"


async def test_clients_that_leave_are_not_held_against_the_engine(ada: Client, engine: FakeEngine) -> None:
    """B112: fifty clients leave, five streams break, and the engine is still asked at once."""
    hold = asyncio.Event()
    engine.default = lambda received: text("one two three").hold(hold, before=5)

    async def leave() -> None:
        async with ada.streaming("go") as answer:
            await answer.content.readuntil(b"\n\n")

    await asyncio.gather(*(leave() for _ in range(50)))
    engine.default = lambda received: text("one two three").cut(events=6, ending="reset")
    await asyncio.gather(*(ada.stream("go") for _ in range(5)))
    engine.default = lambda received: text("fine")

    assert {text_of(response) for response in await asyncio.gather(*(ada.create("go") for _ in range(10)))} == {"fine"}


def _check_broken(streamed: Streamed, finished: tuple[str, ...]) -> None:
    response = streamed.response
    output = cast(list[Json], response["output"])
    assert (response["status"], cast(Json, response["error"])["code"]) == ("failed", "engine_stream_interrupted")
    assert tuple(str(item["type"]) for item in output if item.get("status", "completed") == "completed") == finished
    assert all(item["status"] == "incomplete" for item in output[len(finished) :])


def _finished(events: int) -> int:
    """How many items had their `output_item.done` among so many events."""
    return sum(events > done for done in (10, 20, 25))


async def _refused(ada: Client) -> Refusal:
    return refusal_of(await ada.request("POST", "/v1/responses", {"model": "m", "input": "go", "stream": True}))
