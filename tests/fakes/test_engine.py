"""The scripted engine itself: what is queued is what goes over the socket, and what is asked is written down."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.answers import LLAMA_CPP, OPENAI, VLLM_HARMONY
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import (
    empty,
    function_call,
    hang_up,
    message_and_call,
    never,
    raw,
    reasoning,
    refusal,
    silence,
    status,
    stream_bytes,
    text,
)

ROOT = Path(__file__).parents[2]
PLACE = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}}}
ASK = {"model": "m", "store": False, "input": "hello there"}


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(client: aiohttp.ClientSession, engine: FakeEngine, path: str = "/v1/responses", **fields: object) -> tuple[int, bytes]:
    async with client.post(engine.url + path, json=ASK | fields) as answer:
        return answer.status, await answer.read()


async def stream(client: aiohttp.ClientSession, engine: FakeEngine, **fields: object) -> list[dict[str, object]]:
    code, body = await post(client, engine, stream=True, **fields)
    assert code == 200
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]


async def test_without_a_script_it_repeats_what_the_user_said(engine, client) -> None:
    code, body = await post(client, engine)
    assert code == 200
    assert json.loads(body)["output"][0]["content"][0]["text"] == "You said: hello there"


async def test_a_stream_and_a_plain_answer_end_in_the_same_output(engine, client) -> None:
    script = reasoning("think it over", summary=["thought"]) + message_and_call("a b", "look", {"q": 1}, "call_1") + refusal("no way")
    engine.play(script, script)
    events = await stream(client, engine)
    _, body = await post(client, engine)
    streamed, plain = events[-1]["response"]["output"], json.loads(body)["output"]
    for item in streamed + plain:
        del item["id"]
    assert streamed == plain
    assert [item["type"] for item in plain] == ["reasoning", "message", "function_call", "message"]


async def test_numbers_and_indexes_are_there_in_one_dialect_and_missing_in_the_other(engine, client) -> None:
    engine.play(text("one two"), text("one two").speaking(LLAMA_CPP))
    assert [event["sequence_number"] for event in await stream(client, engine)] == list(range(10))
    for event in await stream(client, engine):
        assert not event.keys() & {"sequence_number", "output_index", "content_index"}


@pytest.mark.parametrize(
    ("dialect", "event", "status"),
    [
        ("vllm", "response.completed", "incomplete"),
        ("llama.cpp", "response.completed", "completed"),
        ("openai", "response.incomplete", "incomplete"),
    ],
)
async def test_a_cut_answer_is_told_as_the_dialect_tells_it(engine, client, dialect: str, event: str, status: str) -> None:
    speaks = {"vllm": engine.dialect, "llama.cpp": LLAMA_CPP, "openai": OPENAI}[dialect]
    engine.play(text("one two").incomplete().speaking(speaks))
    last = (await stream(client, engine))[-1]
    assert (last["type"], last["response"]["status"]) == (event, status)


async def test_a_request_is_written_down_with_bytes_headers_and_time(engine, client) -> None:
    async with client.post(engine.url + "/v1/responses?x=1", data=b'{"input": "q",  "model":"m"}', headers={"X-Mark": "7"}) as answer:
        body = await answer.read()
    received = await engine.request(0)
    assert (received.method, received.path, received.query) == ("POST", "/v1/responses", "x=1")
    assert received.body == b'{"input": "q",  "model":"m"}'
    assert received.headers["x-mark"] == "7"
    assert bytes(received.sent) == body
    assert received.arrived <= asyncio.get_running_loop().time()


async def test_a_stream_cut_after_events_or_bytes_ends_the_way_it_was_told(engine, client) -> None:
    engine.play(
        text("a b c").cut(events=4, ending="end"), text("a b c").cut(bytes=100, ending="close"), text("a").cut(bytes=9, ending="reset")
    )
    assert len(await stream(client, engine)) == 4
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(client, engine, stream=True)
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
        await post(client, engine, stream=True)
    assert [len(received.sent) for received in engine.posts[1:]] == [100, 9]


async def test_a_body_shorter_than_its_length_breaks_the_reader(engine, client) -> None:
    engine.play(text("a b c").cut(bytes=20))
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(client, engine)


async def test_statuses_bodies_and_headers_are_free(engine, client) -> None:
    engine.play(status(429, headers={"Retry-After": "3"}), status(502, "<html>bad</html>"), empty(204), status(418, b"\xff"))
    async with client.post(engine.url + "/v1/responses", json=ASK) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
        assert (await answer.json())["error"]["code"] == 429
    async with client.post(engine.url + "/v1/responses", json=ASK) as answer:
        assert (answer.status, answer.content_type) == (502, "text/html")
    assert await post(client, engine) == (204, b"")
    assert await post(client, engine) == (418, b"\xff")


async def test_a_held_piece_waits_for_its_event_and_a_held_head_for_its_own(engine, client) -> None:
    head, piece = asyncio.Event(), asyncio.Event()
    engine.play(stream_bytes(b"one", b"two").hold_head(head).hold(piece, before=1))
    asking = asyncio.create_task(client.post(engine.url + "/v1/responses", json=ASK))
    received = await engine.request(0)
    assert not asking.done()
    head.set()
    async with await asking as answer:
        assert await answer.content.readany() == b"one"
        assert bytes(received.sent) == b"one"
        piece.set()
        assert await answer.content.read() == b"two"


async def test_writes_are_split_where_the_script_says(engine, client) -> None:
    engine.play(stream_bytes(b"abcdef").split(1, 4), stream_bytes(b"abc", b"def").written_in(4))
    for expected in ([b"a", b"bcd", b"ef"], [b"abcd", b"ef"]):
        chunks: list[bytes] = []
        async with client.post(engine.url + "/v1/responses", json=ASK) as answer:
            async for data, _ in answer.content.iter_chunks():
                chunks.append(data)
        assert [chunk for chunk in chunks if chunk] == expected


async def test_a_peer_that_leaves_is_noticed_during_a_wait(engine) -> None:
    engine.play(text("a b").hold(asyncio.Event(), before=3))
    async with aiohttp.ClientSession() as client, client.post(engine.url + "/v1/responses", json=ASK | {"stream": True}) as answer:
        await answer.content.readany()
        answer.close()
    received = await engine.request(0)
    async with asyncio.timeout(5):
        await received.closed.wait()
        await received.finished.wait()
    assert received.closed_at is not None


async def test_no_answer_at_all_and_no_answer_but_an_end(engine, client) -> None:
    engine.play(never(), hang_up("close"), hang_up("reset"), raw(b"nonsense\r\n\r\n"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await post(client, engine)
    await engine.posts[0].closed.wait()
    for _ in range(3):
        with pytest.raises(aiohttp.ClientError):
            await client.post(engine.url + "/v1/responses", json=ASK)


async def test_a_reused_connection_dies_without_a_byte(engine, client) -> None:
    await post(client, engine)
    engine.drops_when_reused = 1
    with pytest.raises(aiohttp.ClientError):
        async with client.post(engine.url + "/v1/responses", json=ASK, raise_for_status=True) as answer:
            await answer.read()
    assert (len(engine.posts), len(engine.dropped)) == (1, 1)
    assert (await post(client, engine))[0] == 200


async def test_edits_change_drop_and_add_events(engine, client) -> None:
    def edit(event: dict[str, object]) -> object:
        if event["type"] == "response.in_progress":
            return None
        if event["type"] == "response.completed":
            return [b": gap\n\n", event | {"response": None}]
        return event

    engine.play(text("hi").edited(edit))
    _, body = await post(client, engine, stream=True)
    assert b"in_progress\n" not in body
    assert b": gap\n\nevent: response.completed" in body


async def test_failures_can_be_told_with_and_without_an_error_event(engine, client) -> None:
    engine.play(text("so far").failed("rate_limit_exceeded", "slow down", error_event=True), silence())
    events = await stream(client, engine)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "slow down"}
    assert (await stream(client, engine))[-1]["response"]["output"] == []


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings", "messages", "messages/count_tokens"])
async def test_every_other_wire_answers(engine, client, path: str, streaming: bool) -> None:
    engine.play(text("hi") + function_call("look", {}, "call_1"))
    code, body = await post(client, engine, f"/v1/{path}", messages=[{"role": "user", "content": "x"}], prompt="p", stream=streaming)
    assert code == 200
    assert body


async def test_models_are_listed_and_take_no_script(engine, client) -> None:
    engine.play(text("kept"))
    async with client.get(engine.url + "/v1/models") as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == ["m"]
    assert b"kept" in (await post(client, engine))[1]


async def test_it_can_die_and_come_back_on_the_same_port(engine, client) -> None:
    await post(client, engine)
    await engine.stop()
    with pytest.raises(aiohttp.ClientError):
        await post(client, engine)
    await engine.start()
    assert (await post(client, engine))[0] == 200


async def test_it_runs_as_a_process_of_its_own(client) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.engine", "--strict", "--seconds-per-token", "0.001", stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        async with client.post(url + "/v1/responses", json=ASK | {"stream": True}) as answer:
            assert b"You said: hello there" in await answer.read()
        async with client.post(url + "/v1/responses", json={"model": "m"}) as answer:
            assert answer.status == 400
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]},
            "You said: a b",
        ),
        ({"max_output_tokens": 2}, "You said: "),
        ({"text": {"format": {"type": "json_schema", "schema": PLACE}}}, '{"name": "sample", "tags": [1]}'),
    ],
)
async def test_the_echo_fits_the_request(engine, client, fields: dict[str, object], expected: str) -> None:
    _, body = await post(client, engine, **fields)
    assert json.loads(body)["output"][0]["content"][0]["text"] == expected


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tool_choice": "required"}, "function_call"),
        ({"tool_choice": {"type": "function", "name": "get_weather"}}, "function_call"),
        ({"input": "what is the weather like?"}, "function_call"),
        ({"input": "what is the weather like?", "tool_choice": "none"}, "message"),
        ({"input": "good day"}, "message"),
    ],
)
async def test_the_echo_calls_a_tool_that_is_forced_or_spoken_of(engine, client, fields: dict[str, object], kind: str) -> None:
    tools = [{"type": "function", "name": "get_weather", "parameters": {}}]
    _, body = await post(client, engine, tools=tools, **fields)
    assert json.loads(body)["output"][0]["type"] == kind


async def test_it_counts_the_requests_it_has_in_hand(engine, client) -> None:
    gate = asyncio.Event()
    engine.play(*(text("x").hold_head(gate) for _ in range(5)))
    asking = [asyncio.create_task(post(client, engine)) for _ in range(5)]
    await engine.request(4)
    assert engine.in_flight == 5
    gate.set()
    await asyncio.gather(*asking)
    assert (engine.in_flight, engine.most_in_flight) == (0, 5)


async def test_llama_cpp_closes_all_items_at_the_end_and_gives_calls_no_id(engine, client) -> None:
    engine.play((reasoning("hm") + message_and_call("one two", "look", {"q": 1})).speaking(LLAMA_CPP))
    events = await stream(client, engine)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_text.delta",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "output_item.done",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.done",
        "completed",
    ]
    call = events[-1]["response"]["output"][2]
    assert "id" not in call
    assert events[9]["item_id"] == call["call_id"]


async def test_vllm_names_the_items_anew_in_its_terminal_event(engine, client) -> None:
    engine.play(text("hi"))
    events = await stream(client, engine)
    done = next(event for event in events if event["type"] == "response.output_item.done")
    assert done["item"]["id"] != events[-1]["response"]["output"][0]["id"]


async def test_the_harmony_dialect_counts_parts_over_all_items(engine, client) -> None:
    engine.play((reasoning("hm") + text("hi")).speaking(VLLM_HARMONY))
    events = await stream(client, engine)
    assert [event["content_index"] for event in events if event["type"].endswith("text.delta")] == [0, 1]
    assert "response.reasoning_part.added" in [event["type"] for event in events]
