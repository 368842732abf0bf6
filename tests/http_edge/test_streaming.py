"""A stream from the first byte to the last: framing, heartbeats, and an honest end whatever happens behind it."""

import asyncio
import re

import msgspec
import pytest
from grpc import StatusCode

from svckit.errors import RemoteError, ServiceError
from tests.http_edge.fake_services import (
    House,
    event,
    for_ever,
    open_house,
    playing,
    reply,
    turn,
    turn_events,
    within,
)

STREAM = {"model": "m", "input": "hi", "stream": True}
SECRET = "sk-marker-in-an-exception"
EVENT = re.compile(rb"event: ([^\n]+)\ndata: ([^\n]+)\n\n")


class StorageUnknown(ServiceError):
    """The outcome of the save is not known."""

    code = StatusCode.UNAVAILABLE
    reason = "storage_outcome_unknown"


async def test_what_is_ready_together_is_written_together(house: House) -> None:
    """One HTTP chunk per message of the orchestrator, and no event in two of them."""
    events = turn_events("a", "b", "c")
    house.orchestrator.create = lambda request: playing(reply(*events[:2]), reply(*events[2:-1]), reply(events[-1]))
    answer = await house.create(STREAM)
    chunks = [data async for data, _ in answer.content.iter_chunks()]
    assert [len(EVENT.findall(chunk)) for chunk in chunks] == [2, len(events) - 3, 1]
    assert chunks[-1].endswith(b"\n\ndata: [DONE]\n\n")


async def test_no_proxy_is_invited_to_hold_the_stream_back(house: House) -> None:
    answer = await house.create(STREAM)
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    await answer.read()


async def test_bytes_of_any_language_pass_unchanged(house: House) -> None:
    """B120: characters of several bytes, also as escapes, come out as they went in."""
    house.orchestrator.create = lambda request: playing(*turn("阴气渐重🍸é", "\u2028"))
    text = (await (await house.create(STREAM)).read()).decode("utf-8")
    assert text.count("阴气渐重🍸é") == 5
    assert "\ufffd" not in text


async def test_a_silent_stream_gets_bare_comments_between_whole_events() -> None:
    """B123, B126: a comment and one line feed, no blank line, nothing that a parser takes for an event."""
    async with open_house(keep_alive_seconds=0.02) as house:
        go_on = asyncio.Event()
        first, *rest = turn("Hello")
        house.orchestrator.create = lambda request: playing(first, go_on, *rest)
        answer = await house.create(STREAM)
        head = await answer.content.readuntil(b"\n\n")
        gap = b"".join([await answer.content.readuntil(b"\n") for _ in range(3)])
        go_on.set()
        tail = await answer.read()
    assert gap == b": keep-alive\n" * 3
    assert re.fullmatch(rb"(: keep-alive\n)*" + re.escape(_framed(turn_events("Hello")[1:]) + b"data: [DONE]\n\n"), tail)
    assert EVENT.fullmatch(head)


async def test_a_busy_stream_gets_no_comments() -> None:
    async with open_house(keep_alive_seconds=5) as house:
        assert b": keep-alive" not in await (await house.create(STREAM)).read()


async def test_heartbeats_stop_with_the_stream() -> None:
    """B123: nothing is written into a connection after the end of its stream."""
    async with open_house(keep_alive_seconds=0.005) as house:
        for _ in range(5):
            assert (await (await house.create(STREAM)).read()).endswith(b"data: [DONE]\n\n")
            assert (await house.http.get("/healthz")).status == 200


@pytest.mark.parametrize("length", range(1, 9))
async def test_a_turn_that_breaks_off_ends_in_exactly_one_failed_event(house: House, length: int) -> None:
    """B032: wherever the orchestrator is lost, the stream has one terminal event, and it is not `completed`."""
    house.orchestrator.create = lambda request: playing(*turn("Hello")[:length], StorageUnknown())
    events = _events(await (await house.create(STREAM)).read())
    assert [body["sequence_number"] for body in events] == list(range(length + 1))
    assert [body["type"] for body in events if body["type"] in ("response.completed", "response.incomplete", "response.failed")] == [
        "response.failed"
    ]
    response = events[-1]["response"]
    assert response["id"] == events[0]["response"]["id"]
    assert (response["status"], response["error"]["code"]) == ("failed", "storage_outcome_unknown")
    assert response["output"] == [body["item"] for body in events if body["type"] == "response.output_item.done"]


async def test_a_turn_without_a_terminal_event_fails(house: House) -> None:
    """B032: a clean end of the call is not taken for the end of the turn."""
    house.orchestrator.create = lambda request: playing(*turn("Hello")[:-1])
    data = await (await house.create(STREAM)).read()
    assert _events(data)[-1]["response"]["error"]["code"] == "turn_interrupted"
    assert data.endswith(b"data: [DONE]\n\n")
    answer = await house.create(STREAM | {"stream": False})
    assert (answer.status, (await answer.json())["error"]["code"]) == (500, "turn_interrupted")


async def test_a_turn_without_any_event_is_an_error_with_a_status(house: House) -> None:
    for stream in (True, False):
        house.orchestrator.create = lambda request: playing()
        answer = await house.create(STREAM | {"stream": stream})
        assert (answer.status, (await answer.json())["error"]["code"]) == (500, "turn_interrupted")


async def test_an_error_after_the_terminal_event_changes_nothing(house: House) -> None:
    house.orchestrator.create = lambda request: playing(*turn("Hello"), StorageUnknown())
    assert await (await house.create(STREAM)).read() == _framed(turn_events("Hello")) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("after", [0, 3])
async def test_an_exception_is_masked_before_and_within_the_stream(house: House, after: int) -> None:
    """B162: no word of an unforeseen exception reaches the client, in an error answer or in an event."""
    house.orchestrator.create = lambda request: playing(*turn("Hello")[:after], RuntimeError(f"/srv/app.py {SECRET}"))
    for stream in (True, False):
        data = await (await house.create(STREAM | {"stream": stream})).read()
        assert SECRET.encode() not in data
        assert b"internal_error" in data


async def test_words_of_the_channel_are_not_shown(house: House) -> None:
    """B156: gRPC's own messages name hosts and ports."""
    lost = RemoteError(StatusCode.UNAVAILABLE, "unavailable", "failed to connect to ipv4:10.0.0.7:9002")
    house.orchestrator.create = lambda request: playing(lost)
    answer = await house.create(STREAM)
    assert answer.status == 503
    assert await answer.json() == {
        "error": {"message": "Service Unavailable.", "type": "server_error", "param": None, "code": "unavailable"}
    }
    house.orchestrator.create = lambda request: playing(*turn("Hello")[:3], lost)
    assert b"10.0.0.7" not in await (await house.create(STREAM)).read()


async def test_a_first_event_that_is_no_lifecycle_event_still_gets_an_end(house: House) -> None:
    odd = event(0, {"type": "response.output_text.delta", "delta": "x"})
    house.orchestrator.create = lambda request: playing(reply(odd), StorageUnknown())
    last = _events(await (await house.create(STREAM)).read())[-1]
    assert (last["type"], last["sequence_number"], last["response"]["status"]) == ("response.failed", 1, "failed")


async def test_items_that_finished_out_of_order_stand_in_their_places(house: House) -> None:
    first, *_ = turn("Hello")
    done = [reply(event(n, {"type": "response.output_item.done", "output_index": 2 - n, "item": {"id": f"i{n}"}})) for n in (1, 2)]
    house.orchestrator.create = lambda request: playing(first, *done, StorageUnknown())
    last = _events(await (await house.create(STREAM)).read())[-1]
    assert [item["id"] for item in last["response"]["output"]] == ["i2", "i1"]


async def test_streams_run_side_by_side(house: House) -> None:
    gate = asyncio.Event()
    first, *rest = turn("Hello")
    house.orchestrator.create = lambda request: playing(first, gate, *rest)
    answers = await asyncio.gather(*(house.create(STREAM) for _ in range(20)))
    gate.set()
    bodies = await asyncio.gather(*(answer.read() for answer in answers))
    assert set(bodies) == {_framed(turn_events("Hello")) + b"data: [DONE]\n\n"}


async def test_an_http_1_0_client_gets_the_stream_too(house: House) -> None:
    body = msgspec.json.encode(STREAM)
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(b"POST /v1/responses HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    data = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert data.endswith(_framed(turn_events("Hello")) + b"data: [DONE]\n\n")


async def test_nothing_is_sent_before_the_first_event(house: House) -> None:
    """The status stays open until then, so that a failure keeps its own."""
    gate = asyncio.Event()
    house.orchestrator.create = lambda request: playing(gate, StorageUnknown())
    call = house.orchestrator.next_call
    asking = asyncio.create_task(house.create(STREAM))
    await within(call.started)
    gate.set()
    assert (await asking).status == 503


async def test_a_stream_that_never_ends_does_not_stop_other_requests(house: House) -> None:
    house.orchestrator.create = lambda request: playing(turn("Hello")[0], for_ever())
    answer = await house.create(STREAM)
    assert (await house.http.get("/healthz")).status == 200
    answer.close()


def _framed(events: list[object]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.data) for event in events)


def _events(data: bytes) -> list[dict[str, object]]:
    return [msgspec.json.decode(body) for _, body in EVENT.findall(data)]
