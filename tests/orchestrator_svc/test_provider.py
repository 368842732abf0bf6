"""The provider over HTTP, against a scripted engine: deadlines, re-sending, headers, odd answers, and leaving."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

import pytest
from structlog.testing import capture_logs

from orchestrator_svc.errors import EngineRateLimited, EngineStreamInterrupted, EngineTimeout, EngineUnavailable
from orchestrator_svc.providers.engine_http import base_url
from orchestrator_svc.providers.responses import ResponsesProvider, open_responses
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings
from orchestrator_svc.turn.actions import CallModel
from orchestrator_svc.turn.events import Begun, ModelEvent, ModelFailed, ModelFinished, ModelSent, Saved
from svckit.telemetry import Trace, bind_trace
from tests.fakes.engine import FakeEngine, Received
from tests.fakes.scripts import Script, empty, engine_error, hang_up, never, raw, status, stream_bytes, text
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.turns import HELLO, NOW, Played, play, request, turn

SOON = OrchestratorSettings(first_event_timeout_seconds=0.2, gap_timeout_seconds=0.2)
LONG = OrchestratorSettings()
CALL = CallModel(1, (b'{"type":"message","role":"user","content":"hello"}',))
STREAMED = json.dumps({"stream": True}).encode()
GOOD = {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]}


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as running:
        yield running


@asynccontextmanager
async def provider_for(engine: FakeEngine, waits: OrchestratorSettings = LONG, **settings: str) -> AsyncIterator[ResponsesProvider]:
    async with open_responses(EngineSettings(url=engine.url, **settings), waits) as provider:  # type: ignore[arg-type]
        yield provider


async def called(provider: ResponsesProvider, call: CallModel = CALL) -> list[ModelEvent]:
    """All that one model call gives."""
    async with aclosing(provider.call(request(HELLO), call)) as batches:
        return [event async for batch in batches for event in batch]


async def failure(engine: FakeEngine, script: Script, waits: OrchestratorSettings = LONG) -> ModelFailed:
    """How a call ends that is answered by this script."""
    engine.play(script)
    async with provider_for(engine, waits) as provider:
        last = (await called(provider))[-1]
    assert isinstance(last, ModelFailed)
    return last


def lived(events: list[ModelEvent]) -> Played:
    played = play(turn(), [Begun(), ModelSent((), NOW), ModelSent(tuple(events), NOW), Saved()])
    check_stream(played.events)
    return played


async def soon(engine_request: Received) -> None:
    """The engine sees the connection end within a second."""
    async with asyncio.timeout(1):
        await engine_request.closed.wait()


# What is sent.


async def test_the_engine_gets_the_request_and_nothing_of_the_gateway_s(engine: FakeEngine) -> None:
    bind_trace(Trace("req_1", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"))
    async with provider_for(engine) as provider:
        await called(provider)
    asked = await engine.request(0)

    assert (asked.method, asked.path) == ("POST", "/v1/responses")
    assert asked.body == b'{"model":"m","store":false,"stream":true,"input":[%b]}' % CALL.input[0]
    assert asked.headers == {
        "host": f"127.0.0.1:{engine.port}",
        "content-type": "application/json",
        "accept": "text/event-stream",
        "x-request-id": "req_1",
        "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        "content-length": str(len(asked.body)),
    }


async def test_outside_of_a_request_no_empty_id_is_sent(engine: FakeEngine) -> None:
    bind_trace(Trace(""))
    async with provider_for(engine) as provider:
        await called(provider)

    assert not (await engine.request(0)).headers.keys() & {"x-request-id", "traceparent"}


async def test_the_key_goes_into_the_authorization(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY_OF_THIS_TEST", "sk-planted")
    async with provider_for(engine, api_key_env="ENGINE_KEY_OF_THIS_TEST") as provider:
        await called(provider)

    assert (await engine.request(0)).headers["authorization"] == "Bearer sk-planted"


@pytest.mark.parametrize("url", ["http://x:1", "http://x:1/", "http://x:1/v1", "http://x:1/v1/"])
def test_an_address_is_taken_with_and_without_its_version(url: str) -> None:
    assert base_url(url) == "http://x:1"


# Deadlines.


async def test_an_engine_that_is_not_there_is_unavailable() -> None:
    engine = FakeEngine()
    await engine.start()
    await engine.stop()
    async with provider_for(engine) as provider:
        (failed,) = await called(provider)

    assert isinstance(failed, ModelFailed)
    assert failed.code == "engine_unavailable"


@contextmanager
def port_that_takes_no_connection() -> Iterator[int]:
    """A port whose queue of connections is full, so that a further one waits for ever."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            yield listener.getsockname()[1]
        finally:
            for one in waiting:
                one.close()


async def test_an_engine_that_takes_no_connection_is_unavailable() -> None:
    with port_that_takes_no_connection() as port:
        async with open_responses(
            EngineSettings(url=f"http://127.0.0.1:{port}"), OrchestratorSettings(connect_timeout_seconds=0.2)
        ) as provider:
            (failed,) = await called(provider)

    assert isinstance(failed, ModelFailed)
    assert failed.code == "engine_unavailable"


@pytest.mark.parametrize(
    "script",
    [never, lambda: text("Hi").hold_head(asyncio.Event()), lambda: text("Hi").hold(asyncio.Event(), before=0)],
    ids=["no answer", "no head", "no first event"],
)
async def test_an_engine_that_says_nothing_has_timed_out(engine: FakeEngine, script: Callable[[], Script]) -> None:
    assert (await failure(engine, script(), SOON)).code == "engine_timeout"
    await soon(engine.posts[0])


async def test_an_engine_that_stops_talking_has_timed_out(engine: FakeEngine) -> None:
    engine.play(text("one two three").hold(asyncio.Event(), before=6))
    async with provider_for(engine, SOON) as provider:
        played = lived(await called(provider))

    assert played.response["error"]["code"] == "engine_timeout"  # type: ignore[index]
    assert [item["status"] for item in played.response["output"]] == ["incomplete"]  # type: ignore[union-attr]
    await soon(engine.posts[0])


async def test_a_pause_within_bounds_is_none(engine: FakeEngine) -> None:
    engine.play(text("one two three").paced(0.02))
    async with provider_for(engine, SOON) as provider:
        events = await called(provider)

    assert isinstance(events[-1], ModelFinished)


# Re-sending.


async def test_a_connection_is_used_again(engine: FakeEngine) -> None:
    async with provider_for(engine) as provider:
        for _ in range(3):
            assert isinstance((await called(provider))[-1], ModelFinished)

    assert [post.reused for post in engine.posts] == [False, True, True]


async def test_a_request_is_sent_again_when_a_used_connection_was_dead_b111(engine: FakeEngine) -> None:
    engine.play(text("one"), text("two"))
    async with provider_for(engine) as provider:
        await called(provider)
        engine.drops_when_reused = 5
        events = await called(provider)

    assert isinstance(events[-1], ModelFinished)
    assert (len(engine.posts), len(engine.dropped)) == (2, 1)


async def test_a_large_request_arrives_whole_and_is_sent_again_whole(engine: FakeEngine) -> None:
    engine.play(text("one"), text("two"))
    pieces = tuple(b'{"type":"message","role":"user","content":"%d %b"}' % (number, b"x" * 100_000) for number in range(20))
    call = CallModel(1, pieces)
    async with provider_for(engine) as provider:
        await called(provider, call)
        engine.drops_when_reused = 5
        events = await called(provider, call)

    assert isinstance(events[-1], ModelFinished)
    assert len(engine.dropped) == 1
    assert [post.body.partition(b'"input":')[2] for post in engine.posts] == [b"[" + b",".join(pieces) + b"]}"] * 2


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_request_is_not_sent_again_on_a_new_connection_b111(engine: FakeEngine, ending: str) -> None:
    assert (await failure(engine, hang_up(ending))).code == "engine_unavailable"  # type: ignore[arg-type]
    assert len(engine.posts) == 1


async def test_a_request_is_not_sent_again_once_there_is_an_answer_b111(engine: FakeEngine) -> None:
    engine.play(text("one"), raw(b"HTTP/1.1 200 OK\r\nContent-"))
    async with provider_for(engine) as provider:
        await called(provider)
        (failed,) = await called(provider)

    assert isinstance(failed, ModelFailed)
    assert failed.code == "engine_unavailable"
    assert len(engine.posts) == 2


async def test_an_engine_that_came_back_is_found(engine: FakeEngine) -> None:
    async with provider_for(engine) as provider:
        await called(provider)
        await engine.stop()
        first = (await called(provider))[-1]
        await engine.start()
        second = (await called(provider))[-1]

    assert isinstance(first, ModelFailed)
    assert isinstance(second, ModelFinished)


# Answers of every kind.


@pytest.mark.parametrize("code", [200, 201, 202])
async def test_a_body_with_any_good_status_is_an_answer_b109(engine: FakeEngine, code: int) -> None:
    engine.play(status(code, GOOD))
    async with provider_for(engine) as provider:
        played = lived(await called(provider))

    assert played.response["status"] == "completed"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (empty(204), "engine_error"),
        (empty(200), "engine_error"),
        (status(200, "<html>Welcome</html>"), "engine_error"),
        (status(200, {"error": {"message": "no", "code": 502}}), "server_error"),
        (stream_bytes(), "engine_stream_interrupted"),
        (stream_bytes(b": hello\n\n"), "engine_stream_interrupted"),
        (stream_bytes(b"data: [DONE]\n\n"), "engine_stream_interrupted"),
        (stream_bytes(b'event: error\ndata: {"error":{"message":"no"}}\n\n'), "server_error"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{"), "engine_stream_interrupted"),
        (raw(b"SSH-2.0-odd\r\n\r\n"), "engine_unavailable"),
        (status(500), "engine_error"),
        (status(401, "no"), "engine_error"),
        (status(404), "model_not_found"),
    ],
    ids=[
        "204",
        "empty",
        "page",
        "error",
        "empty stream",
        "comment",
        "done only",
        "error frame",
        "cut body",
        "no HTTP",
        "500",
        "401",
        "404",
    ],
)
async def test_what_is_no_answer_fails_before_the_first_event_b105_b106_b109(engine: FakeEngine, script: Script, code: str) -> None:
    """The failure is the only thing that the provider gives, so that the request can still be refused."""
    engine.play(script)
    async with provider_for(engine) as provider:
        (failed,) = await called(provider)

    assert isinstance(failed, ModelFailed)
    assert failed.code == code


async def test_what_the_engine_says_of_its_limits_is_kept_b103(engine: FakeEngine) -> None:
    refusal = (await failure(engine, status(429, headers={"Retry-After": "7", "x-ratelimit-remaining": "0"}))).refusal

    assert isinstance(refusal, EngineRateLimited)
    assert refusal.headers == {"retry-after": "7", "x-ratelimit-remaining": "0"}


async def test_a_refusal_without_its_reason_is_still_that_refusal(engine: FakeEngine) -> None:
    script = status(429, engine_error(429, "x" * 1000), headers={"Retry-After": "7"}).cut(bytes=10, ending="reset")

    assert isinstance((await failure(engine, script)).refusal, EngineRateLimited)


async def test_redirects_are_not_followed_b155(engine: FakeEngine) -> None:
    async with FakeEngine() as elsewhere:
        failed = await failure(engine, status(307, b"", headers={"Location": f"{elsewhere.url}/v1/responses"}))

        assert failed.code == "engine_error"
        assert elsewhere.posts == []


@pytest.mark.parametrize("ending", ["end", "close", "reset"])
@pytest.mark.parametrize("events", range(1, 9))
async def test_a_stream_that_breaks_off_has_failed_b030_b032(engine: FakeEngine, events: int, ending: str) -> None:
    engine.play(text("one two").cut(events=events, ending=ending))  # type: ignore[arg-type]
    async with provider_for(engine) as provider:
        played = lived(await called(provider))

    assert played.response["error"]["code"] == "engine_stream_interrupted"  # type: ignore[index]


async def test_what_was_read_before_a_stream_breaks_off_is_kept(engine: FakeEngine) -> None:
    engine.play(text("one two").cut(events=6, ending="close"))
    async with provider_for(engine) as provider:
        (item,) = lived(await called(provider)).response["output"]  # type: ignore[misc]

    assert item["content"][0]["text"] == "one two"


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_writes_of_any_size_are_read_b119_b120(engine: FakeEngine, size: int) -> None:
    engine.play(text("阴气渐重🍸é").written_in(size))
    async with provider_for(engine) as provider:
        (item,) = lived(await called(provider)).response["output"]  # type: ignore[misc]

    assert item["content"][0]["text"] == "阴气渐重🍸é"


# Leaving.


@pytest.mark.parametrize(
    "held", [lambda: text("Hi").hold_head(asyncio.Event()), lambda: text("Hi").hold(asyncio.Event(), before=4)], ids=["head", "text"]
)
async def test_leaving_closes_the_engine_s_connection_b114(engine: FakeEngine, held: Callable[[], Script]) -> None:
    engine.play(held())
    async with provider_for(engine) as provider:
        reading = asyncio.create_task(called(provider))
        asked = await engine.request(0)
        reading.cancel()
        await soon(asked)

        assert not asked.finished.is_set() or asked.closed.is_set()


async def test_closing_the_iterator_closes_the_engine_s_connection_b114(engine: FakeEngine) -> None:
    engine.play(text("Hi there").hold(asyncio.Event(), before=6))
    async with provider_for(engine) as provider:
        batches = provider.call(request(HELLO), CALL)
        await anext(batches)
        await batches.aclose()
        await soon(await engine.request(0))


# The relay.


async def test_the_relay_passes_a_request_and_its_answer_byte_for_byte(engine: FakeEngine) -> None:
    body = b'{"b" : 1,\n"a":"\\u00e9"}'
    engine.play(status(418, b'{"x" : 1}', headers={"x-odd": "yes", "connection": "keep-alive", "set-cookie": "a=b"}))
    async with provider_for(engine) as provider:
        with await provider.relay("POST", "/v1/chat/completions", {"x-mine": "1"}, body) as head:
            answer = b"".join([chunk async for chunk in head])
    asked = await engine.request(0)

    assert (asked.path, asked.body, asked.headers["x-mine"]) == ("/v1/chat/completions", body, "1")
    assert (head.status, answer) == (418, b'{"x" : 1}')
    assert dict(head.headers)["x-odd"] == "yes"
    assert not dict(head.headers).keys() & {"connection", "set-cookie"}


async def test_the_relay_says_when_the_answer_breaks_off(engine: FakeEngine) -> None:
    engine.play(text("one two").cut(events=4, ending="reset"))
    async with provider_for(engine) as provider:
        with await provider.relay("POST", "/v1/responses", {}, STREAMED) as answer, pytest.raises(EngineStreamInterrupted):
            [chunk async for chunk in answer]


@pytest.mark.parametrize(("script", "error"), [(never(), EngineTimeout), (hang_up(), EngineUnavailable)])
async def test_the_relay_says_why_there_is_no_answer(engine: FakeEngine, script: Script, error: type[Exception]) -> None:
    engine.play(script)
    async with provider_for(engine, SOON) as provider:
        with pytest.raises(error):
            await provider.relay("POST", "/v1/responses", {}, b"{}")


async def test_leaving_the_relay_closes_the_engine_s_connection_b114(engine: FakeEngine) -> None:
    engine.play(text("one two").hold(asyncio.Event(), before=4))
    async with provider_for(engine) as provider:
        with await provider.relay("POST", "/v1/responses", {}, STREAMED) as answer:
            await anext(answer)
        await soon(await engine.request(0))


# Whether it answers.


@pytest.mark.parametrize(("models", "answers"), [(None, True), (status(401), True), (status(404), True), (status(503), False)])
async def test_an_engine_answers_unless_it_fails(engine: FakeEngine, models: Script | None, answers: bool) -> None:
    engine.models = models
    async with provider_for(engine) as provider:
        assert await provider.answers() is answers


async def test_an_engine_that_is_not_there_does_not_answer(engine: FakeEngine) -> None:
    async with provider_for(engine) as provider:
        await engine.stop()

        assert await provider.answers() is False


async def logged(url: str) -> list[dict[str, object]]:
    """What the log says of one model call."""
    with capture_logs() as entries:
        async with open_responses(EngineSettings(url=url), OrchestratorSettings(connect_timeout_seconds=0.2)) as provider:
            await called(provider)
    return [{key: entry[key] for key in ("event", "status", "answer", "reason", "cause") if key in entry} for entry in entries]


async def test_the_log_says_what_the_engine_said_to_its_operator_and_no_more(engine: FakeEngine) -> None:
    refused = "the engine refused a request"
    engine.play(status(401, {"error": {"message": "wrong key sk-123456 at http://10.0.0.1/"}}))
    engine.play(status(400, {"error": {"message": "not 'hello'"}}))

    assert await logged(engine.url) == [{"event": refused, "status": 401, "answer": "wrong key [hidden] at [hidden]"}]
    assert await logged(engine.url) == [{"event": refused, "status": 400, "answer": ""}]


async def test_the_log_says_why_an_engine_cannot_be_reached() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (entry,) = await logged(f"http://127.0.0.1:{closed.getsockname()[1]}")

    assert entry["reason"] == "engine_unavailable"
    assert "ConnectionRefusedError" in str(entry["cause"])
