"""The stop of a process that has all rooms: turns end with a last word that their clients hear, and are stored so."""

import asyncio

import aiohttp

from launcher.rooms import ROOMS, RoomSettings, Source, load_settings, open_rooms
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import text
from tests.fakes.streams import check_stream, read_sse


def settings(database: str, engine: FakeEngine) -> RoomSettings:
    sections: dict[str, dict[str, object]] = {
        "history": {"database_url": database, "listen": ""},
        "engine": {"url": engine.url},
        "orchestrator": {"listen": "", "drain_seconds": 0.2},
        "edge": {"port": 0},
    }
    return load_settings(Source(None, {}, sections))


async def test_a_turn_that_outlives_the_drain_fails_aloud_and_is_stored_as_failed(database: str) -> None:
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        engine.play(text("hello there my friend").hold(asyncio.Event(), before=6))
        async with open_rooms(frozenset(ROOMS), settings(database, engine)) as opened:
            body = {"model": "m", "input": "hi", "stream": True}
            answer = await http.post(f"{opened.addresses['edge']}/v1/responses", json=body)
            begun = await answer.content.readany()
        response = check_stream(read_sse(begun + await answer.read()).events)
        assert (response["status"], response["error"]["code"]) == ("failed", "server_shutdown")

        async with (
            open_rooms(frozenset(ROOMS), settings(database, engine)) as opened,
            http.get(f"{opened.addresses['edge']}/v1/responses/{response['id']}") as stored,
        ):
            assert await stored.json() == response
