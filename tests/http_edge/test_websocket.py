"""Turns over a WebSocket: frames and their answers, lanes, continuation of what is not stored, and the official client."""

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import pytest
from grpc import StatusCode

from svckit.errors import RemoteError, ServiceError
from tests.http_edge.fake_services import (
    RESPONSE_ID,
    House,
    event,
    for_ever,
    open_house,
    playing,
    response_object,
    turn,
    turn_events,
    within,
)
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseReply, CreateResponseRequest

ASKED = {"type": "response.create", "model": "m", "input": "hi", "store": False}
CODEX = Path(__file__).parents[1] / "data" / "codex"
KINDS = [event.type for event in turn_events("Hello")]
OTHER_ID = RESPONSE_ID[:-1] + "9"


class PreviousMissing(ServiceError):
    """Previous response with id '{response_id}' not found."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "previous_response_not_found"
    param = "previous_response_id"


async def receive(socket: aiohttp.ClientWebSocketResponse) -> dict[str, object]:
    message = await socket.receive(timeout=10)
    assert message.type is aiohttp.WSMsgType.TEXT, message
    return msgspec.json.decode(message.data)


async def whole_turn(socket: aiohttp.ClientWebSocketResponse) -> list[dict[str, object]]:
    """The frames of one turn, up to its terminal event or its error."""
    frames = [await receive(socket)]
    while frames[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
        frames.append(await receive(socket))
    return frames


def response_id(n: int) -> str:
    return RESPONSE_ID[:-3] + f"{n:03}"


def remembering(house: House) -> None:
    """Turns that can be continued from what they gave, and from nothing else, as of responses that are not stored."""
    numbers = iter(range(1, 1000))

    async def script(request: CreateResponseRequest):
        if request.previous_response_id and request.continuation != b"of " + request.previous_response_id.encode():
            raise PreviousMissing(response_id=request.previous_response_id)
        if b"fail, please" in b"".join(request.input):
            raise RemoteError(StatusCode.INVALID_ARGUMENT, "invalid_request", "No such call.", param="input")
        mine = response_id(next(numbers))
        *events, last = turn("Hello", response_id=mine)
        for reply in events:
            yield reply
        yield CreateResponseReply(events=last.events, continuation=b"of " + mine.encode() if request.keep_continuation else b"")

    house.orchestrator.create = script


async def test_a_turn_has_the_same_events_as_over_http_and_no_done(house: House) -> None:
    async with house.connect() as socket:
        for _ in range(2):
            await socket.send_json(ASKED)
            assert [msgspec.json.encode(frame) for frame in await whole_turn(socket)] == [e.data for e in turn_events("Hello")]


async def test_the_orchestrator_gets_the_turn_as_it_was_asked_for(house: House) -> None:
    async with house.connect() as socket:
        await socket.send_str(
            '{"type":"response.create","stream_id":"a","generate":false,"stream":true,"model":"m","x":{"b":1,"a":2},'
            '"input":[ {"role":"user","content":"caf\\u00e9"} ],"store":false,"client_metadata":{"k":"v"}}'
        )
        await whole_turn(socket)
        await socket.send_json({"type": "response.create", "model": "m", "input": "hi"})
        await whole_turn(socket)
    first, second = house.orchestrator.turns
    assert (first.owner, first.model, first.store, first.prewarm, first.keep_continuation) == ("default", "m", False, True, True)
    assert list(first.input) == [b'{"role":"user","content":"caf\\u00e9"}']
    assert first.parameters == b'{"x":{"b":1,"a":2},"client_metadata":{"k":"v"}}'
    assert (second.store, second.prewarm, second.keep_continuation, second.continuation) == (True, False, False, b"")
    assert house.orchestrator.relayed == []


async def test_what_was_not_stored_can_be_continued_on_the_same_connection(house: House) -> None:
    remembering(house)
    async with house.connect() as socket:
        await socket.send_json(ASKED)
        *_, last = await whole_turn(socket)
        for _ in range(5):
            await socket.send_json(ASKED | {"previous_response_id": last["response"]["id"]})
            *_, last = await whole_turn(socket)
            assert last["type"] == "response.completed"


async def test_another_connection_knows_nothing_of_it_and_goes_on_working(house: House) -> None:
    remembering(house)
    async with house.connect() as socket:
        await socket.send_json(ASKED)
        *_, last = await whole_turn(socket)
    async with house.connect() as socket:
        await socket.send_json(ASKED | {"previous_response_id": last["response"]["id"]})
        [error] = await whole_turn(socket)
        assert (error["type"], error["status"], error["error"]["code"]) == ("error", 400, "previous_response_not_found")
        await socket.send_json(ASKED)
        assert (await whole_turn(socket))[-1]["type"] == "response.completed"


async def test_a_continuation_that_fails_takes_its_parent_with_it(house: House) -> None:
    remembering(house)
    async with house.connect() as socket:
        await socket.send_json(ASKED)
        parent = {"previous_response_id": (await whole_turn(socket))[-1]["response"]["id"]}
        await socket.send_json(ASKED | parent | {"input": "fail, please"})
        [failed] = await whole_turn(socket)
        assert failed["error"] == {"type": "invalid_request_error", "code": "invalid_request", "message": "No such call.", "param": "input"}
        await socket.send_json(ASKED | parent)
        [gone] = await whole_turn(socket)
        assert gone["error"]["code"] == "previous_response_not_found"


async def test_a_continuation_that_fails_in_its_stream_takes_its_parent_with_it_too(house: House) -> None:
    remembering(house)
    script = house.orchestrator.create
    async with house.connect() as socket:
        await socket.send_json(ASKED)
        parent = {"previous_response_id": (await whole_turn(socket))[-1]["response"]["id"]}
        house.orchestrator.create = lambda request: playing(*turn("Hello")[:4], RemoteError(StatusCode.UNKNOWN, "engine_error", "x"))
        await socket.send_json(ASKED | parent)
        frames = await whole_turn(socket)
        assert [frame["sequence_number"] for frame in frames] == [0, 1, 2, 3, 4]
        assert (frames[-1]["type"], frames[-1]["response"]["error"]["code"]) == ("response.failed", "engine_error")
        house.orchestrator.create = script
        await socket.send_json(ASKED | parent)
        assert (await whole_turn(socket))[0]["error"]["code"] == "previous_response_not_found"


async def test_two_turns_may_continue_from_the_same_response(house: House) -> None:
    remembering(house)
    async with house.connect() as socket:
        await socket.send_json(ASKED)
        parent = {"previous_response_id": (await whole_turn(socket))[-1]["response"]["id"]}
        for lane in "ab":
            await socket.send_json(ASKED | parent | {"stream_id": lane})
        frames = [*await whole_turn(socket), *await whole_turn(socket)]
        assert {frame["stream_id"] for frame in frames if frame["type"] == "response.completed"} == {"a", "b"}


async def test_the_oldest_of_what_was_not_stored_is_forgotten_first() -> None:
    async with open_house(websocket_retained_responses=2) as house:
        remembering(house)
        async with house.connect() as socket:
            ids = []
            for _ in range(3):
                await socket.send_json(ASKED)
                ids.append((await whole_turn(socket))[-1]["response"]["id"])
            codes = []
            for one in ids:
                await socket.send_json(ASKED | {"previous_response_id": one, "store": True})
                last = (await whole_turn(socket))[-1]
                codes.append(last["error"]["code"] if last["type"] == "error" else None)
            assert codes == ["previous_response_not_found", None, None]


async def test_turns_of_one_lane_run_one_after_another_in_order(house: House) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    waiting = iter(gates)
    house.orchestrator.create = lambda request: playing(*turn("Hello")[:1], next(waiting), *turn("Hello")[1:])
    async with house.connect() as socket:
        for text in "abc":
            await socket.send_json(ASKED | {"input": text})
        for number, gate in enumerate(gates, 1):
            assert (await receive(socket))["type"] == "response.created"
            assert len(house.orchestrator.turns) == number
            gate.set()
            assert [frame["type"] for frame in await whole_turn(socket)] == KINDS[1:]
    assert [asked.input[0][-4:-2] for asked in house.orchestrator.turns] == [b'"a', b'"b', b'"c']


async def test_lanes_run_side_by_side_and_every_frame_names_its_lane(house: House) -> None:
    gates = {b"a": asyncio.Event(), b"b": asyncio.Event()}
    house.orchestrator.create = lambda request: playing(*turn("Hello")[:1], gates[request.input[0][-3:-2]], *turn("Hello")[1:])
    async with house.connect() as socket:
        for lane in "ab":
            await socket.send_json(ASKED | {"input": lane, "stream_id": lane})
        assert {(await receive(socket))["stream_id"] for _ in range(2)} == {"a", "b"}
        for lane in (b"b", b"a"):
            gates[lane].set()
            frames = await whole_turn(socket)
            assert ([frame["type"] for frame in frames], {frame["stream_id"] for frame in frames}) == (KINDS[1:], {lane.decode()})


async def test_a_frame_with_a_lane_is_the_event_and_the_lane(house: House) -> None:
    odd = 'l"a\\n\u00e9'
    async with house.connect() as socket:
        await socket.send_json(ASKED | {"stream_id": odd})
        frames = await whole_turn(socket)
        assert [frame.pop("stream_id") for frame in frames] == [odd] * len(KINDS)
        assert [msgspec.json.encode(frame) for frame in frames] == [e.data for e in turn_events("Hello")]
        await socket.send_json(ASKED | {"stream_id": odd, "model": None})
        assert (await receive(socket))["stream_id"] == odd


async def test_an_error_frame_says_what_http_would_say(house: House) -> None:
    refused = RemoteError(StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded", "Slower.", headers={"retry-after": "7", "x-inner": "1"})
    house.orchestrator.create = lambda request: playing(refused)
    async with house.connect() as socket:
        await socket.send_json(ASKED | {"stream_id": "a"})
        assert await receive(socket) == {
            "type": "error",
            "status": 429,
            "error": {
                "type": "rate_limit_error",
                "code": "rate_limit_exceeded",
                "message": "Slower.",
                "param": None,
                "headers": {"retry-after": "7"},
            },
            "stream_id": "a",
        }


async def test_an_exception_is_masked_before_and_within_the_stream(house: House) -> None:
    """B162"""
    async with house.connect() as socket:
        for after in (0, 3):
            house.orchestrator.create = lambda request, after=after: playing(*turn("Hello")[:after], RuntimeError("/srv sk-marker"))
            await socket.send_json(ASKED)
            frames = await whole_turn(socket)
            assert "sk-marker" not in str(frames)
            assert "internal_error" in str(frames[-1])


async def test_a_turn_without_a_terminal_event_fails(house: House) -> None:
    """B032"""
    async with house.connect() as socket:
        house.orchestrator.create = lambda request: playing(*turn("Hello")[:-1])
        await socket.send_json(ASKED)
        assert (await whole_turn(socket))[-1]["response"]["error"]["code"] == "turn_interrupted"
        house.orchestrator.create = lambda request: playing()
        await socket.send_json(ASKED)
        assert (await whole_turn(socket))[0]["error"]["code"] == "turn_interrupted"


async def test_the_next_turn_of_a_lane_does_not_wait_for_what_follows_a_terminal_event(house: House) -> None:
    house.orchestrator.create = lambda request: playing(*turn("Hello"), for_ever())
    async with house.connect() as socket:
        for _ in range(3):
            await socket.send_json(ASKED)
            assert (await whole_turn(socket))[-1]["type"] == "response.completed"


async def test_deltas_are_padded_only_for_those_who_ask_for_it(house: House) -> None:
    async with house.connect() as socket:
        for wanted in (True, False):
            await socket.send_json(ASKED | {"stream_options": {"include_obfuscation": wanted}})
            frames = await whole_turn(socket)
            assert {frame["type"] for frame in frames if "obfuscation" in frame} == ({"response.output_text.delta"} if wanted else set())


async def test_text_of_any_language_passes_unchanged(house: House) -> None:
    """B120"""
    text = "阴气渐重🍸é\u2028\x00"
    house.orchestrator.create = lambda request: playing(*turn(text))
    async with house.connect() as socket:
        await socket.send_json(ASKED | {"input": text})
        assert (await whole_turn(socket))[-1]["response"]["output"][0]["content"][0]["text"] == text
    assert msgspec.json.decode(house.orchestrator.turns[0].input[0])["content"] == text


async def test_a_client_that_leaves_cancels_all_its_turns(house: House) -> None:
    """B114, B117: whether it says goodbye, hangs up or only closes its side."""
    for goodbye in ("close", "abort"):
        house.orchestrator.create = lambda request: playing(*turn("Hello")[:3], for_ever())
        socket = await house.connect()
        for lane in "abc":
            call = house.orchestrator.next_call
            await socket.send_json(ASKED | {"stream_id": lane})
            await within(call.started)
        if goodbye == "close":
            await socket.close()
        else:
            socket._response.connection.transport.abort()
        for call in house.orchestrator.calls[-3:]:
            await within(call.cancelled)


async def test_a_turn_that_waits_is_never_run_once_its_client_has_left(house: House) -> None:
    house.orchestrator.create = lambda request: playing(*turn("Hello")[:3], for_ever())
    call = house.orchestrator.next_call
    async with house.connect() as socket:
        for _ in range(5):
            await socket.send_json(ASKED)
        await within(call.started)
    await within(call.cancelled)
    assert (await house.http.get("/healthz")).status == 200
    assert len(house.orchestrator.turns) == 1


async def test_the_owner_is_that_of_the_key_and_a_key_is_asked_for() -> None:
    """B152, B159"""
    async with open_house(api_keys={"ada": "sk-ada", "bob": "sk-bob"}) as house:
        for headers in ({}, {"Authorization": "Bearer sk-wrong"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await house.connect(headers=headers)
            assert caught.value.status == 401
        async with house.connect(headers={"Authorization": "Bearer sk-bob"}) as socket:
            await socket.send_json(ASKED | {"user": "ada", "owner": "ada", "metadata": {"owner": "ada"}})
            await whole_turn(socket)
        assert [asked.owner for asked in house.orchestrator.turns] == ["bob"]


async def test_an_event_that_names_no_response_keeps_nothing_and_breaks_nothing(house: House) -> None:
    """What the orchestrator would never send does not end the connection."""
    odd = event(0, {"type": "response.completed", "response": {"no": "id"}})
    house.orchestrator.create = lambda request: playing(CreateResponseReply(events=[odd], continuation=b"x"))
    async with house.connect() as socket:
        await socket.send_json(ASKED)
        assert (await whole_turn(socket))[0]["error"]["code"] == "internal_error"
        house.orchestrator.create = lambda request: playing(*turn("Hello"))
        await socket.send_json(ASKED)
        assert (await whole_turn(socket))[-1]["type"] == "response.completed"


async def test_the_official_client_talks_over_a_websocket(house: House) -> None:
    remembering(house)
    async with house.sdk() as client, client.responses.connect() as connection:
        kinds, parent = [], None
        for _ in range(3):
            more = {"previous_response_id": parent} if parent else {}
            await connection.response.create(model="m", input="hi", store=False, stream_id="main", **more)
            async for received in connection:
                kinds.append(received.type)
                assert received.stream_id == "main"
                if received.type == "response.completed":
                    parent = received.response.id
                    break
        assert kinds == KINDS * 3
        await connection.response.create(model="m", input="hi", store=False, previous_response_id=OTHER_ID)
        error = await connection.recv()
        assert (error.type, error.status, error.error.code) == ("error", 400, "previous_response_not_found")


async def test_a_response_object_over_both_ways_is_the_same(house: House) -> None:
    async with house.connect() as socket:
        await socket.send_json(ASKED)
        over_socket = (await whole_turn(socket))[-1]["response"]
    over_http = await (await house.create({"model": "m", "input": "hi"})).json()
    assert over_socket == over_http
    assert over_http["id"] == response_object(RESPONSE_ID, "completed")["id"]


@pytest.mark.parametrize("recording", sorted(CODEX.glob("*ws*.json")), ids=lambda path: path.stem)
async def test_the_frames_of_the_codex_cli_are_understood(house: House, recording: Path) -> None:
    """Recorded sessions; each continuation gets the id of the response before it."""
    remembering(house)
    frames = [request["body"] for request in msgspec.json.decode(recording.read_bytes())["requests"] if request["transport"] == "websocket"]
    parent = None
    async with house.connect() as socket:
        for frame in frames:
            await socket.send_json(frame | ({"previous_response_id": parent} if frame.get("previous_response_id") else {}))
            *_, last = await whole_turn(socket)
            assert last["type"] == "response.completed"
            parent = last["response"]["id"]
    for asked, frame in zip(house.orchestrator.turns, frames, strict=True):
        assert (asked.store, asked.keep_continuation, asked.prewarm) == (False, True, frame.get("generate") is False)
        assert [msgspec.json.decode(item) for item in asked.input] == frame["input"]
        left = {"type", "model", "stream", "input", "store", "generate", "previous_response_id"}
        assert msgspec.json.decode(asked.parameters) == {name: value for name, value in frame.items() if name not in left}
