"""Conversations: what turns append to them and what they are shown of them, one turn at a time."""

import asyncio
from typing import cast

import psycopg
import pytest

from tests.end_to_end.client import Client, Refusal, Reply, refusal_of, types_of
from tests.end_to_end.prompts import kinds, texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import function_call, status, text
from tests.fakes.streams import check_item_list

LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}}
OVER_ONE = [{"type": "compaction", "compact_threshold": 1}]
UNKNOWN = "conv_" + "0" * 40


def message(said: str, **more: object) -> Json:
    return {"type": "message", "role": "user", "content": said, **more}


class Conversation:
    """A conversation of a client's."""

    def __init__(self, client: Client, id: str) -> None:
        self.client = client
        self.id = id

    async def items(self) -> list[Json]:
        """All of its items, from the first."""
        items: list[Json] = []
        after = ""
        while True:
            page = (await self.ask("GET", f"/items?order=asc&limit=3{after}")).json
            items += check_item_list(page)
            if not page["has_more"]:
                return items
            after = f"&after={page['last_id']}"

    async def texts(self) -> list[str]:
        return [text for item in await self.items() for text in _texts(item)]

    async def add(self, *items: Json) -> list[Json]:
        return check_item_list((await self.ask("POST", "/items", {"items": items})).json)

    async def remove(self, item: Json) -> None:
        assert (await self.ask("DELETE", f"/items/{item['id']}")).json["id"] == self.id

    async def ask(self, method: str, path: str, body: Json | None = None) -> Reply:
        reply = await self.client.request(method, f"/v1/conversations/{self.id}{path}", body)
        assert reply.status == 200, reply.body
        return reply

    async def refused(self, method: str, path: str, body: Json | None = None) -> Refusal:
        return refusal_of(await self.client.request(method, f"/v1/conversations/{self.id}{path}", body))


def _texts(item: Json) -> list[str]:
    content = item.get("content", item.get("output", item.get("arguments", "")))
    return [content] if isinstance(content, str) else [str(part["text"]) for part in cast(list[Json], content)]


async def begun(client: Client, *items: Json, **fields: object) -> Conversation:
    reply = await client.request("POST", "/v1/conversations", {"items": items, **fields})
    assert reply.status == 200, reply.body
    return Conversation(client, str(reply.json["id"]))


async def test_turns_append_to_a_conversation_and_are_shown_it(ada: Client, engine: FakeEngine) -> None:
    """Streamed or not, stored or not; the response names its conversation."""
    engine.play(text("one"), text("two"), text("three"))
    talk = await begun(ada, message("0"), metadata={"topic": "x"})

    first = await ada.create("1", conversation=talk.id)
    second = await ada.stream("2", conversation={"id": talk.id}, store=False)
    await ada.create("3", conversation=talk.id)

    assert first["conversation"] == second.response["conversation"] == {"id": talk.id}
    assert first["previous_response_id"] is None
    assert texts(engine.posts[2]) == ["0", "1", "one", "2", "two", "3"]
    assert await talk.texts() == ["0", "1", "one", "2", "two", "3", "three"]
    assert [item["id"] for item in await talk.items()][2] == cast(list[Json], first["output"])[0]["id"]


async def test_only_turns_that_come_to_a_good_end_are_appended(ada: Client, engine: FakeEngine) -> None:
    talk = await begun(ada, message("0"))
    engine.play(text("this is half of it").cut(events=5), status(500), text("cut off").incomplete(), text("three"))

    assert (await ada.create("1", conversation=talk.id))["status"] == "failed"
    unanswered = refusal_of(await ada.request("POST", "/v1/responses", {"model": "m", "input": "1", "conversation": talk.id}))
    assert unanswered.status == 502
    assert await talk.texts() == ["0"]
    assert (await ada.create("2", conversation=talk.id))["status"] == "incomplete"
    await ada.create("3", conversation=talk.id)

    assert texts(engine.posts[-1]) == ["0", "2", "cut off", "3"]


async def test_a_turn_whose_client_leaves_appends_nothing_and_lets_go(ada: Client, engine: FakeEngine) -> None:
    talk = await begun(ada, message("0"))
    engine.play(text("never said").hold(asyncio.Event(), before=4), text("one"))
    async with ada.streaming("1", conversation=talk.id, store=False) as answer:
        await answer.content.readline()
    await engine.posts[0].closed.wait()

    response = await _when_free(ada, talk, "2")

    assert response["status"] == "completed"
    assert await talk.texts() == ["0", "2", "one"]


async def _when_free(client: Client, talk: Conversation, said: str) -> Json:
    """A turn as soon as the one before has let go; its lease is given back after its client has left."""
    async with asyncio.timeout(20):
        while True:
            reply = await client.request("POST", "/v1/responses", {"model": "m", "input": said, "conversation": talk.id})
            if reply.status == 200:
                return reply.json
            assert refusal_of(reply).code == "conversation_locked"


async def test_one_turn_at_a_time(ada: Client, engine: FakeEngine) -> None:
    """The second is refused before the first ends, adding and deleting items as well; nothing finished is lost."""
    talk = await begun(ada, message("0"))
    (item,) = await talk.items()
    go_on = asyncio.Event()
    engine.play(text("one").hold_head(go_on))
    first = asyncio.create_task(ada.create("1", conversation=talk.id))
    await engine.request(0)

    second = await ada.refused("2", conversation=talk.id)
    added = await talk.refused("POST", "/items", {"items": [message("x")]})
    deleted = await talk.refused("DELETE", f"/items/{item['id']}")
    for refused in (second, added, deleted):
        assert (refused.status, refused.code) == (409, "conversation_locked")
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert not first.done()
    go_on.set()

    assert (await first)["status"] == "completed"
    await ada.create("3", conversation=talk.id)
    assert texts(engine.posts[-1]) == ["0", "1", "one", "3"]


async def test_a_turn_that_came_to_nothing_holds_nobody_up(ada: Client, engine: FakeEngine) -> None:
    """Whoever is told that a turn was refused, or has failed, may take the next one at once."""
    talk = await begun(ada)
    for _ in range(5):
        engine.play(status(500), status(500), text("this is half of it").cut(events=5), text("this is half of it").cut(events=5))
        assert (await ada.refused("0", conversation=talk.id)).status == 502
        for store in (True, False):
            assert (await ada.create("1", conversation=talk.id, store=store))["status"] == "failed"
    assert (await ada.create("2", conversation=talk.id))["status"] == "completed"


async def test_many_turns_at_once_lose_nothing_that_was_said(ada: Client, engine: FakeEngine) -> None:
    talk = await begun(ada)

    async def one(number: int) -> str | None:
        reply = await ada.request("POST", "/v1/responses", {"model": "m", "input": f"m{number}", "conversation": talk.id})
        if reply.status == 200:
            return f"m{number}"
        assert refusal_of(reply).code == "conversation_locked"
        return None

    said = [one for one in await asyncio.gather(*map(one, range(12))) if one is not None]
    assert said
    assert sorted((await talk.texts())[::2]) == sorted(said)


async def test_a_conversation_is_free_again_when_its_turn_is_gone(ada: Client, engine: FakeEngine, database: str) -> None:
    """A lease runs out; here time has passed for it in the database. The turn that lost it is stored all the same, and appended."""
    talk = await begun(ada, message("0"))
    go_on = asyncio.Event()
    engine.play(text("one").hold_head(go_on), text("two"))
    first = asyncio.create_task(ada.create("1", conversation=talk.id))
    await engine.request(0)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("update lease set expires_at = now() - interval '1 second' where subject = %s", [talk.id])

    await ada.create("2", conversation=talk.id)
    go_on.set()

    assert (await first)["status"] == "completed"
    assert texts(engine.posts[1]) == ["0", "2"]
    assert await talk.texts() == ["0", "2", "two", "1", "one"]


async def test_a_late_turn_compacts_nothing_that_was_said_meanwhile(ada: Client, engine: FakeEngine, database: str) -> None:
    """Its lease has passed to another turn: what stands in the conversation stays, and what it made follows."""
    talk = await begun(ada, message("0"))
    go_on = asyncio.Event()
    engine.play(text("the summary"), text("one").hold_head(go_on), text("two"), text("three"))
    first = asyncio.create_task(ada.create("1", conversation=talk.id, context_management=OVER_ONE))
    await engine.request(1)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("update lease set expires_at = now() - interval '1 second' where subject = %s", [talk.id])
    await ada.create("2", conversation=talk.id)
    go_on.set()
    assert types_of((await first)["output"]) == ["compaction", "message"]

    await ada.create("3", conversation=talk.id)

    assert [one.rpartition("\n")[2] for one in texts(engine.posts[-1])] == ["0", "2", "two", "1", "the summary", "one", "3"]


async def test_the_tokens_of_a_conversation_are_counted(ada: Client, engine: FakeEngine) -> None:
    short, long = await begun(ada, message("x")), await begun(ada, message("x" * 4000))
    counted = [
        (await ada.request("POST", "/v1/responses/input_tokens", {"model": "m", "input": "hi", "conversation": talk.id})).json[
            "input_tokens"
        ]
        for talk in (short, long)
    ]
    assert cast(int, counted[1]) > cast(int, counted[0]) + 900


async def test_a_conversation_and_a_response_to_continue_exclude_each_other(ada: Client, engine: FakeEngine) -> None:
    talk, before = await begun(ada), await ada.create("1")
    refused = await ada.refused("2", conversation=talk.id, previous_response_id=before["id"])
    assert refused.status == 400
    assert refused.param in ("conversation", "previous_response_id")


async def test_a_conversation_that_is_not_there_is_not_made(ada: Client, bob: Client, engine: FakeEngine) -> None:
    """Unknown, deleted, another owner's, no id at all."""
    deleted, of_bob = await begun(ada), await begun(bob)
    await deleted.ask("DELETE", "")
    for id in (UNKNOWN, deleted.id, of_bob.id, "x", "resp_" + "0" * 40):
        assert (await ada.refused("hi", conversation=id)).said == (404, "conversation_not_found", "conversation")
    assert engine.posts == []


async def test_items_with_calls_and_outputs_can_be_added(ada: Client, engine: FakeEngine) -> None:
    call: Json = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output: Json = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    talk = await begun(ada, message("0"), call)

    assert (await ada.refused("1", conversation=talk.id)).said == (400, "invalid_request", "input")
    assert types_of(await talk.add(output, message("1"))) == ["function_call_output", "message"]
    orphan = await talk.refused("POST", "/items", {"items": [output]})
    assert (orphan.status, orphan.param) == (400, "items")

    await ada.create("2", conversation=talk.id, tools=[LOOK])
    assert kinds(engine.posts[0]) == ["user", "function_call", "function_call_output", "user", "user"]


@pytest.mark.parametrize("half", [0, 1], ids=["call", "output"])
async def test_deleting_half_of_a_pair_takes_the_other_half_from_the_model(ada: Client, engine: FakeEngine, half: int) -> None:
    engine.play(function_call("look", {}, "call_1"), text("one"), text("two"))
    talk = await begun(ada)
    await ada.create("1", conversation=talk.id, tools=[LOOK])
    await ada.create([{"type": "function_call_output", "call_id": "call_1", "output": "seen"}], conversation=talk.id, tools=[LOOK])
    pair = [item for item in await talk.items() if "call_id" in item]

    await talk.remove(pair[half])

    await ada.create("2", conversation=talk.id, tools=[LOOK])
    assert kinds(engine.posts[-1]) == ["user", "assistant", "user"]


async def test_a_call_that_waits_can_be_deleted(ada: Client, engine: FakeEngine) -> None:
    engine.play(function_call("look", {}, "call_1"), text("two"))
    talk = await begun(ada)
    await ada.create("1", conversation=talk.id, tools=[LOOK])
    await talk.remove((await talk.items())[-1])
    await ada.create("2", conversation=talk.id, tools=[LOOK])
    assert texts(engine.posts[-1]) == ["1", "2"]


async def test_a_deleted_message_is_not_shown_again(ada: Client, engine: FakeEngine) -> None:
    talk = await begun(ada, message("0"), message("1"), message("2"))
    await talk.remove((await talk.items())[1])
    await ada.create("3", conversation=talk.id)
    assert texts(engine.posts[0]) == ["0", "2", "3"]


async def test_a_response_of_a_conversation_is_deleted_and_the_conversation_stays(ada: Client, engine: FakeEngine) -> None:
    """B019."""
    engine.play(text("one"), text("two"), text("three"))
    talk = await begun(ada)
    await ada.create("1", conversation=talk.id)
    second = await ada.create("2", conversation=talk.id)
    await ada.delete(second["id"])
    await ada.create("3", conversation=talk.id)
    assert texts(engine.posts[-1]) == ["1", "one", "2", "two", "3"]


async def test_a_turn_of_a_conversation_can_be_continued_by_its_id_as_well(ada: Client, engine: FakeEngine) -> None:
    """That is a branch; the conversation does not see it."""
    engine.play(text("one"), text("two"), text("three"), text("four"))
    talk = await begun(ada, message("0"))
    first = await ada.create("1", conversation=talk.id)
    await ada.create("2", conversation=talk.id)
    await ada.create("instead", previous_response_id=first["id"])
    await ada.create("3", conversation=talk.id)
    assert texts(engine.posts[2]) == ["0", "1", "one", "instead"]
    assert texts(engine.posts[3]) == ["0", "1", "one", "2", "two", "3"]


async def test_a_conversation_is_compacted_like_a_chain(ada: Client, engine: FakeEngine) -> None:
    """Its items are all listed still; its turns stand on the compaction."""
    engine.play(text("one"), text("the summary"), text("two"), text("three"))
    talk = await begun(ada)
    await ada.create("1", conversation=talk.id)
    turned = await ada.create("2", conversation=talk.id, context_management=[{"type": "compaction", "compact_threshold": 1}])
    await ada.create("3", conversation=talk.id)

    assert types_of(turned["output"]) == ["compaction", "message"]
    assert [one.rpartition("\n")[2] for one in texts(engine.posts[-1])] == ["2", "the summary", "two", "3"]
    assert types_of(await talk.items()) == ["message", "message", "message", "compaction", "message", "message", "message"]


async def test_a_compaction_can_be_put_into_a_conversation(ada: Client, engine: FakeEngine) -> None:
    engine.play(text("the summary"), text("Well."))
    reply = await ada.request("POST", "/v1/responses/compact", {"model": "m", "input": [message("1"), message("2")]})
    made = cast(list[Json], reply.json["output"])
    talk = await begun(ada, *made)
    await ada.create("3", conversation=talk.id)
    assert [one.rpartition("\n")[2] for one in texts(engine.posts[-1])] == ["2", "the summary", "3"]
    spoiled = await talk.refused("POST", "/items", {"items": [{"type": "compaction", "encrypted_content": "x"}]})
    assert (spoiled.status, spoiled.param) == (400, "items[0].encrypted_content")
    trigger = await talk.refused("POST", "/items", {"items": [{"type": "compaction_trigger"}]})
    assert (trigger.status, trigger.param) == (400, "items[0].type")
