"""Clients that leave: the turn behind them is cancelled at once, with every middleware in place. And one that does not leave too early."""

import asyncio
import contextlib

import aiohttp
import msgspec
import pytest

from http_edge.metrics import IN_FLIGHT, REQUESTS
from tests.http_edge.fake_services import House, chunk, for_ever, head, open_house, playing, turn, within

STREAM = {"model": "m", "input": "hi", "stream": True}
KEYS = {"ada": "sk-ada"}
EVERYTHING_ON = {"api_keys": KEYS, "cors_origins": ("https://ada.example",), "access_log": True}
HEADERS = {"Authorization": "Bearer sk-ada", "Origin": "https://ada.example"}


async def test_a_streaming_client_that_hangs_up_cancels_the_turn() -> None:
    """B114, B117: in the middle of the text, with all middlewares on."""
    async with open_house(**EVERYTHING_ON) as house:
        house.orchestrator.create = lambda request: playing(*turn("Hello")[:5], for_ever())
        call = house.orchestrator.next_call
        answer = await house.create(STREAM, headers=HEADERS)
        await answer.content.readuntil(b"\n\n")
        assert answer.headers["access-control-allow-origin"] == "https://ada.example"
        answer.close()
        await within(call.cancelled)


async def test_a_streaming_client_that_hangs_up_before_the_first_event_cancels_the_turn() -> None:
    """B114, B117: while the engine has not said anything."""
    async with open_house(**EVERYTHING_ON) as house:
        await _leaves(house, STREAM)


async def test_a_client_without_stream_that_hangs_up_cancels_the_turn() -> None:
    """B116, B117: no generation is orphaned."""
    async with open_house(**EVERYTHING_ON) as house:
        await _leaves(house, STREAM | {"stream": False})


async def test_a_relayed_client_that_hangs_up_cancels_the_engine_call() -> None:
    """B114, B117: on the stateless path, before the head and within the body."""
    async with open_house(**EVERYTHING_ON) as house:
        await _leaves(house, STREAM | {"store": False})
        house.orchestrator.relay = lambda request: playing(head(200), chunk(b"data: 1\n\n"), for_ever())
        call = house.orchestrator.next_call
        answer = await house.create(STREAM | {"store": False}, headers=HEADERS)
        assert await answer.content.readany() == b"data: 1\n\n"
        answer.close()
        await within(call.cancelled)


async def test_five_retries_leave_no_orphans(house: House) -> None:
    """B116: each abandoned request cancels its own call."""
    house.orchestrator.create = lambda request: playing(for_ever())
    for _ in range(5):
        call = house.orchestrator.next_call
        asking = asyncio.create_task(house.create(STREAM | {"stream": False}))
        await within(call.started)
        asking.cancel()
        await within(call.cancelled)
    assert [call.cancelled.is_set() for call in house.orchestrator.calls] == [True] * 5


@pytest.mark.parametrize("path", ["stateful", "stateless"])
async def test_a_client_that_takes_no_byte_has_left(path: str) -> None:
    async with open_house(client_timeout_seconds=0.3) as house:
        big = "x" * 100_000
        house.orchestrator.create = lambda request: playing(*turn(*[big] * 300))
        house.orchestrator.relay = lambda request: playing(head(200), *(chunk(big.encode()) for _ in range(300)))
        call = house.orchestrator.next_call
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port, limit=1024)
        writer.write(_post(STREAM | {"store": path == "stateful"}))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await within(call.cancelled)
        writer.transport.abort()


async def test_a_client_that_takes_no_byte_of_the_last_event_has_left() -> None:
    """The terminal event repeats the whole answer, and is the largest."""
    async with open_house(client_timeout_seconds=0.3) as house:
        last = turn("x" * 20_000_000)[-1]
        house.orchestrator.create = lambda request: playing(*turn("Hello")[:2], last)
        before = IN_FLIGHT._value.get()
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port, limit=1024)
        writer.write(_post(STREAM))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await within(house.orchestrator.calls[0].finished)
        async with asyncio.timeout(5):
            while IN_FLIGHT._value.get() > before:
                await asyncio.sleep(0.01)
        writer.transport.abort()


async def test_a_slow_client_that_goes_on_taking_bytes_stays() -> None:
    async with open_house(client_timeout_seconds=0.5) as house:
        house.orchestrator.relay = lambda request: playing(head(200), *(chunk(b"x" * 100_000) for _ in range(100)))
        answer = await house.create(STREAM | {"store": False})
        taken = 0
        async for data in answer.content.iter_chunked(400_000):
            taken += len(data)
            await asyncio.sleep(0.02)
        assert taken == 10_000_000
        assert house.orchestrator.calls[0].finished.is_set()


async def test_a_client_that_closes_right_at_the_terminal_event_is_no_failure() -> None:
    """The Codex CLI closes its socket at response.completed and reads neither [DONE] nor the end."""
    async with open_house() as house:
        house.orchestrator.create = lambda request: playing(*turn("Hello"), for_ever())
        call, before = house.orchestrator.next_call, _count("200")
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        writer.write(_post(STREAM))
        await reader.readuntil(b"event: response.completed")
        await reader.readuntil(b"\n\n")
        writer.close()
        await within(call.cancelled)
        while _count("200") == before:
            await asyncio.sleep(0)


async def test_a_client_that_left_is_counted_as_such() -> None:
    async with open_house() as house:
        before = _count("499")
        await _leaves(house, STREAM)
        while _count("499") == before:
            await asyncio.sleep(0)


async def test_a_kept_connection_serves_one_request_after_another(house: House) -> None:
    async with aiohttp.ClientSession(house.url, connector=aiohttp.TCPConnector(limit=1)) as http:
        for stream in (True, False, True):
            answer = await http.post("/v1/responses", json=STREAM | {"stream": stream})
            assert answer.status == 200
            await answer.read()


async def _leaves(house: House, body: dict[str, object]) -> None:
    """Sends a request, waits until it is being worked on, hangs up, and waits for the cancellation."""
    house.orchestrator.create = house.orchestrator.relay = lambda request: playing(for_ever())
    call = house.orchestrator.next_call
    asking = asyncio.create_task(house.create(body, headers=HEADERS))
    await within(call.started)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await within(call.cancelled)


def _post(body: dict[str, object]) -> bytes:
    data = msgspec.json.encode(body)
    return b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def _count(status: str) -> float:
    return REQUESTS.labels("/v1/responses", "POST", status)._value.get()
