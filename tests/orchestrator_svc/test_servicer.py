"""The gRPC face of the orchestrator: what travels, and under which name a failure does."""

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import msgspec
import pytest

from svckit.errors import RemoteError
from svckit.grpc_client import Caller
from svckit.local_channel import LocalChannel
from svckit.settings import GrpcSettings
from tests.fakes.scripts import Script, hang_up, status, text
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.house import STATUSES, House, open_house, soon
from turnkeep.orchestrator.v1 import orchestrator_pb2 as wire
from turnkeep.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

HELLO = b'{"role":"user","content":"hello"}'


class Client:
    """A caller of the orchestrator in a house."""

    def __init__(self, house: House) -> None:
        self.channel = LocalChannel(house.orchestrator.services, copying=True)
        self._stub = OrchestratorServiceStub(self.channel)
        self._caller = Caller(GrpcSettings())

    def create(self, **fields: object):  # type: ignore[no-untyped-def]
        given = {"owner": "ada", "model": "m", "store": True, "input": [HELLO]} | fields
        return self._caller.stream(self._stub.CreateResponse, wire.CreateResponseRequest(**given), deadline=10.0)  # type: ignore[arg-type]

    async def events(self, **fields: object) -> list[wire.StreamEvent]:
        async with self.create(**fields) as replies:
            return [event async for reply in replies for event in reply.events]

    async def relayed(self, method: str, path: str, body: bytes = b"") -> list[wire.RelayReply]:
        request = wire.RelayRequest(owner="ada", method=method, path=path, body=body, headers=[wire.Header(name="x-mine", value="1")])
        async with self._caller.stream(self._stub.Relay, request, deadline=10.0) as replies:
            return [reply async for reply in replies]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


@pytest.fixture
async def client(house: House) -> AsyncIterator[Client]:
    calling = Client(house)
    yield calling
    await calling.channel.stop(None)


async def refusal(client: Client, **fields: object) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        await client.events(**fields)
    return caught.value


async def test_a_turn_travels_as_its_events(client: Client) -> None:
    events = await client.events()
    decoded = [msgspec.json.decode(event.data) for event in events]

    check_stream(decoded)
    assert [(event.type, event.sequence_number) for event in events] == [(one["type"], one["sequence_number"]) for one in decoded]


@pytest.mark.parametrize(
    ("fields", "code", "reason", "param"),
    [
        ({"owner": ""}, grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "owner"),
        ({"model": ""}, grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "model"),
        ({"input": []}, grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "input"),
        ({"input": [b"5"]}, grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "input[0]"),
        ({"parameters": b'{"prompt":{"id":"p"}}'}, grpc.StatusCode.INVALID_ARGUMENT, "unsupported", "prompt"),
        (
            {"previous_response_id": "resp_1"},
            grpc.StatusCode.INVALID_ARGUMENT,
            "previous_response_not_found",
            "previous_response_id",
        ),
    ],
)
async def test_a_request_that_is_wrong_is_refused_by_name(
    client: Client, fields: dict[str, object], code: grpc.StatusCode, reason: str, param: str
) -> None:
    error = await refusal(client, **fields)

    assert (error.status, error.reason, error.param) == (code, reason, param)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        (status(400), grpc.StatusCode.INVALID_ARGUMENT, "engine_invalid_request"),
        (status(404), grpc.StatusCode.NOT_FOUND, "model_not_found"),
        (status(429), grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded"),
        (status(500), grpc.StatusCode.UNKNOWN, "engine_error"),
        (status(503), grpc.StatusCode.UNAVAILABLE, "engine_unavailable"),
        (status(504), grpc.StatusCode.DEADLINE_EXCEEDED, "engine_timeout"),
        (hang_up(), grpc.StatusCode.UNAVAILABLE, "engine_unavailable"),
    ],
    ids=["400", "404", "429", "500", "503", "504", "gone"],
)
async def test_an_engine_that_fails_first_is_the_status_of_the_call_b106(
    house: House, client: Client, script: Script, code: grpc.StatusCode, reason: str
) -> None:
    house.engine.play(script)
    error = await refusal(client)

    assert (error.status, error.reason) == (code, reason)
    assert house.history.asked == []


async def test_a_call_that_is_cancelled_cancels_its_turn_b114(house: House, client: Client) -> None:
    house.engine.play(text("Hi there").hold(asyncio.Event(), before=6))
    async with client.create() as replies:
        await anext(aiter(replies))
    await soon(house.history.saved.wait())
    await asyncio.wait_for((await house.engine.request(0)).closed.wait(), 1)

    assert [commit.status for commit in house.history.asked] == [STATUSES["cancelled"]]


async def test_the_relay_gives_the_head_and_then_the_body(house: House, client: Client) -> None:
    house.engine.play(status(418, b'{"x" : 1}', headers={"x-odd": "yes"}))
    head, *chunks = await client.relayed("POST", "/v1/embeddings?a=b", b'{"y" : 2}')
    asked = house.engine.posts[0]

    assert (head.head.status, {one.name: one.value for one in head.head.headers}["x-odd"]) == (418, "yes")
    assert b"".join(chunk.chunk for chunk in chunks) == b'{"x" : 1}'
    assert (asked.path, asked.query, asked.body, asked.headers["x-mine"]) == ("/v1/embeddings", "a=b", b'{"y" : 2}', "1")


async def test_the_models_are_relayed(client: Client) -> None:
    head, *chunks = await client.relayed("GET", "/v1/models")

    assert head.head.status == 200
    assert json.loads(b"".join(chunk.chunk for chunk in chunks))["object"] == "list"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/metrics"), ("DELETE", "/v1/responses"), ("POST", "/v1/../metrics"), ("POST", "//elsewhere.test/v1/responses"), ("GET", "")],
)
async def test_nothing_else_is_relayed(house: House, client: Client, method: str, path: str) -> None:
    with pytest.raises(RemoteError) as caught:
        await client.relayed(method, path)

    assert (caught.value.status, caught.value.param) == (grpc.StatusCode.INVALID_ARGUMENT, "path")
    assert house.engine.posts == house.engine.gets == []
