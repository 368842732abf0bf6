"""The relay: what needs nothing of the gateway goes to the engine and back byte for byte."""

import asyncio
import hashlib
import json

import aiohttp
import pytest

from tests.end_to_end.client import Client, refusal_of
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, hang_up, status, stream_bytes, text

PATHS = ["/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens"]
HEAD = b'{"model":"m","store":false,"input":"hi"'
BODIES = [
    HEAD + b"}",
    b' \n\t {  "model" : "m" ,  "store" : false , "input":"hi" } \r\n\n',
    HEAD + b"}\n",
    HEAD + b',"temperature":1.0}',
    HEAD + b',"temperature":1}',
    HEAD + b',"temperature":1e0,"top_p":0.10000000000000000555}',
    HEAD + b',"big":12345678901234567890123}',
    HEAD + b',"small":-0.0,"smaller":1E-400}',
    HEAD + b',"seed":1,"seed":2}',
    b'{"store":false,"z":1,"a":2,"input":"hi","m":3,"model":"m"}',
    b'{"model":"m","store":false,"input":"\\u0068\\u0069"}',
    b'{"model":"m","store":false,"input":"\\ud83c\\udf78"}',
    '{"model":"m","store":false,"input":"阴气渐重🍸é"}'.encode(),
    b'{"model":"m","store":false,"input":"\\ud83d alone"}',
    b'{"model":"m","store":false,"input":"a\\u0000b"}',
    b'{"model":"m","store":false,"input":"\\/ \\b \\f \\n \\r \\t \\" \\\\"}',
    b'{"model":"m","store":false,"input":"\x7f"}',
    HEAD + b',"unknown_field":{"deep":[1,[2,[3,[null]]]]}}',
    HEAD + b',"tools":[]}',
    HEAD + b',"tools":null,"previous_response_id":null,"conversation":null}',
    HEAD + b',"tools":[{"type":"function","name":"a","parameters":{"z":1,"a":{"$ref":"#"}}}]}',
    HEAD + b',"metadata":{"k":"v"},"user":"u","safety_identifier":"s"}',
    HEAD + b',"include":["message.output_text.logprobs"],"reasoning":{"effort":"extreme"}}',
    HEAD + b',"temperature":99}',
    HEAD + b',"background":false}',
    HEAD + b',"context_management":[]}',
    b'{"store":false}',
    b'{"model":"m","store":false,"input":[{"type":"message","role":"boss","content":null,"x":1.50}]}',
    HEAD + b',"pad":"' + b"x" * 100_000 + b'"}',
    HEAD + b',"":"","' + "ключ".encode() + b'":[true,false,null]}',
    b"\n" * 100 + HEAD + b"}" + b" " * 100,
]
ODD_STREAM = (
    b": PROCESSING\n\n",
    b"event: response.created\r\ndata:{}\r\n\r\n",
    b"data: a\ndata: b\n\nid: 7\nretry: 10\n\n",
    "event: x\ndata: 阴气".encode()[:-1],
    "阴气".encode()[-1:] + b"\n\n",
    b"data: [DONE]",
)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
async def test_a_body_travels_as_it_is(ada: Client, engine: FakeEngine, body: bytes) -> None:
    """B122, B015, B094, B108: the engine gets the client's bytes and the client the engine's."""
    engine.strict = False
    answer = b'{ "id":"x", "n":1.0, "big":12345678901234567890, "d":1, "d":2, "u":"\\u00e9" }\n '
    engine.play(status(200, answer, headers={"Content-Type": "application/json; charset=latin-1", "x-engine": "yes"}))
    reply = await ada.request("POST", "/v1/responses", body)

    assert _digest(engine.posts[0].body) == _digest(body)
    assert (reply.status, _digest(reply.body)) == (200, _digest(answer))
    assert (reply.headers["Content-Type"], reply.headers["x-engine"]) == ("application/json; charset=latin-1", "yes")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("code", [200, 201, 400, 401, 404, 422, 429, 500, 503])
async def test_every_status_of_every_path_comes_back(ada: Client, engine: FakeEngine, path: str, code: int) -> None:
    """B122, B103, B106: status, type, Retry-After and body, without a newline at its end."""
    engine.strict = False
    answer = b'{"odd":  true, "code":%d}' % code
    engine.play(status(code, answer, headers={"Content-Type": "application/problem+json", "Retry-After": "7", "x-ratelimit-limit": "3"}))
    body = b'{"store":false, "model":"m"}' if path == "/v1/responses" else b'{ "model":"m","messages":[] }'
    reply = await ada.request("POST", path + "?a=b&c=%20d", body, {"x-extra": "kept"})

    asked = engine.posts[0]
    assert (asked.path, asked.query, asked.body, asked.headers["x-extra"]) == (path, "a=b&c=%20d", body, "kept")
    assert (reply.status, reply.body) == (code, answer)
    told = [reply.headers[name] for name in ("Content-Type", "Retry-After", "x-ratelimit-limit")]
    assert told == ["application/problem+json", "7", "3"]


@pytest.mark.parametrize("path", PATHS[:5])
async def test_a_stream_travels_as_it_is(ada: Client, engine: FakeEngine, path: str) -> None:
    """B122: comments, odd line ends, characters split between writes, no blank line at the end: nothing is read, nothing is mended."""
    engine.strict = False
    engine.play(stream_bytes(*ODD_STREAM))
    reply = await ada.request("POST", path, b'{"store":false,"stream":true,"model":"m"}')

    assert _digest(reply.body) == _digest(b"".join(ODD_STREAM))
    assert reply.headers["Content-Type"] == "text/event-stream"


async def test_bytes_are_passed_on_when_they_come(ada: Client, engine: FakeEngine) -> None:
    """B122: each write of the engine reaches the client before the next one is made."""
    engine.strict = False
    gates = [asyncio.Event() for _ in ODD_STREAM]
    script = stream_bytes(*ODD_STREAM)
    for number, gate in enumerate(gates):
        script = script.hold(gate, before=number)
    engine.play(script)
    async with ada.streaming("hi", store=False) as answer:
        for gate, piece in zip(gates, ODD_STREAM, strict=True):
            gate.set()
            assert await answer.content.readexactly(len(piece)) == piece


async def test_the_callers_key_stays_here(ada: Client, engine: FakeEngine) -> None:
    """B086: the engine gets the provider's key; no gateway key, cookie or forwarding header goes on."""
    headers = {"cookie": "session=1", "x-api-key": ada.key, "x-forwarded-for": "10.0.0.1"}
    await ada.request("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, headers)
    await ada.create("hi")

    for asked in engine.posts:
        assert asked.headers["authorization"].startswith("Bearer planted-engine-key")
        assert not {"cookie", "x-api-key", "x-forwarded-for"} & set(asked.headers)
        assert ada.key not in str(asked.raw_headers)


async def test_a_request_id_and_a_trace_go_through(ada: Client, engine: FakeEngine) -> None:
    """On both paths, to the engine and back."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-request-id": "req-42", "traceparent": trace}
    for body in ({"model": "m", "input": "hi"}, {"model": "m", "input": "hi", "store": False}):
        reply = await ada.request("POST", "/v1/responses", body, headers)
        assert reply.headers["x-request-id"] == "req-42"
    assert [received.headers["x-request-id"] for received in engine.posts] == ["req-42"] * 2
    assert {received.headers["traceparent"].split("-")[1] for received in engine.posts} == {trace.split("-")[1]}


@pytest.mark.parametrize("script", [hang_up(), hang_up("reset")], ids=["close", "reset"])
async def test_an_engine_that_says_nothing_is_an_error(ada: Client, engine: FakeEngine, script: Script) -> None:
    """B106, B111: an error status with a JSON body; the request was sent once."""
    engine.play(script)
    reply = await ada.request("POST", "/v1/responses", HEAD + b',"stream":true}')

    assert refusal_of(reply).said == (503, "engine_unavailable", None)
    assert len(engine.posts) == 1


async def test_a_stream_that_breaks_is_seen_to_break(ada: Client, engine: FakeEngine) -> None:
    """B032: the client's connection breaks too; no end is made up."""
    engine.play(text("one two three four").cut(events=5, ending="reset"))
    async with ada.streaming("hi", store=False) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_connection_that_the_engine_closed_is_replaced(ada: Client, engine: FakeEngine) -> None:
    """B111: a reused connection that dies without a byte is no error; the request goes out once more."""
    await ada.request("POST", "/v1/responses", HEAD + b"}")
    engine.drops_when_reused = 1
    reply = await ada.request("POST", "/v1/responses", HEAD + b"}")

    assert reply.status == 200
    assert len(engine.posts) + len(engine.dropped) == 3


async def test_stateful_requests_are_not_relayed(ada: Client, engine: FakeEngine) -> None:
    """The engine is never asked to store, and its object is not the client's."""
    response = await ada.create("hi")
    relayed = await ada.request("POST", "/v1/responses", HEAD + b"}")

    assert str(response["id"]) not in engine.posts[0].body.decode()
    assert json.loads(relayed.body)["id"] in engine.minted
