"""The header Idempotency-Key: one request, one response, however often it is sent."""

import asyncio

import msgspec
import pytest
from grpc import StatusCode

from http_edge.metrics import REPEATS
from http_edge.requests import is_response_id
from svckit.errors import RemoteError
from svckit.ids import tree_key_of
from tests.http_edge.fake_services import (
    CONVERSATION_ID,
    MESSAGE_ID,
    RESPONSE_ID,
    House,
    for_ever,
    logged,
    open_house,
    playing,
    response_object,
    stored,
    turn,
    turn_events,
    within,
)
from turnkeep.common.v1.common_pb2 import RESPONSE_STATUS_IN_PROGRESS, Item
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseReply

KEY = {"Idempotency-Key": "key-1"}
ASKED = {"model": "m", "input": "hi"}
TEXT = {"type": "output_text", "text": "Hello", "annotations": []}
MESSAGE = Item(
    id=MESSAGE_ID,
    type="message",
    body=msgspec.json.encode({"type": "message", "status": "completed", "role": "assistant", "content": [TEXT]}),
)


async def create(house: House, body: object = ASKED, **headers: str) -> tuple[int, dict[str, object]]:
    answer = await house.create(body, headers=KEY | headers)
    return answer.status, await answer.json()


def storing(house: House, *steps: object):
    """A script that stores its response before it says so, as the orchestrator does."""

    async def script(request):
        async for step in playing(*steps, *turn("Hello", response_id=request.response_id)):
            if isinstance(step, CreateResponseReply) and step.events[-1].type == "response.completed":
                store(house, request.response_id)
            yield step

    return script


def store(house: House, response_id: str, **options: object) -> None:
    body = response_object(response_id, "completed")
    del body["id"], body["output"]
    house.history.responses["default", response_id] = stored(body, MESSAGE, **options)


async def test_a_repeat_gets_the_response_of_the_first_and_runs_nothing(house: House) -> None:
    """B111"""
    house.orchestrator.create = storing(house)
    first = await create(house)
    repeats = [await create(house) for _ in range(3)]
    [asked] = house.orchestrator.turns
    assert is_response_id(asked.response_id)
    assert (first[0], first[1]["id"]) == (200, asked.response_id)
    assert [(status, body["id"], body["output"]) for status, body in repeats] == [(200, first[1]["id"], first[1]["output"])] * 3


async def test_without_the_header_every_request_is_one_of_its_own(house: House) -> None:
    for _ in range(2):
        assert (await house.create(ASKED)).status == 200
    assert [asked.response_id for asked in house.orchestrator.turns] == ["", ""]
    assert house.history.asked == []


@pytest.mark.parametrize("root", [{"previous_response_id": RESPONSE_ID}, {"conversation": CONVERSATION_ID}])
async def test_the_response_gets_an_id_of_the_tree_that_it_belongs_to(house: House, root: dict[str, str]) -> None:
    await create(house, ASKED | root)
    [asked] = house.orchestrator.turns
    assert tree_key_of(asked.response_id) == tree_key_of(RESPONSE_ID) == tree_key_of(CONVERSATION_ID)
    assert asked.response_id not in root.values()


async def test_a_repeat_waits_while_the_first_still_runs(house: House) -> None:
    gate = asyncio.Event()
    house.orchestrator.create = storing(house, gate)
    call = house.orchestrator.next_call
    first = asyncio.create_task(create(house))
    await within(call.started)
    repeats = [asyncio.create_task(create(house)) for _ in range(5)]
    await within(house.history.looked_up)
    gate.set()
    assert len({body["id"] for _, body in await asyncio.gather(first, *repeats)}) == 1
    assert len(house.orchestrator.turns) == 1


async def test_a_repeat_finds_what_another_process_has_stored_meanwhile(house: House) -> None:
    house.orchestrator.create = lambda request: playing(for_ever())
    call = house.orchestrator.next_call
    elsewhere = asyncio.create_task(create(house))
    await within(call.started)
    repeat = asyncio.create_task(create(house))
    await within(house.history.looked_up)
    store(house, house.orchestrator.turns[0].response_id)
    assert (await repeat)[1]["id"] == house.orchestrator.turns[0].response_id
    elsewhere.cancel()


async def test_a_repeat_waits_only_so_long() -> None:
    async with open_house(idempotency_wait_seconds=0.05) as house:
        house.orchestrator.create = lambda request: playing(for_ever())
        call = house.orchestrator.next_call
        running = asyncio.create_task(house.create(ASKED, headers=KEY))
        await within(call.started)
        answer = await house.create(ASKED, headers=KEY)
        assert (answer.status, answer.headers["retry-after"]) == (409, "1")
        assert (await answer.json())["error"]["code"] == "idempotency_in_progress"
        running.cancel()


async def test_another_request_with_the_same_key_is_refused(house: House) -> None:
    house.orchestrator.create = storing(house)
    await create(house)
    for other in (ASKED | {"input": "ho"}, ASKED | {"model": "n"}, ASKED | {"temperature": 0}):
        status, body = await create(house, other)
        assert (status, body["error"]["code"]) == (400, "idempotency_mismatch")
    assert len(house.orchestrator.turns) == 1


async def test_the_same_request_may_be_written_differently(house: House) -> None:
    """Order of keys, spaces, escapes, and in which form the answer is wanted."""
    house.orchestrator.create = storing(house)
    await create(house, b'{"model":"m","input":[{"role":"user","content":"hi"}]}')
    for same in (
        b'{ "input" : [ {"content":"hi", "role":"user"} ], "model" : "m" }',
        b'{"model":"m","stream":false,"input":[{"role":"user","content":"\\u0068i"}]}',
    ):
        assert (await create(house, same))[0] == 200
    assert len(house.orchestrator.turns) == 1


async def test_keys_belong_to_their_owner() -> None:
    async with open_house(api_keys={"ada": "sk-ada", "bob": "sk-bob"}) as house:
        for key in ("sk-ada", "sk-bob"):
            await house.create(ASKED, headers=KEY | {"x-api-key": key})
        assert [asked.owner for asked in house.orchestrator.turns] == ["ada", "bob"]


async def test_a_repeat_can_be_streamed_and_is_a_whole_stream(house: House) -> None:
    house.orchestrator.create = storing(house)
    await create(house)
    answer = await house.create(ASKED | {"stream": True}, headers=KEY)
    data = await answer.text()
    events = [msgspec.json.decode(part.partition("data: ")[2]) for part in data.split("\n\n")[:-2]]
    assert data.endswith("data: [DONE]\n\n")
    assert [event["type"] for event in events] == [event.type for event in turn_events("Hello")]
    assert events[-1]["response"] == await (await house.http.get(f"/v1/responses/{events[0]['response']['id']}")).json()


async def test_a_refused_first_leaves_its_key_free(house: House) -> None:
    """A request that is sent again because the engine was away is run, under the id that the key stands for."""
    house.orchestrator.create = lambda request: playing(RemoteError(StatusCode.UNAVAILABLE, "engine_unavailable", "Away."))
    before = REPEATS.labels("rerun")._value.get()
    assert (await create(house))[0] == 503
    assert (await create(house))[0] == 503
    house.orchestrator.create = storing(house)
    assert (await create(house))[0] == 200
    assert len({asked.response_id for asked in house.orchestrator.turns}) == 1
    assert (await create(house))[0] == 200
    assert len(house.orchestrator.turns) == 3
    assert REPEATS.labels("rerun")._value.get() == before + 2


async def test_a_claim_that_nobody_was_told_of_leaves_its_key_free(house: House) -> None:
    """It was stored, and its answer was lost: nothing has begun under it."""
    house.history.loses_claims = True
    assert (await create(house))[0] == 500
    house.history.loses_claims = False
    house.orchestrator.create = storing(house)
    assert (await create(house))[0] == 200
    assert len(house.orchestrator.turns) == 1


async def test_of_many_repeats_of_a_refused_first_only_one_runs(house: House) -> None:
    house.orchestrator.create = lambda request: playing(RemoteError(StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded", "Slower."))
    assert (await create(house))[0] == 429
    gate = asyncio.Event()
    house.orchestrator.create = storing(house, gate)
    call = house.orchestrator.next_call
    repeats = [asyncio.create_task(create(house)) for _ in range(10)]
    await within(call.started)
    gate.set()
    assert {status for status, _ in await asyncio.gather(*repeats)} == {200}
    assert len(house.orchestrator.turns) == 2


async def test_a_repeat_of_a_background_turn_does_not_wait_for_its_end(house: House) -> None:
    body = ASKED | {"background": True}
    _, queued = await create(house, body)
    store(house, queued["id"], status=RESPONSE_STATUS_IN_PROGRESS)
    assert (await create(house, body))[1]["id"] == queued["id"]
    house.history.watch = lambda request: playing(logged(*turn_events("Hello")))
    streamed = await house.create(body | {"stream": True}, headers=KEY)
    assert (await streamed.text()).count("event: ") == len(turn_events("Hello"))
    assert len(house.orchestrator.started) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "caf\xe9", "a\tb"])
async def test_an_odd_key_is_refused(house: House, key: str) -> None:
    answer = await house.create(ASKED, headers={"Idempotency-Key": key})
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_request")
    assert house.orchestrator.turns == house.history.asked == []


async def test_two_keys_are_refused(house: House) -> None:
    answer = await house.create(ASKED, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    assert answer.status == 400


async def test_what_is_not_stored_cannot_have_a_key_unless_it_is_passed_on(house: House) -> None:
    refused = await house.create(ASKED | {"store": False, "previous_response_id": RESPONSE_ID}, headers=KEY)
    assert (refused.status, (await refused.json())["error"]["param"]) == (400, "store")
    passed_on = await house.create(ASKED | {"store": False}, headers=KEY)
    [relayed] = house.orchestrator.relayed
    assert passed_on.status == 200
    assert ("idempotency-key", "key-1") in {(header.name, header.value) for header in relayed.headers}


async def test_a_number_that_no_number_can_be_is_refused_with_a_key(house: House) -> None:
    answer = await house.create(b'{"model":"m","input":"x","y":1e999}', headers=KEY)
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_request")
    assert house.orchestrator.turns == []


async def test_a_deeply_nested_request_with_a_key_is_refused(house: House) -> None:
    body = b'{"model":"m","input":"x","y":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}"
    answer = await house.create(body, headers=KEY)
    assert answer.status == 400
    assert house.orchestrator.turns == []
