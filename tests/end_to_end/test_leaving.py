"""Leaving: a client that goes stops the engine and leaves a cancelled response; one that goes at the end has had all of it.

Heartbeats are here as well: they are what keeps a client from going.
"""

import asyncio
import json
import random
import re
import socket
import time
from typing import cast

import aiohttp
import pytest

from tests.end_to_end.client import Client, refusal_of, text_of
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine, Received
from tests.fakes.scripts import text
from tests.fakes.streams import check_stream, read_sse

SOON = 5.0
SMALL_WINDOW = 4096


async def test_the_engine_is_left_when_a_streaming_client_leaves(ada: Client, engine: FakeEngine) -> None:
    """B114, B117: through the shipped server with all its middlewares; what was said until then is stored as cancelled."""
    engine.play(text("one two three four").hold(asyncio.Event(), before=6))
    async with ada.streaming("go") as answer:
        events = await _until(answer, b"response.output_text.delta")
    await _closed(await engine.request(0))

    response = await _stored(ada, _id_of(events))
    output = cast(list[Json], response["output"])
    assert (response["status"], output[0]["status"]) == ("cancelled", "incomplete")
    assert text_of(response).startswith("one")
    assert (await ada.refused("more", previous_response_id=response["id"])).code == "response_not_continuable"


async def test_the_engine_is_left_before_it_has_answered(ada: Client, engine: FakeEngine) -> None:
    """B114: the head of the engine's answer never comes."""
    engine.play(text("late").hold_head(asyncio.Event()))
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.5):
            await ada.stream("go")
    await _closed(await engine.request(0))


@pytest.mark.parametrize("held", ["head", "text"])
async def test_five_impatient_clients_leave_no_generation_behind(ada: Client, engine: FakeEngine, held: str) -> None:
    """B116: requests that are not streamed are cancelled too; retries do not stack up."""
    never = asyncio.Event()
    for _ in range(5):
        engine.play(text("one two").hold_head(never) if held == "head" else text("one two").hold(never, before=5))
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.5):
                await ada.create("go")
    for number in range(5):
        await _closed(await engine.request(number))

    assert engine.most_in_flight <= 2


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_the_relay_is_cancelled_too(ada: Client, engine: FakeEngine, path: str) -> None:
    """B114: on the stateless path as well."""
    engine.strict = False
    engine.play(text("one two three").hold(asyncio.Event(), before=3))
    body = json.dumps({"model": "m", "input": "go", "store": False, "stream": True}).encode()
    headers = {"authorization": f"Bearer {ada.key}"}
    async with ada.http.post(ada.url + path, data=body, headers=headers) as answer:
        await answer.content.readuntil(b"\n\n")
    await _closed(await engine.request(0))


async def test_a_client_that_hangs_up_at_the_terminal_event_has_it_stored(ada: Client, engine: FakeEngine) -> None:
    """B004: Codex closes right at `response.completed`, before `[DONE]`: that is no cancel."""
    for turn in range(30):
        async with ada.streaming(f"turn {turn}") as answer:
            events = await _until(answer, b"event: response.completed")
        continued = await ada.create("and?", previous_response_id=_id_of(events))
        assert (await ada.get(_id_of(events)))["status"] == continued["status"] == "completed"


async def test_a_client_that_takes_no_bytes_has_left(ada: Client, engine: FakeEngine) -> None:
    """B114: the connection stands and nobody reads: the engine is left after the patience of the settings."""
    engine.play(text("", deltas=["word " * 400] * 1500).hold(asyncio.Event(), before=1500))
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
        idle.setblocking(False)
        await asyncio.get_running_loop().sock_connect(idle, _address(ada.url))
        await asyncio.get_running_loop().sock_sendall(idle, _asked(ada.key, {"model": "m", "input": "go", "stream": True}))
        await _closed(await engine.request(0), 30)


async def test_a_storm_of_leaving_clients_leaves_everything_whole(ada: Client, engine: FakeEngine) -> None:
    """B144, B112: two hundred clients leave at random moments; then more turns than there are connections succeed at once."""
    chance = random.Random(4)
    root = await ada.create("root")
    engine.default = lambda received: text("one two three four five").paced(0.01)

    async def leave(after: float) -> None:
        try:
            async with asyncio.timeout(after):
                await ada.create("go", previous_response_id=root["id"])
        except (TimeoutError, aiohttp.ClientError):
            pass

    await asyncio.gather(*(leave(chance.uniform(0.001, 0.6)) for _ in range(200)))
    engine.default = lambda received: text("fine")
    answers = await asyncio.gather(*(ada.create("go", previous_response_id=root["id"]) for _ in range(40)))

    assert [text_of(response) for response in answers] == ["fine"] * 40
    ready = await ada.request("GET", "/readyz")
    assert ready.status == 200


@pytest.mark.parametrize("held", ["head", "event"])
async def test_a_silent_stream_is_kept_alive(ada: Client, engine: FakeEngine, held: str) -> None:
    """B123, B126: comments while the engine thinks, of the one form that no SDK takes for an event; they end with the stream."""
    hold = asyncio.Event()
    script = text("at last")
    engine.play(script.hold_head(hold) if held == "head" else script.hold(hold, before=4))
    async with ada.streaming("go") as answer:
        raw = await answer.content.readuntil(b": keep-alive\n")
        raw += await answer.content.readuntil(b": keep-alive\n")
        hold.set()
        raw += await answer.content.read()
    sse = read_sse(raw)

    check_stream(sse.events)
    assert sse.heartbeats >= 2
    assert all(re.fullmatch(rb"(: keep-alive\n)*", gap) for gap in sse.gaps)
    assert sse.gaps[-1] == b""


async def test_comments_of_the_engine_are_not_passed_on(ada: Client, engine: FakeEngine) -> None:
    """B126: an engine's own heartbeat is no event and no heartbeat of ours."""
    engine.play(text("fine").edited(lambda event: [b": PROCESSING\n\n", event]))
    streamed = await ada.stream("go")

    assert text_of(streamed.response) == "fine"


async def test_a_foreground_response_is_not_there_before_its_end(ada: Client, engine: FakeEngine) -> None:
    """GET is 404 while it runs, and it cannot be continued."""
    hold = asyncio.Event()
    engine.play(text("one two").hold(hold, before=4))
    async with ada.streaming("go") as answer:
        response_id = _id_of(await _until(answer, b"event: response.in_progress"))
        assert not await ada.is_stored(response_id)
        early = await ada.request("POST", "/v1/responses", {"model": "m", "input": "x", "previous_response_id": response_id})
        hold.set()
        await answer.read()

    assert refusal_of(early).code == "previous_response_not_found"
    assert await ada.is_stored(response_id)


async def _until(answer: aiohttp.ClientResponse, mark: bytes) -> list[Json]:
    """The events up to the first that holds `mark`, read one by one."""
    frames: list[bytes] = []
    while not frames or mark not in frames[-1]:
        frames.append(await answer.content.readuntil(b"\n\n"))
    return [json.loads(frame.partition(b"data: ")[2]) for frame in frames]


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def _asked(key: str, body: Json) -> bytes:
    data = json.dumps(body).encode()
    return f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def _id_of(events: list[Json]) -> str:
    return str(cast(Json, events[0]["response"])["id"])


async def _closed(received: Received, seconds: float = SOON) -> None:
    async with asyncio.timeout(seconds):
        await received.closed.wait()


async def _stored(client: Client, response_id: str) -> Json:
    """The response as soon as it is there: a turn whose client has left is stored a moment later."""
    deadline = time.monotonic() + SOON
    while not await client.is_stored(response_id):
        assert time.monotonic() < deadline, "it was never stored"
    return await client.get(response_id)
