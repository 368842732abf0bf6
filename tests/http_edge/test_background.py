"""Background turns over HTTP: started, watched from any event on, cancelled; and the two requests that only look at a context."""

import asyncio
import re

import msgspec
import pytest
from grpc import StatusCode

from http_edge.metrics import VIEWERS
from svckit.errors import RemoteError
from tests.http_edge.fake_services import (
    RESPONSE_ID,
    House,
    for_ever,
    logged,
    open_house,
    playing,
    reply,
    response_object,
    stored,
    turn_events,
    within,
)
from tests.http_edge.test_drain import Stopping
from turnkeep.common.v1.common_pb2 import RESPONSE_STATUS_CANCELLED, RESPONSE_STATUS_QUEUED
from turnkeep.history.v1.history_pb2 import WatchEventsReply

PATH = f"/v1/responses/{RESPONSE_ID}"
ASKED = {"model": "m", "input": "hi", "background": True}
EVENTS = turn_events("Hello")
DONE = b"data: [DONE]\n\n"
CUT_OFF = (StatusCode.UNAVAILABLE, "database_unavailable", "The database cannot be reached.")


def framed(events: list[object]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.data) for event in events)


def keep(house: House, status: int = RESPONSE_STATUS_QUEUED, owner: str = "default") -> None:
    """The response is there."""
    body = response_object(RESPONSE_ID, "queued") | {"background": True}
    del body["id"], body["output"]
    house.history.responses[owner, RESPONSE_ID] = stored(body, status=status)


async def test_a_background_turn_is_queued_and_given_at_once(house: House) -> None:
    answer = await house.create(ASKED)
    [started] = house.orchestrator.started
    assert (answer.status, await answer.json()) == (200, response_object(RESPONSE_ID, "queued") | {"background": True})
    assert (started.owner, started.turn.owner, started.turn.model, started.turn.store) == ("default", "default", "m", True)
    assert started.turn.parameters == b'{"background":true}'
    assert house.orchestrator.turns == house.history.asked == []


async def test_a_background_turn_that_is_not_stored_is_refused(house: House) -> None:
    """B125: it could be neither polled nor cancelled."""
    answer = await house.create(ASKED | {"store": False})
    assert (answer.status, (await answer.json())["error"]["param"]) == (400, "background")
    assert house.orchestrator.started == house.orchestrator.relayed == []


async def test_a_full_queue_says_so(house: House) -> None:
    house.orchestrator.error = RemoteError(StatusCode.RESOURCE_EXHAUSTED, "queue_full", "Too many turns wait.")
    for stream in (True, False):
        answer = await house.create(ASKED | {"stream": stream})
        error = (await answer.json())["error"]
        assert (answer.status, error["type"], error["code"], answer.headers["retry-after"]) == (429, "rate_limit_error", "queue_full", "1")


async def test_a_streamed_background_turn_is_watched_from_its_first_event(house: House) -> None:
    keep(house)
    house.history.watch = lambda request: playing(logged(*EVENTS[:3]), logged(*EVENTS[3:]))
    answer = await house.create(ASKED | {"stream": True})
    [asked] = house.history.asked
    assert (asked.owner, asked.response_id, asked.starting_after) == ("default", RESPONSE_ID, -1)
    assert await answer.read() == framed(EVENTS) + DONE


@pytest.mark.parametrize(
    ("query", "starting_after"),
    [("", -1), ("&starting_after=0", 0), ("&starting_after=4", 4), ("&starting_after=9223372036854775807", 2**63 - 1)],
)
async def test_a_viewer_comes_back_behind_the_event_that_it_has(house: House, query: str, starting_after: int) -> None:
    keep(house)
    house.history.watch = lambda request: playing(logged(*EVENTS[request.starting_after + 1 :]))
    answer = await house.http.get(f"{PATH}?stream=true{query}")
    [asked] = house.history.asked
    assert asked.starting_after == starting_after
    assert await answer.read() == framed(EVENTS[starting_after + 1 :]) + DONE


async def test_a_viewer_of_a_cancelled_run_gets_what_there_was_and_no_invented_end(house: House) -> None:
    """There is no event for it: the log ends, and so does the stream."""
    keep(house)
    house.history.watch = lambda request: playing(logged(*EVENTS[:5]))
    for answer in (await house.http.get(f"{PATH}?stream=true"), await house.create(ASKED | {"stream": True})):
        assert await answer.read() == framed(EVENTS[:5]) + DONE


@pytest.mark.parametrize(("status", "event"), [("completed", "response.completed"), ("failed", "response.failed"), ("cancelled", None)])
async def test_where_the_last_events_were_lost_the_stored_response_ends_the_stream(house: House, status: str, event: str | None) -> None:
    body = response_object(RESPONSE_ID, status) | {"background": True}
    del body["id"], body["output"]
    house.history.responses["default", RESPONSE_ID] = stored(body)
    lost = WatchEventsReply(lost_behind=4)
    house.history.watch = lambda request: playing(*([logged(*EVENTS[:5])] if request.starting_after < 0 else []), lost)

    whole = await (await house.http.get(f"{PATH}?stream=true")).read()
    again = await (await house.http.get(f"{PATH}?stream=true&starting_after=4")).read()

    assert whole == framed(EVENTS[:5]) + again
    if event is None:
        assert again == DONE
    else:
        head, _, data = again.removesuffix(DONE).strip().partition(b"\ndata: ")
        told = msgspec.json.decode(data)
        assert (head.decode(), told["type"], told["sequence_number"]) == (f"event: {event}", event, 5)
        assert told["response"] == await (await house.http.get(PATH)).json()


async def test_a_viewer_of_nothing_yet_gets_heartbeats() -> None:
    """B126: a queued turn may wait for long, and its viewer's connection must live as long."""
    async with open_house(keep_alive_seconds=0.05) as house:
        keep(house)
        go_on = asyncio.Event()
        house.history.watch = lambda request: playing(go_on, logged(*EVENTS))
        answer = await house.http.get(f"{PATH}?stream=true")
        gap = b"".join([await answer.content.readuntil(b"\n") for _ in range(3)])
        go_on.set()
        tail = await answer.read()
    assert gap == b": keep-alive\n" * 3
    assert re.fullmatch(rb"(: keep-alive\n)*" + re.escape(framed(EVENTS) + DONE), tail)


@pytest.mark.parametrize("begin", [(), (logged(),)])
async def test_a_viewer_of_nothing_yet_has_the_head_at_once(house: House, begin: tuple[WatchEventsReply, ...]) -> None:
    keep(house)
    go_on = asyncio.Event()
    house.history.watch = lambda request: playing(*begin, go_on, logged(*EVENTS))
    answer = await house.http.get(f"{PATH}?stream=true")
    go_on.set()
    assert await answer.read() == framed(EVENTS) + DONE


async def test_a_viewer_that_leaves_ends_its_watch_and_nothing_else(house: House) -> None:
    """Before the first event and within the stream; no cancellation is asked for."""
    keep(house)
    for steps in ((for_ever(),), (logged(*EVENTS[:4]), for_ever())):
        house.history.watch = lambda request, steps=steps: playing(*steps)
        for path in ("create", "get"):
            call = house.history.next_call
            asking = asyncio.create_task(
                house.create(ASKED | {"stream": True}) if path == "create" else house.http.get(f"{PATH}?stream=true")
            )
            await within(call.started)
            if len(steps) > 1:
                answer = await asking
                await answer.content.readuntil(b"\n\n")
                answer.close()
            else:
                asking.cancel()
            await within(call.cancelled)
    assert {type(asked).__name__ for asked in house.history.asked} == {"WatchEventsRequest"}
    async with asyncio.timeout(10):
        while VIEWERS._value.get():
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("reason", "code", "status"),
    [("events_gone", StatusCode.FAILED_PRECONDITION, 400), ("database_unavailable", StatusCode.UNAVAILABLE, 503)],
)
async def test_a_view_that_fails_at_once_has_a_status(house: House, reason: str, code: StatusCode, status: int) -> None:
    keep(house)
    house.history.watch = lambda request: playing(RemoteError(code, reason, "So it is."))
    answer = await house.http.get(f"{PATH}?stream=true")
    assert (answer.status, (await answer.json())["error"]["code"]) == (status, reason)


async def test_a_view_that_breaks_off_says_nothing_about_the_run(house: House) -> None:
    """B032: no terminal event is made up, and without `[DONE]` the client knows that it has to come back."""
    keep(house)
    house.history.watch = lambda request: playing(logged(*EVENTS[:4]), RemoteError(*CUT_OFF))
    data = await _read_raw(house, f"GET {PATH}?stream=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b"response.failed" not in data
    assert DONE not in data
    assert not data.endswith(b"0\r\n\r\n")
    assert data.count(b"event: ") == 4


async def test_a_stop_ends_a_view_and_makes_nothing_up() -> None:
    async with Stopping(drain_seconds=0.05) as (house, _http, stopping):
        keep(house)
        house.history.watch = lambda request: playing(logged(*EVENTS[:4]), for_ever())
        call = house.history.next_call
        reading = asyncio.create_task(_read_raw(house, f"GET {PATH}?stream=true HTTP/1.1\r\nHost: x\r\n\r\n".encode()))
        await within(call.started)
        stopping.stop()
        data = await reading
        assert data.count(b"event: ") == 4
        assert b"response.failed" not in data
        assert not data.endswith(b"0\r\n\r\n")
        await stopping.stopped()


async def test_many_viewers_see_the_same(house: House) -> None:
    keep(house)
    gate = asyncio.Event()
    house.history.watch = lambda request: playing(logged(*EVENTS[:4]), gate, *(logged(event) for event in EVENTS[4:]))
    answers = await asyncio.gather(*(house.http.get(f"{PATH}?stream=true") for _ in range(20)))
    gate.set()
    assert set(await asyncio.gather(*(answer.read() for answer in answers))) == {framed(EVENTS) + DONE}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=yes", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=false&starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=", "starting_after"),
        ("stream=true&starting_after=%D9%A3", "starting_after"),
        ("stream=true&starting_after=9223372036854775808", "starting_after"),
        ("stream=true&starting_after=" + "9" * 5000, "starting_after"),
        ("stream=true&include_obfuscation=1", "include_obfuscation"),
        ("stream=true&include[]=everything", "include"),
    ],
)
async def test_what_a_view_cannot_do_is_refused_by_name(house: House, query: str, param: str) -> None:
    keep(house)
    answer = await house.http.get(f"{PATH}?{query}")
    assert (answer.status, (await answer.json())["error"]["param"]) == (400, param)
    assert house.history.asked == []


async def test_a_cancelled_response_is_given_as_it_stands_however_often(house: House) -> None:
    """B125: cancelling is idempotent, and what has ended is given as it is."""
    keep(house, RESPONSE_STATUS_CANCELLED)
    answers = [await house.http.post(f"{PATH}/cancel") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert [await answer.json() for answer in answers] == [response_object(RESPONSE_ID, "queued") | {"background": True}] * 2


async def test_a_cancellation_is_refused_for_the_true_reason(house: House) -> None:
    """B125"""
    answer = await house.http.post(f"{PATH}/cancel")
    assert (answer.status, (await answer.json())["error"]["code"]) == (404, "response_not_found")
    house.history.error = RemoteError(StatusCode.FAILED_PRECONDITION, "not_background", "other words")
    answer = await house.http.post(f"{PATH}/cancel", json={"ignored": True})
    assert answer.status == 400
    assert await answer.json() == {
        "error": {
            "message": "Cannot cancel a synchronous response.",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_background",
        }
    }


async def test_deltas_are_padded_for_those_who_ask_for_it_and_for_nobody_else(house: House) -> None:
    keep(house)
    events = turn_events("a", "bc", "def" * 10)
    house.history.watch = lambda request: playing(logged(*events))
    house.orchestrator.create = lambda request: playing(*map(reply, events))
    padding = {"stream": True, "stream_options": {"include_obfuscation": True}}
    for answer in (
        await house.http.get(f"{PATH}?stream=true&include_obfuscation=true"),
        await house.create({"model": "m", "input": "hi"} | padding),
        await house.create(ASKED | padding),
    ):
        data = await answer.read()
        sent = re.findall(rb"data: (\{[^\n]+)\n", data)
        bodies = [msgspec.json.decode(body) for body in sent]
        assert [{k: v for k, v in body.items() if k != "obfuscation"} for body in bodies] == [msgspec.json.decode(e.data) for e in events]
        assert {"obfuscation" in body for body in bodies if body["type"].endswith(".delta")} == {True}
        assert {"obfuscation" in body for body in bodies if not body["type"].endswith(".delta")} == {False}
        assert {len(body) % 64 for body in sent if b".delta" in body} == {0}
    plain = await house.create({"model": "m", "input": "hi", "stream": True, "stream_options": {"include_obfuscation": False}})
    assert b"obfuscation" not in await plain.read() + await (await house.http.get(f"{PATH}?stream=true")).read()


async def test_input_tokens_are_counted_by_the_orchestrator(house: House) -> None:
    answer = await house.http.post("/v1/responses/input_tokens", json={"model": "m", "input": "hi", "instructions": "be brief"})
    [asked] = house.orchestrator.asked
    assert (answer.status, await answer.json()) == (200, {"object": "response.input_tokens", "input_tokens": 42})
    assert (asked.owner, asked.turn.model, asked.turn.parameters) == ("default", "m", b'{"instructions":"be brief"}')
    assert (await house.http.post("/v1/responses/input_tokens", json={})).status == 200


async def test_a_compaction_is_given_as_the_orchestrator_made_it(house: House) -> None:
    answer = await house.http.post("/v1/responses/compact", json={"model": "m", "input": "hi", "prompt_cache_key": "k"})
    [asked] = house.orchestrator.asked
    assert (answer.status, await answer.read()) == (200, house.orchestrator.compaction)
    assert (asked.owner, asked.turn.store, asked.turn.parameters) == ("default", False, b'{"prompt_cache_key":"k"}')


async def test_a_compaction_without_a_model_or_without_a_summary_is_an_error(house: House) -> None:
    """B097: never 200 with none."""
    missing = await house.http.post("/v1/responses/compact", json={"input": "hi"})
    assert (missing.status, (await missing.json())["error"]["param"]) == (400, "model")
    house.orchestrator.error = RemoteError(StatusCode.UNKNOWN, "compaction_failed", "There is no summary.")
    failed = await house.http.post("/v1/responses/compact", json={"model": "m", "input": "hi"})
    assert (failed.status, (await failed.json())["error"]["code"]) == (502, "compaction_failed")


async def test_the_official_client_starts_polls_resumes_and_cancels(house: House) -> None:
    keep(house)
    house.history.watch = lambda request: playing(logged(*EVENTS[request.starting_after + 1 :]))
    async with house.sdk() as client:
        queued = await client.responses.create(model="m", input="hi", background=True)
        assert (queued.id, queued.status, queued.background) == (RESPONSE_ID, "queued", True)
        assert (await client.responses.retrieve(queued.id)).status == "queued"
        stream = await client.responses.create(model="m", input="hi", background=True, stream=True)
        assert [event.sequence_number async for event in stream] == list(range(len(EVENTS)))
        resumed = await client.responses.retrieve(queued.id, stream=True, starting_after=3)
        assert [event.sequence_number async for event in resumed] == list(range(4, len(EVENTS)))
        assert (await client.responses.cancel(queued.id)).id == RESPONSE_ID
        assert (await client.responses.input_tokens.count(model="m", input="hi")).input_tokens == 42
        assert (await client.responses.compact(model="m", input="hi")).object == "response.compaction"


async def _read_raw(house: House, raw: bytes) -> bytes:
    """All bytes of an answer, until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(raw)
    async with asyncio.timeout(10):
        data = await reader.read()
    writer.close()
    return data
