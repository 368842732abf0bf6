"""Secrets: keys, addresses, paths and the words of exceptions are in no answer, no stored row and no log, whatever fails."""

import json
from collections.abc import Mapping

import psycopg
import pytest

from tests.end_to_end.client import Client, Reply
from tests.end_to_end.conftest import ENGINE_KEY, KEYS
from tests.end_to_end.gateway import Gateway
from tests.end_to_end.test_database_faults import FORBIDDEN, refusing
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, raw, status, stream_bytes, text
from tests.fakes.secrets import found, marker

WRONG_KEY = marker("wrong-key")
PATH = "/srv/engine/secret/loader.py"
TRACE = f'Traceback (most recent call last): File "{PATH}", line 7, in <module at 0x7f3a2b1c9d10>'


def _leaks(engine: FakeEngine, key: str) -> list[Script]:
    """An engine that tells all it knows, in each place where an engine may speak."""
    words = f"Incorrect API key provided: {key}. Bearer {key} at {engine.url}/v1/responses?key={key}. {TRACE}"
    error = {"message": words, "type": "server_error", "code": "boom", "param": None}
    event = b'data: {"type":"error","error":%b}\n\n' % _json(error)
    begun = b'data: {"type":"response.output_text.delta","item_id":"m","delta":"hi"}\n\n'
    failed = b'data: {"type":"response.failed","response":{"status":"failed","error":%b}}\n\n' % _json(error)
    return [
        *(status(code, {"error": error}) for code in (400, 401, 403, 404, 422, 429, 500, 503)),
        status(500, f"<html>{words}</html>"),
        status(200, {"error": error}),
        stream_bytes(event),
        stream_bytes(begun + event),
        stream_bytes(begun + failed),
        text("one two").failed("boom", words),
        raw(f"HTTP/1.1 200 {key}\r\nX-{key}: \x00\r\n\r\n".encode()),
    ]


@pytest.mark.usefixtures("may_log_anything")
async def test_planted_secrets_are_nowhere(ada: Client, gateway: Gateway, engine: FakeEngine, database: str) -> None:
    """B156, B162, B087: every failure there is, then a search of all that a client saw, of all rows and of the log."""
    key = gateway.place.environ[ENGINE_KEY]
    start = len(gateway.log_bytes())
    seen: list[Reply] = []
    for script in _leaks(engine, key):
        for streaming in (False, True):
            engine.play(script)
            seen.append(await _ask(ada, input="go", stream=streaming))
    seen += [await _ask(Client(ada.http, ada.url, WRONG_KEY), input="go"), await ada.request("POST", "/v1/responses", b'{"model": ')]
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as hand, refusing(hand):
        seen += [await _ask(ada, input=FORBIDDEN, stream=streaming) for streaming in (False, True)]
    await engine.stop()
    seen.append(await _ask(ada, input="go"))
    await engine.start()

    answers = [reply.body + repr(sorted(reply.headers.items())).encode() for reply in seen]
    address = engine.url.removeprefix("http://")
    internals = [key, address, PATH, "0x7f3a2b1c9d10", "insert into", "forbidden", ".sock", "psycopg", "site-packages", "/work/"]
    assert found([*KEYS.values(), WRONG_KEY, *internals], {"answers": answers}) == []
    assert found([*KEYS.values(), WRONG_KEY, key, PATH], {"rows": _rows(database)}) == []
    assert found([*KEYS.values(), WRONG_KEY, key], {"log": gateway.log_bytes(start)}) == []
    assert all(b'"code":"' in reply.body or reply.status == 200 for reply in seen)


async def test_words_of_a_refused_request_reach_its_client(ada: Client, engine: FakeEngine) -> None:
    """What an engine says about the request is worth telling; only secrets are taken out of it."""
    engine.play(status(400, {"error": {"message": f"top_k must be positive, see {engine.url}/docs", "param": "top_k"}}))
    refused = await ada.request("POST", "/v1/responses", {"model": "m", "input": "go", "top_k": -1})

    assert b"top_k must be positive" in refused.body
    assert engine.url.encode() not in refused.body


async def _ask(client: Client, **fields: object) -> Reply:
    return await client.request("POST", "/v1/responses", {"model": "m", **fields})


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode()


def _rows(database: str) -> list[bytes]:
    with psycopg.connect(database) as hand:
        bodies = hand.execute("select body from response union all select body from item union all select prompt from item").fetchall()
    return [bytes(body) for (body,) in bodies if body is not None]
