"""Several gateways over one database: what one has stored the other goes on from, at once; and their first start together."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import psycopg
import pytest

from tests.end_to_end.client import Client
from tests.end_to_end.conftest import KEYS
from tests.end_to_end.gateway import Gateway, Place
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.postgres import fresh_database

LOOPS = 200
SCHEMA = """
    select table_name, column_name, data_type from information_schema.columns
    where table_schema = 'public' and table_name not like 'pg_stat%' order by 1, 2
"""


@pytest.fixture
def other(twin: Gateway, http: aiohttp.ClientSession) -> Client:
    """The same caller at the other gateway."""
    return Client(http, twin.url, KEYS["ada"])


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same gateway", "other gateway"])
async def test_a_streamed_id_can_be_continued_at_once(ada: Client, other: Client, engine: FakeEngine, elsewhere: bool) -> None:
    """B004: two hundred times: as soon as `response.completed` can be read, the id is a parent, here and there."""
    second = other if elsewhere else ada

    async def once(number: int) -> bool:
        async with ada.streaming(f"turn {number}") as answer:
            completed = b""
            while b"event: response.completed" not in completed:
                completed = await answer.content.readuntil(b"\n\n")
            response_id = json.loads(completed.partition(b"data: ")[2])["response"]["id"]
            body = {"model": "m", "input": "and?", "previous_response_id": response_id, "stream": number % 2 == 0}
            reply = await second.request("POST", "/v1/responses", body)
        return reply.status == 200

    worked: list[bool] = []
    for start in range(0, LOOPS, 10):
        worked += await asyncio.gather(*(once(number) for number in range(start, start + 10)))

    assert worked == [True] * LOOPS
    assert len(engine.posts) == 2 * LOOPS


async def test_a_streamed_id_can_be_got_and_deleted_at_once(ada: Client, other: Client, engine: FakeEngine) -> None:
    """B004: the other two things that one does with an id."""
    streamed = await ada.stream("one")
    assert await other.get(streamed.response["id"]) == streamed.response
    await other.delete(streamed.response["id"])

    assert not await ada.is_stored(streamed.response["id"])


async def test_two_gateways_share_a_conversation(ada: Client, other: Client, engine: FakeEngine) -> None:
    """Turn by turn, one here and one there."""
    parent: Json = {"id": None}
    for turn in range(12):
        parent = await (ada, other)[turn % 2].create(f"turn {turn}", previous_response_id=parent["id"])

    assert texts(engine.posts[-1])[::2] == [f"turn {turn}" for turn in range(12)]


async def test_services_that_start_together_migrate_once(postgres: str, place: Place, one_process: Gateway) -> None:
    """B146: four history services and an empty database: all get ready, and the schema is that of a start alone."""
    with fresh_database(postgres) as database:
        services = [Gateway(replace(place, database_url=database), (("history",),)) for _ in range(4)]
        try:
            for service in services:
                service.prepare()
            await asyncio.gather(*(service.restart() for service in services))
        finally:
            await asyncio.gather(*(asyncio.to_thread(service.close) for service in services))

        assert _schema(database) == _schema(one_process.place.database_url)


def _schema(database: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database) as hand:
        return hand.execute(SCHEMA).fetchall()
