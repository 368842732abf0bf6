"""Conversations over HTTP: what reaches which service, the shapes that come back, and what is refused."""

import msgspec
import pytest
from grpc import StatusCode

from svckit.errors import RemoteError
from tests.http_edge.fake_services import CONVERSATION_ID, House, open_house
from turnkeep.common.v1.common_pb2 import Item
from turnkeep.history.v1.history_pb2 import Conversation

PATH = f"/v1/conversations/{CONVERSATION_ID}"
OTHER = CONVERSATION_ID[:-1] + "9"
SHOWN = {"id": CONVERSATION_ID, "object": "conversation", "created_at": 7, "metadata": {"topic": "x"}}


def keep(house: House, count: int = 0, owner: str = "default") -> None:
    """A conversation with so many messages is there."""
    house.history.conversations[owner, CONVERSATION_ID] = Conversation(id=CONVERSATION_ID, created_at=7, metadata=b'{"topic":"x"}')
    house.history.items[owner, CONVERSATION_ID] = [
        Item(id=f"msg_{n}", type="message", body=b'{"type":"message","n":%d}' % n) for n in range(count)
    ]


async def post(house: House, path: str, body: object) -> tuple[int, dict[str, object]]:
    answer = await house.http.post(path, data=body if isinstance(body, bytes) else msgspec.json.encode(body))
    return answer.status, await answer.json()


async def test_a_conversation_is_made_with_its_items_by_the_orchestrator(house: House) -> None:
    items = b'[{"role":"user","content":"caf\\u00e9"}, {"type":"x","big":12345678901234567890}]'
    status, made = await post(house, "/v1/conversations", b'{"metadata":{"topic":"x"},"items":' + items + b"}")
    [asked] = house.orchestrator.asked
    assert (status, made) == (200, SHOWN)
    assert (asked.owner, asked.metadata) == ("default", b'{"topic":"x"}')
    assert list(asked.items) == [b'{"role":"user","content":"caf\\u00e9"}', b'{"type":"x","big":12345678901234567890}']


@pytest.mark.parametrize("body", [b"", b"{}", b'{"items":null,"metadata":null}', b'{"items":[],"metadata":{}}'])
async def test_a_conversation_may_be_empty(house: House, body: bytes) -> None:
    assert await post(house, "/v1/conversations", body) == (200, SHOWN | {"metadata": {}})


async def test_a_conversation_is_given_changed_and_deleted(house: House) -> None:
    keep(house)
    assert await (await house.http.get(PATH)).json() == SHOWN
    assert await post(house, PATH, {"metadata": {"a": "b"}}) == (200, SHOWN | {"metadata": {"a": "b"}})
    assert await post(house, PATH, {"metadata": None}) == (200, SHOWN | {"metadata": {}})
    gone = await house.http.delete(PATH)
    assert await gone.json() == {"id": CONVERSATION_ID, "object": "conversation.deleted", "deleted": True}
    for answer in (await house.http.get(PATH), await house.http.delete(PATH)):
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "conversation_not_found")


async def test_items_that_are_added_come_back_as_a_list(house: House) -> None:
    items = [{"type": "message", "role": "user", "content": "a"}, {"type": "message", "role": "user", "content": "b"}]
    status, added = await post(house, f"{PATH}/items?include[]=message.input_image.image_url", {"items": items})
    [asked] = house.orchestrator.asked
    assert (status, asked.conversation_id) == (200, CONVERSATION_ID)
    assert (added["object"], added["first_id"], added["last_id"], added["has_more"]) == ("list", "msg_0", "msg_1", False)
    assert added["data"] == [{"id": f"msg_{n}", "status": "completed"} | item for n, item in enumerate(items)]


async def test_items_are_paged_newest_first(house: House) -> None:
    keep(house, 5)
    first = await (await house.http.get(f"{PATH}/items", params={"limit": "3"})).json()
    assert [item["id"] for item in first["data"]] == ["msg_4", "msg_3", "msg_2"]
    assert (first["first_id"], first["last_id"], first["has_more"]) == ("msg_4", "msg_2", True)
    second = await (await house.http.get(f"{PATH}/items", params={"limit": "3", "after": first["last_id"]})).json()
    assert ([item["n"] for item in second["data"]], second["has_more"]) == ([1, 0], False)
    rising = await (await house.http.get(f"{PATH}/items", params={"order": "asc"})).json()
    assert [item["n"] for item in rising["data"]] == [0, 1, 2, 3, 4]


async def test_one_item_is_given_and_taking_it_out_gives_the_conversation(house: House) -> None:
    keep(house, 2)
    shown = await house.http.get(f"{PATH}/items/msg_1")
    assert (shown.status, await shown.json()) == (200, {"id": "msg_1", "status": "completed", "type": "message", "n": 1})
    taken = await house.http.delete(f"{PATH}/items/msg_1")
    assert (taken.status, await taken.json()) == (200, SHOWN)
    again = await house.http.get(f"{PATH}/items/msg_1")
    assert (again.status, (await again.json())["error"]["code"]) == (404, "item_not_found")


MESSAGE = {"role": "user", "content": "x"}
REFUSED = [
    ("/v1/conversations", {"items": [MESSAGE] * 21}, "items"),
    ("/v1/conversations", {"items": "x"}, "items"),
    ("/v1/conversations", {"items": {}}, "items"),
    ("/v1/conversations", {"items": [MESSAGE, 7]}, "items[1]"),
    ("/v1/conversations", {"metadata": []}, "metadata"),
    ("/v1/conversations", {"metadata": {"k": 1}}, "metadata"),
    ("/v1/conversations", {"metadata": {"k" * 65: "v"}}, "metadata"),
    ("/v1/conversations", {"metadata": {"k": "v" * 513}}, "metadata"),
    ("/v1/conversations", {"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
    ("/v1/conversations", {"topic": "x"}, "topic"),
    (PATH, {}, "metadata"),
    (PATH, {"metadata": "x"}, "metadata"),
    (PATH, {"metadata": {}, "items": []}, "items"),
    (f"{PATH}/items", {}, "items"),
    (f"{PATH}/items", {"items": None}, "items"),
    (f"{PATH}/items", {"items": []}, "items"),
    (f"{PATH}/items", {"items": [MESSAGE] * 21}, "items"),
    (f"{PATH}/items", {"items": [None]}, "items[0]"),
    (f"{PATH}/items?include=everything", {"items": [MESSAGE]}, "include"),
    ("/v1/conversations", b"[]", None),
    (PATH, b"", None),
    (f"{PATH}/items", b'{"items":[' + b"[" * 100_000, None),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED, ids=range(len(REFUSED)))
async def test_what_is_not_valid_is_refused_by_the_name_of_its_field(house: House, path: str, body: object, param: str | None) -> None:
    keep(house)
    status, told = await post(house, path, body)
    assert (status, told["error"]["code"], told["error"]["param"]) == (400, "invalid_request", param)
    assert house.orchestrator.asked == house.history.asked == []


async def test_what_a_list_cannot_do_is_refused_by_name(house: House) -> None:
    for query, param in (
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("after=%00", "after"),
        ("include[]=x", "include"),
    ):
        answer = await house.http.get(f"{PATH}/items?{query}")
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, param)
    assert house.history.asked == []


@pytest.mark.parametrize("odd", ["x" * 200, "%00", "%0A"])
async def test_an_odd_item_id_is_not_found(house: House, odd: str) -> None:
    """B158"""
    for method in ("GET", "DELETE"):
        answer = await house.http.request(method, f"{PATH}/items/{odd}")
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "item_not_found")
    assert house.history.asked == []


async def test_a_foreign_conversation_looks_exactly_like_an_unknown_one() -> None:
    """B150: the same status and the same body but for the id, and nothing changes."""
    async with open_house(api_keys={"ada": "sk-ada", "bob": "sk-bob"}) as house:
        keep(house, 1, owner="ada")
        for method, suffix in (
            ("GET", ""),
            ("POST", ""),
            ("DELETE", ""),
            ("GET", "/items"),
            ("GET", "/items/msg_0"),
            ("DELETE", "/items/msg_0"),
        ):
            answers = []
            for conversation_id in (CONVERSATION_ID, OTHER):
                path = f"/v1/conversations/{conversation_id}{suffix}"
                answer = await house.http.request(method, path, headers={"x-api-key": "sk-bob"}, data=b'{"metadata":{}}')
                answers.append((answer.status, (await answer.text()).replace(conversation_id, "ID")))
            assert answers[0] == answers[1]
            assert answers[0][0] == 404
        assert len(house.history.items["ada", CONVERSATION_ID]) == 1


async def test_a_locked_conversation_says_when_to_come_again(house: House) -> None:
    house.orchestrator.error = RemoteError(StatusCode.ABORTED, "conversation_locked", "A turn is running.", headers={"retry-after": "3"})
    answer = await house.http.post(f"{PATH}/items", json={"items": [MESSAGE]})
    assert (answer.status, answer.headers["retry-after"]) == (409, "3")
    assert (await answer.json())["error"]["code"] == "conversation_locked"


async def test_a_turn_of_a_conversation_is_asked_for_by_its_id(house: House) -> None:
    for given in (CONVERSATION_ID, {"id": CONVERSATION_ID}):
        for store in (True, False):
            assert (await house.create({"model": "m", "input": "hi", "conversation": given, "store": store})).status == 200
    assert {(turn.conversation_id, turn.previous_response_id) for turn in house.orchestrator.turns} == {(CONVERSATION_ID, "")}


async def test_the_official_client_keeps_a_conversation(house: House) -> None:
    async with house.sdk() as client:
        made = await client.conversations.create(metadata={"topic": "x"}, items=[{"type": "message", "role": "user", "content": "hi"}])
        keep(house, 30)
        assert (made.id, made.created_at, made.metadata) == (CONVERSATION_ID, 7, {"topic": "x"})
        assert (await client.conversations.retrieve(made.id)).id == made.id
        assert (await client.conversations.update(made.id, metadata={"a": "b"})).metadata == {"a": "b"}
        added = await client.conversations.items.create(made.id, items=[{"type": "message", "role": "user", "content": "more"}])
        assert [item.id for item in added.data] == ["msg_0"]
        listed = [item.id async for item in client.conversations.items.list(made.id, limit=7, order="asc")]
        assert listed == [f"msg_{n}" for n in range(30)]
        assert (await client.conversations.items.retrieve("msg_3", conversation_id=made.id)).id == "msg_3"
        assert (await client.conversations.items.delete("msg_3", conversation_id=made.id)).id == made.id
        assert (await client.conversations.delete(made.id)).deleted is True
