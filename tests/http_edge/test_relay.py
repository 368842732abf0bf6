"""The stateless path: the engine gets the client's bytes and the client gets the engine's."""

import asyncio
import gzip
import hashlib

import aiohttp
import msgspec
import pytest
from grpc import StatusCode
from yarl import URL

from svckit.errors import ServiceError
from tests.http_edge.fake_services import House, chunk, head, open_house, playing
from turnkeep.orchestrator.v1.orchestrator_pb2 import Header

PATHS = [
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
]
BODY = b'{"model":"m","input":"hi","store":false}'
ODD_BODIES = [
    b'{"store":false}',
    b'{"store":false}\n',
    b' { "store" : false }\r\n\t ',
    b'{"store":false,"a":1.0,"b":1,"c":1e0,"d":-0,"e":-0.0}',
    b'{"store":false,"big":12345678901234567890,"small":0.1000000000000000055511151231257827}',
    b'{"store":false,"k":1,"k":2,"k":{"k":1,"k":2}}',
    b'{"z":1,"store":false,"a":2}',
    b'{"store":false,"s":"\\u00e9\\/\\u2028\\ud83c\\udf78\\b\\f"}',
    '{"store":false,"s":"é🍸\u2028"}'.encode(),
    b'{"store":false,"s":"\\ud800"}',
    b'{"store":false,"s":"\\u0000"}',
    b'{"store":true,"store":false}',
    b'{"\\u0073tore":false}',
    b'{"store":false,"tools":[ {"type":"function","name":"a.b c","strict":null} ]}',
    b'{"store":false,"tools":[],"unknown":[[[[]]]],"temperature":"hot"}',
    b'{"store":false,"input":[{"type":"reasoning","id":"x","content":null}, {"role":"user","n":7}]}',
    b'{"store":false,"e":1E+400}',
    b'{"store":false,"":""}',
    b'{"store":false,"s":"' + b"x" * 1_000_000 + b'"}',
    b'{"store":false,"previous_response_id":null,"conversation":null,"background":false}',
]
STREAM_PARTS = [b": hello\r\n", b'data: {"a"', b":1}\r", b"\n\r\nevent:x\rdata:\xc3", b"\xa9\n", b"\n\n\n", b"data: [DONE]"]


class Broken(ServiceError):
    """The engine's answer broke off."""

    code = StatusCode.UNKNOWN
    reason = "engine_stream_interrupted"


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
async def test_the_engine_gets_the_same_bytes(house: House, body: bytes) -> None:
    """B122: nothing is parsed and written again."""
    answer = await house.create(body)
    [asked] = house.orchestrator.relayed
    assert answer.status == 200
    assert hashlib.sha256(asked.body).digest() == hashlib.sha256(body).digest()


async def test_the_client_gets_the_same_bytes_as_they_come(house: House) -> None:
    """B119, B120, B122: comments, odd line ends, characters cut in two, no end of the last event."""
    house.orchestrator.relay = lambda request: playing(head(200, {"content-type": "text/event-stream"}), *map(chunk, STREAM_PARTS))
    answer = await house.create(BODY)
    chunks = [data async for data, _ in answer.content.iter_chunks()]
    assert chunks == STREAM_PARTS
    assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("path", PATHS)
async def test_every_stateless_path_is_relayed(house: House, path: str) -> None:
    body = b'{"store":false, "messages":[]}'
    answer = await house.http.post(URL(house.url + path + "?beta=true&x=%2F", encoded=True), data=body)
    [asked] = house.orchestrator.relayed
    assert (answer.status, await answer.read()) == (200, b"{}")
    assert (asked.method, asked.path, asked.body, asked.owner) == ("POST", path + "?beta=true&x=%2F", body, "default")


async def test_a_relayed_path_takes_what_is_no_json_too(house: House) -> None:
    await house.http.post("/v1/embeddings", data=b"\xff\x00 not json")
    assert house.orchestrator.relayed[0].body == b"\xff\x00 not json"


@pytest.mark.parametrize("status", [200, 201, 400, 401, 404, 422, 429, 500, 503, 529])
async def test_status_headers_and_error_bodies_of_the_engine_come_back(house: House, status: int) -> None:
    raw = b'{"error":{"message":"no","code":42 }}\n'
    headers = {"content-type": "application/json; x=1", "content-length": str(len(raw)), "retry-after": "3", "x-engine": "a"}
    house.orchestrator.relay = lambda request: playing(head(status, headers), chunk(raw))
    answer = await house.create(BODY)
    assert (answer.status, await answer.read()) == (status, raw)
    assert {name: answer.headers[name] for name in headers} == headers
    assert "transfer-encoding" not in answer.headers


async def test_an_answer_without_a_body_has_none(house: House) -> None:
    house.orchestrator.relay = lambda request: playing(head(204))
    answer = await house.create(BODY)
    assert (answer.status, await answer.read()) == (204, b"")


async def test_a_compressed_answer_is_passed_on_as_it_is(house: House) -> None:
    packed = gzip.compress(b"{}" * 500)
    headers = {"content-encoding": "gzip", "content-length": str(len(packed))}
    house.orchestrator.relay = lambda request: playing(head(200, headers), chunk(packed))
    answer = await house.create(BODY, headers={"Accept-Encoding": "gzip, br"})
    assert await answer.read() == packed
    assert Header(name="accept-encoding", value="gzip, br") in house.orchestrator.relayed[0].headers


async def test_no_credential_and_no_hop_by_hop_header_reaches_the_engine() -> None:
    """B156: the caller's key belongs to the gateway."""
    async with open_house(api_keys={"ada": "sk-marker"}) as house:
        withheld = {
            "Authorization": "Bearer sk-marker",
            "x-api-key": "sk-marker",
            "Api-Key": "sk-marker",
            "Cookie": "session=sk-marker",
            "Proxy-Authorization": "Basic sk-marker",
            "TE": "trailers",
            "Connection": "keep-alive, X-Private",
            "X-Private": "sk-marker",
        }
        kept = {
            "content-type": "application/json",
            "user-agent": "codex",
            "openai-beta": "x",
            "anthropic-version": "2023-06-01",
            "accept": "*/*",
        }
        await house.create(BODY, headers=withheld | kept)
        [asked] = house.orchestrator.relayed
        sent = {header.name: header.value for header in asked.headers}
        assert {name: sent[name] for name in kept} == kept
        assert b"sk-marker" not in asked.SerializeToString()
        assert not sent.keys() & {"te", "connection", "host", "content-length", "transfer-encoding"}


async def test_every_connection_header_names_what_stays_behind(house: House) -> None:
    headers = [("Connection", "keep-alive"), ("connection", "X-One, x-two"), ("X-One", "1"), ("X-Two", "2"), ("X-Three", "3")]
    await house.create(BODY, headers=headers)
    [asked] = house.orchestrator.relayed
    assert {header.name for header in asked.headers} & {"x-one", "x-two", "x-three"} == {"x-three"}


async def test_headers_that_are_the_gateways_business_do_not_come_back(house: House) -> None:
    house.orchestrator.relay = lambda request: playing(
        head(200, {"set-cookie": "a=b", "access-control-allow-origin": "*", "connection": "close", "x-request-id": "engine"})
    )
    answer = await house.create(BODY, headers={"x-request-id": "mine"})
    assert not answer.headers.keys() & {"Set-Cookie", "Access-Control-Allow-Origin"}
    assert answer.headers.getall("x-request-id") == ["mine"]


@pytest.mark.parametrize("headers", [{}, {"content-length": "100"}])
async def test_an_answer_that_breaks_off_is_not_ended_cleanly(house: House, headers: dict[str, str]) -> None:
    """B032: the client must see that bytes are missing."""
    house.orchestrator.relay = lambda request: playing(head(200, headers), chunk(b"some"), Broken())
    answer = await house.create(BODY)
    assert await answer.content.readexactly(4) == b"some"
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.read()


async def test_an_answer_that_breaks_off_before_its_head_has_left_is_none(house: House) -> None:
    house.orchestrator.relay = lambda request: playing(head(200), Broken())
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await house.create(BODY)


@pytest.mark.parametrize("steps", [[Broken()], [], [chunk(b"no head")]], ids=["error", "nothing", "no head"])
async def test_no_answer_of_the_engine_is_an_error_in_our_shape(house: House, steps: list[object]) -> None:
    house.orchestrator.relay = lambda request: playing(*steps)
    answer = await house.create(BODY)
    assert answer.status in (500, 502)
    assert (await answer.json())["error"]["type"] == "server_error"


async def test_a_compressed_request_reaches_the_engine_unpacked(house: House) -> None:
    answer = await house.create(gzip.compress(BODY), headers={"Content-Encoding": "gzip"})
    [asked] = house.orchestrator.relayed
    assert (answer.status, asked.body) == (200, BODY)
    assert "content-encoding" not in {header.name for header in asked.headers}


async def test_a_relayed_stream_gets_no_heartbeats() -> None:
    async with open_house(keep_alive_seconds=0.01, client_timeout_seconds=0.06) as house:
        parts = [chunk(b"x")] * 3
        house.orchestrator.relay = lambda request: _paced(head(200), *parts)
        assert await (await house.create(BODY)).read() == b"xxx"


async def test_a_head_does_not_wait_long_for_the_first_bytes(house: House) -> None:
    body_may_come = asyncio.Event()
    house.orchestrator.relay = lambda request: playing(head(207), body_may_come, chunk(b"x"))
    answer = await house.create(BODY)
    assert answer.status == 207
    body_may_come.set()
    assert await answer.read() == b"x"


async def _paced(*steps: object):

    for step in steps:
        await asyncio.sleep(0.05)
        yield step


async def test_the_same_request_with_store_is_a_turn(house: House) -> None:
    await house.create(msgspec.json.encode({"model": "m", "input": "hi", "store": True}))
    assert (len(house.orchestrator.turns), len(house.orchestrator.relayed)) == (1, 0)
