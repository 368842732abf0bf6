"""Creating, getting, deleting a response, and listing its input."""

import msgspec
from grpc import StatusCode

from svckit.errors import ServiceError
from tests.http_edge.fake_services import (
    MESSAGE_ID,
    RESPONSE_ID,
    House,
    open_house,
    playing,
    reply,
    response_object,
    stored,
    turn,
    turn_events,
)
from turnkeep.common.v1.common_pb2 import Item

OTHER_ID = "resp_0123456789abcdef0000018f0000000000000009"
MESSAGE = Item(id=MESSAGE_ID, type="message", body=b'{"type":"message","role":"assistant","content":[]}')


class Refused(ServiceError):
    """Not {response_id}."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "rate_limit_exceeded"
    param = "input"

    def __init__(self, **values: object) -> None:
        super().__init__(headers={"retry-after": "7", "x-internal": "no"}, **values)


async def test_a_stream_has_every_event_once_in_order_and_ends_with_done(house: House) -> None:
    answer = await house.create({"model": "m", "input": "hi", "stream": True})
    expected = [b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.data) for event in turn_events("Hello")]
    assert answer.status == 200
    assert answer.content_type == "text/event-stream"
    assert await answer.read() == b"".join(expected) + b"data: [DONE]\n\n"


async def test_without_stream_the_answer_is_the_response_of_the_terminal_event(house: House) -> None:
    answer = await house.create({"model": "m", "input": "hi"})
    terminal = msgspec.json.decode(turn_events("Hello")[-1].data)
    assert answer.status == 200
    assert await answer.json() == terminal["response"]


async def test_the_fold_reads_the_last_event_of_a_message_with_many(house: House) -> None:
    house.orchestrator.create = lambda request: playing(reply(*turn_events("a", "b")))
    answer = await house.create({"model": "m", "input": "hi"})
    assert (await answer.json())["status"] == "completed"


async def test_the_orchestrator_gets_the_turn_as_it_was_asked_for(house: House) -> None:
    body = b'{"model":"m","input":[ {"role":"user","content":"caf\\u00e9","n":12345678901234567890} ],"temperature":1.0,"x":{"b":1,"a":2}}'
    await house.create(body)
    [asked] = house.orchestrator.turns
    assert (asked.owner, asked.model, asked.previous_response_id, asked.store) == ("default", "m", "", True)
    assert list(asked.input) == [b'{"role":"user","content":"caf\\u00e9","n":12345678901234567890}']
    assert asked.parameters == b'{"temperature":1.0,"x":{"b":1,"a":2}}'


async def test_a_continuation_carries_its_parent_and_needs_no_input(house: House) -> None:
    answer = await house.create({"model": "m", "previous_response_id": OTHER_ID, "store": False})
    [asked] = house.orchestrator.turns
    assert answer.status == 200
    assert (asked.previous_response_id, asked.store, list(asked.input)) == (OTHER_ID, False, [])


async def test_a_stored_response_equals_the_terminal_event_of_its_stream(house: House) -> None:
    body = response_object(RESPONSE_ID, "completed")
    terminal = body | {"output": [{"id": MESSAGE_ID, "type": "message", "role": "assistant", "content": []}]}
    del body["id"], body["output"]
    house.history.responses["default", RESPONSE_ID] = stored(body, MESSAGE)
    answer = await house.http.get(f"/v1/responses/{RESPONSE_ID}")
    assert answer.status == 200
    assert await answer.json() == terminal


async def test_a_deleted_response_is_gone(house: House) -> None:
    house.history.responses["default", RESPONSE_ID] = stored({"object": "response"})
    answer = await house.http.delete(f"/v1/responses/{RESPONSE_ID}")
    assert (answer.status, await answer.json()) == (200, {"id": RESPONSE_ID, "object": "response.deleted", "deleted": True})
    again = await house.http.delete(f"/v1/responses/{RESPONSE_ID}")
    assert (again.status, (await again.json())["error"]["code"]) == (404, "response_not_found")


async def test_input_items_are_paged_newest_first(house: House) -> None:
    items = [Item(id=f"msg_{n}", type="message", body=b'{"type":"message","n":%d}' % n) for n in range(5)]
    house.history.responses["default", RESPONSE_ID] = stored({})
    house.history.inputs["default", RESPONSE_ID] = items
    path = f"/v1/responses/{RESPONSE_ID}/input_items"
    first = await (await house.http.get(path, params={"limit": "3"})).json()
    assert [item["id"] for item in first["data"]] == ["msg_4", "msg_3", "msg_2"]
    assert (first["object"], first["first_id"], first["last_id"], first["has_more"]) == ("list", "msg_4", "msg_2", True)
    second = await (await house.http.get(path, params={"limit": "3", "after": first["last_id"]})).json()
    assert [item["n"] for item in second["data"]] == [1, 0]
    assert second["has_more"] is False
    rising = await (await house.http.get(path, params={"order": "asc"})).json()
    assert [item["n"] for item in rising["data"]] == [0, 1, 2, 3, 4]


async def test_an_empty_list_has_no_ends(house: House) -> None:
    house.history.responses["default", RESPONSE_ID] = stored({})
    house.history.inputs["default", RESPONSE_ID] = []
    answer = await house.http.get(f"/v1/responses/{RESPONSE_ID}/input_items")
    assert await answer.json() == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_the_order_of_keys_and_bytes_of_an_item_are_kept(house: House) -> None:
    odd = Item(id='x"y', type="message", body=b'{ "z":1.0, "a":"\\u00e9", "big":12345678901234567890 }')
    house.history.responses["default", RESPONSE_ID] = stored({}, odd, Item(id="e", type="x", body=b"{}"))
    answer = await house.http.get(f"/v1/responses/{RESPONSE_ID}")
    shown = b'"output":[{"id":"x\\"y","z":1.0, "a":"\\u00e9", "big":12345678901234567890},{"id":"e"}]'
    assert await answer.read() == b'{"id":"' + RESPONSE_ID.encode() + b'",' + shown + b"}"


async def test_includes_are_accepted_in_both_spellings_and_unknown_ones_refused(house: House) -> None:
    house.history.responses["default", RESPONSE_ID] = stored({})
    path = f"/v1/responses/{RESPONSE_ID}"
    for query in ("include[]=reasoning.encrypted_content&include[]=file_search_call.results", "include=reasoning.encrypted_content"):
        assert (await house.http.get(f"{path}?{query}")).status == 200
    refused = await house.http.get(f"{path}?include[]=everything")
    assert (refused.status, (await refused.json())["error"]["param"]) == (400, "include")


async def test_what_a_list_cannot_do_is_refused_by_name(house: House) -> None:
    for query, param in (
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=ten", "limit"),
        ("limit=%D9%A3", "limit"),
        ("order=up", "order"),
        ("after=%00", "after"),
        ("after=" + "x" * 200, "after"),
        ("include[]=x", "include"),
    ):
        answer = await house.http.get(f"/v1/responses/{RESPONSE_ID}/input_items?{query}")
        error = (await answer.json())["error"]
        assert (answer.status, error["param"], error["code"]) == (400, param, "invalid_request"), query
    assert house.history.asked == []


async def test_an_error_of_a_service_keeps_its_words_reason_and_param(house: House) -> None:
    house.orchestrator.create = lambda request: playing(Refused(response_id=OTHER_ID))
    for stream in (False, True):
        answer = await house.create({"model": "m", "input": "hi", "stream": stream})
        assert answer.status == 429
        assert answer.headers["retry-after"] == "7"
        assert await answer.json() == {
            "error": {"message": f"Not {OTHER_ID}.", "type": "rate_limit_error", "param": "input", "code": "rate_limit_exceeded"}
        }


async def test_the_same_over_a_longer_turn_in_both_forms() -> None:
    async with open_house() as house:
        house.orchestrator.create = lambda request: playing(*turn(*("word " for _ in range(500))))
        folded = await (await house.create({"model": "m", "input": "hi"})).json()
        streamed = await (await house.create({"model": "m", "input": "hi", "stream": True})).text()
        terminal = streamed.split("\n\n")[-3].partition("data: ")[2]
        assert msgspec.json.decode(terminal)["response"] == folded
