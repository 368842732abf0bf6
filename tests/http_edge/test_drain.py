"""The end of an edge: what runs may finish, what takes too long gets a last word, and nothing new begins."""

import asyncio

import aiohttp
import msgspec
import pytest

from tests.http_edge.fake_services import House, for_ever, open_house, playing, turn, turn_events, within

STREAM = {"model": "m", "input": "hi", "stream": True}


class Stopping:
    """A house that is closed on demand while its client goes on."""

    def __init__(self, **edge: object) -> None:
        self._edge = edge
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[House] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> tuple[House, aiohttp.ClientSession, "Stopping"]:
        self._task = asyncio.create_task(self._live())
        house = await self._opened
        self._http = aiohttp.ClientSession(house.url)
        return house, self._http, self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._task
        await self._http.close()

    def stop(self) -> None:
        self._stop.set()

    async def stopped(self) -> None:
        await asyncio.wait_for(self._task, 10)

    async def _live(self) -> None:
        async with open_house(**self._edge) as house:
            self._opened.set_result(house)
            await self._stop.wait()


async def test_a_running_stream_finishes_and_nothing_new_is_accepted() -> None:
    async with Stopping(drain_seconds=30) as (house, http, stopping):
        gate = asyncio.Event()
        first, *rest = turn("Hello")
        house.orchestrator.create = lambda request: playing(first, gate, *rest)
        running = await http.post("/v1/responses", json=STREAM)
        await running.content.readuntil(b"\n\n")
        stopping.stop()
        await _refused(house)
        gate.set()
        tail = await running.read()
        assert tail.endswith(b"event: response.completed\ndata: " + turn_events("Hello")[-1].data + b"\n\ndata: [DONE]\n\n")
        await stopping.stopped()


async def test_a_stream_that_outlives_the_drain_ends_in_a_failed_event() -> None:
    async with Stopping(drain_seconds=0.05) as (house, http, stopping):
        house.orchestrator.create = lambda request: playing(*turn("Hello")[:5], for_ever())
        call = house.orchestrator.next_call
        running = await http.post("/v1/responses", json=STREAM)
        stopping.stop()
        last = (await running.text()).split("\n\n")[-3]
        assert last.startswith("event: response.failed\n")
        assert msgspec.json.decode(last.partition("data: ")[2])["response"]["error"]["code"] == "server_shutdown"
        await within(call.cancelled)
        await stopping.stopped()


@pytest.mark.parametrize("store", [True, False])
async def test_a_request_that_outlives_the_drain_is_told_to_come_again(store: bool) -> None:
    async with Stopping(drain_seconds=0.05) as (house, http, stopping):
        house.orchestrator.create = house.orchestrator.relay = lambda request: playing(for_ever())
        call = house.orchestrator.next_call
        asking = asyncio.create_task(http.post("/v1/responses", json={"model": "m", "input": "hi", "store": store}))
        await within(call.started)
        stopping.stop()
        answer = await asking
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await answer.json())["error"]["code"] == "server_shutdown"
        await within(call.cancelled)
        await stopping.stopped()


async def test_an_idle_connection_does_not_hold_up_the_end() -> None:
    async with Stopping(drain_seconds=30) as (_house, http, stopping):
        assert (await http.get("/healthz")).status == 200
        stopping.stop()
        await stopping.stopped()


async def _refused(house: House) -> None:
    """Waits until the port is closed."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", house.port)
        except ConnectionRefusedError:
            return
        writer.close()
