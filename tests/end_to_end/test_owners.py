"""Owners: what belongs to one key is not there for another, and only the key says who asks."""

import asyncio
import json

import psycopg
import pytest

from tests.end_to_end.client import Client, Reply, refusal_of
from tests.end_to_end.prompts import texts
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import text

UNKNOWN = f"resp_{7:040x}"
HOSTILE = [
    "..%2f..%2fetc%2fpasswd",
    "resp_'; drop table item; --",
    "resp_\x00",
    "resp_" + "a" * 10_000,
    "resp_０１２３４５６７８９abcdef",
    'resp_"}',
    "resp_\r\nset-cookie: x=1",
    "%",
]


async def test_a_foreign_response_looks_like_an_unknown_one(ada: Client, bob: Client, engine: FakeEngine) -> None:
    """B150: every endpoint gives the same answer but for the id in it; nothing changes and no engine is asked."""
    response = await ada.create("mine")
    foreign, unknown = await _all_of(bob, str(response["id"])), await _all_of(bob, UNKNOWN)

    told = [(reply.status, reply.body.replace(str(response["id"]).encode(), UNKNOWN.encode())) for reply in foreign]
    assert told == [(reply.status, reply.body) for reply in unknown]
    assert [reply.status for reply in foreign] == [404, 404, 404, 400, 400]
    assert await ada.get(response["id"]) == response
    assert len(engine.posts) == 1


async def test_the_owner_is_fixed_before_the_first_event(ada: Client, bob: Client, engine: FakeEngine) -> None:
    """B153: whoever reads first, it stays the creator's."""
    hold = asyncio.Event()
    engine.play(text("one two three").hold(hold, before=4))
    async with ada.streaming("go") as answer:
        created = json.loads((await answer.content.readuntil(b"\n\n")).split(b"data: ")[1])
        response_id = created["response"]["id"]
        early = await _all_of(bob, response_id)
        hold.set()
        await answer.read()
    late = await _all_of(bob, response_id)

    assert [reply.status for reply in (*early, *late)] == [404, 404, 404, 400, 400] * 2
    assert (await ada.get(response_id))["status"] == "completed"


async def test_ids_and_fields_of_the_request_name_no_owner(ada: Client, bob: Client, engine: FakeEngine) -> None:
    """B159: user, metadata, safety_identifier and headers that name another owner are data."""
    response = await ada.create("mine")
    body = {"model": "m", "input": "hi", "user": "ada", "safety_identifier": "ada", "metadata": {"owner": "ada", "tenant": "ada"}}
    headers = {"x-tenant": "ada", "x-owner": "ada", "owner": "ada", "openai-organization": "ada"}
    allowed = await bob.request("POST", "/v1/responses", body, headers)
    refused = await bob.request("POST", "/v1/responses", {**body, "previous_response_id": response["id"]}, headers)

    assert allowed.status == 200
    assert refusal_of(refused).said == (400, "previous_response_not_found", "previous_response_id")
    assert not await ada.is_stored(allowed.json["id"])


@pytest.mark.parametrize("key", ["", "wrong", "sha256:0000"])
async def test_a_key_that_is_not_valid_opens_nothing(ada: Client, engine: FakeEngine, key: str) -> None:
    """B150: the same 401 everywhere; the key is not repeated."""
    stranger = Client(ada.http, ada.url, key)
    replies = [*await _all_of(stranger, UNKNOWN), await stranger.request("GET", "/v1/models")]
    replies.append(await stranger.request("POST", "/v1/chat/completions", {"model": "m", "messages": []}))

    assert {refusal_of(reply).said for reply in replies} == {(401, "invalid_api_key", None)}
    assert not key or all(key.encode() not in reply.body for reply in replies)
    assert engine.posts == []


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_a_hostile_id_is_only_unknown(ada: Client, engine: FakeEngine, database: str, hostile: str) -> None:
    """B158: in the path, the body and the cursor: 400 or 404 in the usual shape, and the database is as it was."""
    before = _counted(database)
    quoted = "".join(f"%{byte:02X}" for byte in hostile.encode())
    path = f"/v1/responses/{quoted}"
    replies = [await ada.request(method, path + tail) for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"))]
    body = {"model": "m", "input": "hi", "previous_response_id": hostile}
    replies.append(await ada.request("POST", "/v1/responses", body))
    replies.append(await ada.request("GET", f"/v1/responses/{UNKNOWN}/input_items?after={quoted}"))
    replies.append(await ada.request("POST", "/v1/responses", {"model": "m", "input": [{"id": hostile, "type": hostile}]}))

    assert {refusal_of(reply).status for reply in replies} <= {400, 404, 431}
    assert _counted(database) == before
    assert engine.posts == []


@pytest.mark.parametrize("path", ["/responses", "/openai/v1/responses", "/v1/responses/", "/v1//responses", "/v2/responses"])
async def test_there_are_no_other_doors(ada: Client, engine: FakeEngine, path: str) -> None:
    """B152: no alias of a route that could miss a check."""
    response = await ada.create("mine")
    replies = [
        await ada.request("POST", path, {"model": "m", "input": "hi"}),
        await ada.request("GET", f"{path.rstrip('/')}//{response['id']}"),
    ]

    assert [refusal_of(reply).status for reply in replies] == [404, 404]
    assert texts(engine.posts[-1]) == ["mine"]


async def _all_of(client: Client, response_id: str) -> list[Reply]:
    path = f"/v1/responses/{response_id}"
    replies = [await client.request(method, path + tail) for method, tail in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""))]
    for stream in (False, True):
        body = {"model": "m", "input": "hi", "previous_response_id": response_id, "stream": stream}
        replies.append(await client.request("POST", "/v1/responses", body))
    return replies


def _counted(database: str) -> list[tuple[int, ...]]:
    with psycopg.connect(database) as hand:
        return hand.execute("select (select count(*) from item), (select count(*) from response), (select count(*) from tree)").fetchall()
