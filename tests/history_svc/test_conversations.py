"""Conversations: what they list, what the next turn is given, and who may change them when."""

import asyncio

import grpc
import pytest

from svckit.errors import RemoteError
from svckit.ids import new_block, new_tree_key, tree_key_of
from tests.history_svc.conftest import Open
from tests.history_svc.database import change, rows
from tests.history_svc.refusals import LEASE_LOST, LOCKED, NO_CONVERSATION, NOT_FOUND, refused
from tests.history_svc.turns import OWNER, Client, answered, body, called, in_conversation, prompts, said, spans
from turnkeep.common.v1 import common_pb2 as common
from turnkeep.history.v1 import history_pb2 as pb

HIDDEN = pb.NewItem(item=common.Item(id="msg_1", type="message"), prompt=body("hidden"))
NO_ITEM = (NOT_FOUND, "item_not_found", None)


def messages(conversation_id: str, *words: str) -> list[pb.NewItem]:
    block = new_block(tree_key_of(conversation_id))
    return [said(word, block.id("msg", place)) for place, word in enumerate(words)]


# Making, reading, changing


async def test_a_conversation_is_given_as_it_was_made(client: Client) -> None:
    id = await client.conversation("hello", "there", metadata=b'{"a":"b"}', open_call_ids=["call_1"])

    reply = await client.call("GetConversation", conversation_id=id)
    loaded = await client.load_conversation(id)

    assert reply.conversation == pb.Conversation(id=id, created_at=1_700_000_000, metadata=b'{"a":"b"}')
    assert loaded.prompts == prompts("hello", "there")
    assert loaded.head == pb.ContextHead(
        status=common.RESPONSE_STATUS_COMPLETED, checkpoint=spans((1, 3)), open_call_ids=["call_1"], tokens=20, item_count=2
    )


async def test_an_empty_conversation_is_a_conversation(client: Client) -> None:
    id = await client.conversation()

    assert (await client.load_conversation(id)).prompts == b""
    assert await client.listed(id) == ([], "")
    await client.spoken(id, "q", "a")
    assert (await client.load_conversation(id)).prompts == prompts("q", "a")


async def test_making_a_conversation_again_gives_the_first(client: Client, database: str) -> None:
    id = await client.conversation("hello", metadata=b'{"n":"1"}')
    items = messages(id, "hello")

    again = await client.call("CreateConversation", conversation_id=id, items=items, metadata=b'{"n":"2"}', created_at=2)

    assert again.conversation == pb.Conversation(id=id, created_at=1_700_000_000, metadata=b'{"n":"1"}')
    assert rows(database, "select count(*) from item") == [(1,)]


async def test_a_conversation_made_many_times_at_once_is_made_once(client: Client, database: str) -> None:
    block = new_block(new_tree_key())
    fields = {"conversation_id": block.id("conv"), "items": [said("hello", block.id("msg"))], "metadata": b"{}", "created_at": 1}

    replies = await asyncio.gather(*(client.call("CreateConversation", **fields) for _ in range(10)))

    assert len({reply.conversation.SerializeToString() for reply in replies}) == 1
    assert rows(database, "select next_seq, (select count(*) from item) from tree") == [(2, 1)]


async def test_a_conversation_id_that_is_taken_is_refused(client: Client) -> None:
    id = await client.conversation("hello")
    taken = (grpc.StatusCode.ALREADY_EXISTS, "conversation_conflict", None)
    other = new_block(tree_key_of(id)).id("conv")

    assert await refused(client.call("CreateConversation", conversation_id=id, owner="eve")) == taken
    assert await refused(client.call("CreateConversation", conversation_id=other)) == taken
    invalid = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "conversation_id")
    assert await refused(client.call("CreateConversation", conversation_id="conv_1")) == invalid


async def test_metadata_is_replaced(client: Client) -> None:
    id = await client.conversation(metadata=b'{"a":"1"}')

    updated = await client.call("UpdateConversation", conversation_id=id, metadata=b'{"b":"2"}')

    assert updated.conversation == pb.Conversation(id=id, created_at=1_700_000_000, metadata=b'{"b":"2"}')
    assert (await client.call("GetConversation", conversation_id=id)).conversation == updated.conversation


async def test_a_deleted_conversation_is_gone_and_its_responses_stay(client: Client) -> None:
    id = await client.conversation("hello")
    turn = await client.spoken(id, "q", "a")

    await client.call("DeleteConversation", conversation_id=id)

    assert await refused(client.load_conversation(id)) == NO_CONVERSATION
    assert await refused(client.call("DeleteConversation", conversation_id=id)) == NO_CONVERSATION
    assert (await client.load(turn.response_id)).prompts == prompts("hello", "q", "a")


async def test_foreign_and_absent_conversations_look_the_same(client: Client) -> None:
    known = await client.conversation("hello")
    token = await client.lease(known)
    item = (await client.listed(known))[0][0]

    for id in (known, new_block(tree_key_of(known)).id("conv"), new_block(new_tree_key()).id("conv"), "conv_1"):
        of_eve = {"conversation_id": id, "owner": "eve"}
        for call in (
            client.load_conversation(id, owner="eve"),
            client.listed(id, owner="eve"),
            client.call("GetConversation", **of_eve),
            client.call("UpdateConversation", **of_eve),
            client.call("DeleteConversation", **of_eve),
            client.call("AddConversationItems", **of_eve, items=messages(known, "x")),
            client.call("GetConversationItem", **of_eve, item_id=item),
            client.call("DeleteConversationItem", **of_eve, item_id=item),
            client.lease(id, owner="eve"),
        ):
            assert await refused(call) == NO_CONVERSATION
        assert await refused(client.call("RenewLease", **of_eve, fencing_token=token, lifetime_ms=1)) == LEASE_LOST
    await client.call("ReleaseLease", conversation_id=known, owner="eve", fencing_token=token)
    assert await refused(client.lease(known, "other")) == LOCKED
    assert (await client.load_conversation(known)).prompts == prompts("hello")


async def test_a_response_and_a_conversation_at_once_are_refused(client: Client) -> None:
    id = await client.conversation()
    request = pb.LoadContextRequest(owner=OWNER, conversation_id=id, response_id=new_block(tree_key_of(id)).id("resp"))

    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        [reply async for reply in client.stub.LoadContext(request)]

    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# Items


async def test_items_are_added_behind_what_is_there(client: Client) -> None:
    id = await client.conversation("one", open_call_ids=["old", "kept"])

    await client.call(
        "AddConversationItems", conversation_id=id, items=messages(id, "two", "three"), opened_call_ids=["new"], closed_call_ids=["old"]
    )

    loaded = await client.load_conversation(id)
    assert (loaded.prompts, list(loaded.head.open_call_ids)) == (prompts("one", "two", "three"), ["kept", "new"])
    assert list(loaded.head.checkpoint) == spans((1, 4))


async def test_items_are_listed_both_ways(client: Client) -> None:
    id = await client.conversation(*(f"w{n}" for n in range(12)))
    turn = await client.spoken(id, "q", "a")
    ids = (await client.listed(id, page_size=100, order=pb.ORDER_ASC))[0]
    assert ids[12:] == [item.item.id for item in turn.items]

    assert (await client.listed(id, page_size=100))[0] == ids[::-1]
    first, token = await client.listed(id, page_size=5, order=pb.ORDER_ASC)
    second, last = await client.listed(id, page_size=100, order=pb.ORDER_ASC, page_token=token)
    assert (first + second, last) == (ids, "")
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(client.listed(id, page_token="msg_none")) == (invalid, "invalid_request", "after")
    assert await refused(client.listed(id, page_size=101)) == (invalid, "invalid_request", "limit")


async def test_one_item_is_given_the_newest_of_its_id(client: Client) -> None:
    id = await client.conversation(items=[said("old", "msg_1"), said("new", "msg_1"), HIDDEN])

    reply = await client.call("GetConversationItem", conversation_id=id, item_id="msg_1")

    assert reply.item == common.Item(id="msg_1", type="message", body=body("new"))
    assert await refused(client.call("GetConversationItem", conversation_id=id, item_id="msg_2")) == NO_ITEM


async def test_a_deleted_item_is_out_of_list_and_prompt(client: Client) -> None:
    id = await client.conversation("one", "two", "three")
    ids = (await client.listed(id, order=pb.ORDER_ASC))[0]

    reply = await client.call("DeleteConversationItem", conversation_id=id, item_id=ids[1])

    assert reply.conversation.id == id
    loaded = await client.load_conversation(id)
    assert (loaded.prompts, list(loaded.head.checkpoint)) == (prompts("one", "three"), spans((1, 2), (3, 4)))
    assert (await client.listed(id, order=pb.ORDER_ASC))[0] == [ids[0], ids[2]]
    assert await refused(client.call("DeleteConversationItem", conversation_id=id, item_id=ids[1])) == NO_ITEM
    assert await refused(client.call("GetConversationItem", conversation_id=id, item_id=ids[1])) == NO_ITEM
    await client.spoken(id, "q", "a")
    assert (await client.load_conversation(id)).prompts == prompts("one", "three", "q", "a")


@pytest.mark.parametrize("half", ["fc_1", "fco_1"])
async def test_with_one_half_of_a_call_the_other_leaves_the_prompt(client: Client, half: str) -> None:
    pair = [
        called("call_é", "fc_1"),
        said("between", "msg_1"),
        answered("call_é", "fco_1"),
        called("call_2", "fc_2"),
        answered("call_2", "fco_2"),
    ]
    pair[2].item.body = pair[2].item.body.replace("é".encode(), b"\\u00e9")
    id = await client.conversation(items=pair)

    await client.call("DeleteConversationItem", conversation_id=id, item_id=half)

    left = [pair[1], pair[3], pair[4]]
    assert (await client.load_conversation(id)).prompts == b",".join(item.item.body for item in left)
    assert (await client.listed(id, order=pb.ORDER_ASC))[0] == [item.item.id for item in pair if item.item.id != half]


async def test_a_call_whose_id_comes_again_takes_its_own_output(client: Client) -> None:
    items = [called("c", "fc_1"), answered("c", "fco_1"), called("c", "fc_2"), answered("c", "fco_2")]
    id = await client.conversation(items=items)

    await client.call("DeleteConversationItem", conversation_id=id, item_id="fco_2")
    assert list((await client.load_conversation(id)).head.checkpoint) == spans((1, 3))
    await client.call("DeleteConversationItem", conversation_id=id, item_id="fc_1")
    assert list((await client.load_conversation(id)).head.checkpoint) == []


async def test_a_deleted_call_is_open_no_more(client: Client) -> None:
    id = await client.conversation(items=[called("c", "fc_1")], open_call_ids=["c"])

    await client.call("DeleteConversationItem", conversation_id=id, item_id="fc_1")

    assert list((await client.load_conversation(id)).head.open_call_ids) == []


async def test_an_output_that_the_model_alone_sees_leaves_with_its_call(client: Client) -> None:
    hidden = answered("c", "fco_1")
    hidden.prompt = hidden.item.body
    hidden.item.ClearField("body")
    id = await client.conversation(items=[called("c", "fc_1"), hidden, said("after", "msg_1")])

    await client.call("DeleteConversationItem", conversation_id=id, item_id="fc_1")

    assert (await client.load_conversation(id)).prompts == prompts("after")


async def test_additions_and_deletions_at_once_all_count(client: Client) -> None:
    id = await client.conversation(*(f"w{n}" for n in range(8)))
    ids = (await client.listed(id, order=pb.ORDER_ASC))[0]

    deleting = [client.call("DeleteConversationItem", conversation_id=id, item_id=item) for item in ids[:4]]
    adding = [client.call("AddConversationItems", conversation_id=id, items=messages(id, f"n{n}")) for n in range(4)]
    outcomes = await asyncio.gather(*adding, *deleting, return_exceptions=True)

    assert all(outcome == pb.AddConversationItemsReply() for outcome in outcomes[:4])
    assert {outcome.reason for outcome in outcomes if isinstance(outcome, RemoteError)} <= {"history_overloaded"}
    gone = {item for item, outcome in zip(ids[:4], outcomes[4:], strict=True) if not isinstance(outcome, RemoteError)}
    left = (await client.listed(id, order=pb.ORDER_ASC))[0]
    assert left[:-4] == [item for item in ids if item not in gone]
    assert (await client.load_conversation(id)).head.item_count == len(left)


async def test_a_full_conversation_takes_no_items_but_the_turn_that_runs(open_client: Open) -> None:
    async with open_client(tree_max_items=4) as client:
        id = await client.conversation("one", "two", "three")
        head = (await client.load_conversation(id)).head
        assert not head.tree_full
        await client.commit(in_conversation(id, head, "q", "a"))

        full = (grpc.StatusCode.FAILED_PRECONDITION, "conversation_full", "conversation")
        assert await refused(client.call("AddConversationItems", conversation_id=id, items=messages(id, "x"))) == full
        loaded = await client.load_conversation(id)
        assert (loaded.head.tree_full, loaded.prompts) == (True, prompts("one", "two", "three", "q", "a"))


# Leases


async def test_a_second_turn_is_refused_while_the_first_runs(client: Client) -> None:
    id = await client.conversation("hello")
    first = await client.lease(id, "a")

    with pytest.raises(RemoteError) as refusal:
        await client.lease(id, "b")
    assert (refusal.value.status, refusal.value.reason) == (grpc.StatusCode.ABORTED, "conversation_locked")
    assert 1 <= int(refusal.value.headers["retry-after"]) <= 5
    item = (await client.listed(id))[0][0]
    assert await refused(client.call("AddConversationItems", conversation_id=id, items=messages(id, "x"))) == LOCKED
    assert await refused(client.call("DeleteConversationItem", conversation_id=id, item_id=item)) == LOCKED

    await client.call("ReleaseLease", conversation_id=id, fencing_token=first)
    assert await client.lease(id, "b") == first + 1


async def test_a_holder_that_asks_again_gets_a_higher_token(client: Client) -> None:
    id = await client.conversation()

    assert [await client.lease(id, "a") for _ in range(3)] == [1, 2, 3]
    assert await refused(client.call("RenewLease", conversation_id=id, fencing_token=2, lifetime_ms=1000)) == LEASE_LOST
    await client.call("RenewLease", conversation_id=id, fencing_token=3, lifetime_ms=1000)


async def test_a_lease_that_has_run_out_can_be_taken_and_then_is_lost(client: Client, database: str) -> None:
    id = await client.conversation()
    old = await client.lease(id, "crashed")
    change(database, "update lease set expires_at = now()")
    await client.call("RenewLease", conversation_id=id, fencing_token=old, lifetime_ms=60_000)  # nobody has taken it yet
    assert await refused(client.lease(id, "b")) == LOCKED
    change(database, "update lease set expires_at = now()")

    new = await client.lease(id, "b")

    assert new == old + 1
    assert await refused(client.call("RenewLease", conversation_id=id, fencing_token=old, lifetime_ms=60_000)) == LEASE_LOST
    await client.call("ReleaseLease", conversation_id=id, fencing_token=old)
    assert await refused(client.lease(id, "c")) == LOCKED


async def test_a_lease_that_was_given_back_is_not_renewed(client: Client) -> None:
    id = await client.conversation()
    token = await client.lease(id)
    for _ in range(2):
        await client.call("ReleaseLease", conversation_id=id, fencing_token=token)

    assert await refused(client.call("RenewLease", conversation_id=id, fencing_token=token, lifetime_ms=60_000)) == LEASE_LOST


async def test_of_many_who_want_a_lease_one_gets_it(client: Client) -> None:
    id = await client.conversation()

    outcomes = await asyncio.gather(*(client.lease(id, f"holder {n}") for n in range(12)), return_exceptions=True)

    assert sorted(isinstance(outcome, int) for outcome in outcomes) == [False] * 11 + [True]
    assert {outcome.reason for outcome in outcomes if not isinstance(outcome, int)} == {"conversation_locked"}


async def test_odd_leases_are_refused(client: Client) -> None:
    id = await client.conversation()
    invalid = grpc.StatusCode.INVALID_ARGUMENT

    assert await refused(client.lease(id, "")) == (invalid, "invalid_request", "holder")
    assert await refused(client.lease(id, "a", 0)) == (invalid, "invalid_request", "lifetime_ms")
    odd = client.call("ReleaseLease", conversation_id="conv_1", fencing_token=1)
    assert await refused(odd) == (invalid, "invalid_request", "conversation_id")


# Turns in a conversation


async def test_a_turn_is_appended_and_frees_the_conversation(client: Client) -> None:
    id = await client.conversation("hello")
    turn = await client.spoken(id, "q", "a", open_call_ids=["c"], carried=b"note")

    loaded = await client.load_conversation(id)

    assert (loaded.prompts, loaded.head.carried, list(loaded.head.open_call_ids)) == (prompts("hello", "q", "a"), b"note", ["c"])
    assert (await client.load(turn.response_id)).prompts == prompts("hello", "q", "a")
    assert await client.lease(id, "next") == 2


async def test_outputs_close_the_calls_of_the_turn_before(client: Client) -> None:
    id = await client.conversation()
    await client.spoken(id, items=[said("q", "msg_1"), called("c", "fc_1"), called("d", "fc_2")], input_count=1, open_call_ids=["c", "d"])

    await client.spoken(id, items=[answered("c", "fco_1"), answered("d", "fco_2"), said("a", "msg_2")], input_count=2)

    assert list((await client.load_conversation(id)).head.open_call_ids) == []


@pytest.mark.parametrize("status", [common.RESPONSE_STATUS_FAILED, common.RESPONSE_STATUS_CANCELLED])
async def test_a_turn_that_came_to_nothing_is_no_part_of_its_conversation(client: Client, status: int) -> None:
    id = await client.conversation("hello")

    turn = await client.spoken(id, "q", "half", status=status)

    assert (await client.load_conversation(id)).prompts == prompts("hello")
    assert (await client.get(turn.response_id)).status == status
    await client.lease(id, "next")


async def test_a_turn_whose_lease_has_passed_on_is_appended_and_undoes_nothing__b141(client: Client, database: str) -> None:
    id = await client.conversation("old 1", "old 2")
    late_token, head = await client.lease(id, "late"), (await client.load_conversation(id)).head
    change(database, "update lease set expires_at = now()")
    newer = await client.spoken(id, "newer", "answer", carried=b"newer", open_call_ids=["n"])
    running = await client.lease(id, "running")

    late = in_conversation(id, head, "summary", fencing_token=late_token, head_removed=spans((1, 3)), carried=b"late", open_call_ids=["l"])
    await client.commit(late)

    loaded = await client.load_conversation(id)
    assert loaded.prompts == prompts("old 1", "old 2", "newer", "answer", "summary")
    assert (loaded.head.carried, list(loaded.head.open_call_ids)) == (b"newer", ["n", "l"])
    assert (await client.load(newer.response_id)).prompts == prompts("old 1", "old 2", "newer", "answer")
    assert (await client.get(late.response_id)).output
    await client.call("RenewLease", conversation_id=id, fencing_token=running, lifetime_ms=60_000)


async def test_a_compaction_takes_out_of_the_head_what_it_stands_for(client: Client) -> None:
    id = await client.conversation("q1", "a1", "q2", "a2")
    listed = (await client.listed(id, order=pb.ORDER_ASC))[0]
    base = pb.ContextHead(checkpoint=spans((1, 2), (3, 4)))
    token = await client.lease(id)
    items = [said("q3", "msg_q3"), said("dropped", "msg_d", left_out=True), said("summary", "cmp_1"), said("a3", "msg_a3")]
    turn = in_conversation(id, base, items=items, input_count=1, fencing_token=token, head_removed=spans((2, 3), (4, 5)))

    saved = await client.commit(turn)

    assert list(saved.checkpoint) == spans((1, 2), (3, 4), (5, 6), (7, 9))
    for loaded in (await client.load_conversation(id), await client.load(turn.response_id)):
        assert loaded.prompts == prompts("q1", "q2", "q3", "summary", "a3")
    assert (await client.listed(id, order=pb.ORDER_ASC))[0] == [*listed, "msg_q3", "msg_d", "cmp_1", "msg_a3"]
    assert [item.id for item in (await client.get(turn.response_id)).output] == ["msg_d", "cmp_1", "msg_a3"]


async def test_an_unlisted_turn_is_in_its_conversation_and_nowhere_else(client: Client, database: str) -> None:
    id = await client.conversation("hello")
    turn = await client.spoken(id, "q", "a", unlisted=True)
    missing = (NOT_FOUND, "response_not_found", None)

    assert (await client.load_conversation(id)).prompts == prompts("hello", "q", "a")
    assert (await client.commit(turn)).repeated_save
    assert await refused(client.get(turn.response_id)) == missing
    assert await refused(client.delete(turn.response_id)) == missing
    assert await refused(client.page(turn.response_id)) == missing
    assert (await refused(client.load(turn.response_id)))[1] == "previous_response_not_found"
    assert rows(database, "select body, expires_at > now() from response") == [(b"", True)]


async def test_a_turn_saved_again_is_appended_once__b132(client: Client) -> None:
    id = await client.conversation("hello")
    turn = await client.spoken(id, "q", "a")

    replies = await asyncio.gather(*(client.commit(turn) for _ in range(8)))

    assert all(reply.repeated_save for reply in replies)
    assert (await client.load_conversation(id)).prompts == prompts("hello", "q", "a")


async def test_a_turn_whose_conversation_was_deleted_is_stored_all_the_same(client: Client) -> None:
    id = await client.conversation("hello")
    token, head = await client.lease(id), (await client.load_conversation(id)).head
    await client.call("DeleteConversation", conversation_id=id)
    turn = in_conversation(id, head, "q", "a", fencing_token=token)

    await client.commit(turn)

    assert (await client.load(turn.response_id)).prompts == prompts("hello", "q", "a")
    assert await refused(client.load_conversation(id)) == NO_CONVERSATION


async def test_a_foreign_conversation_is_not_touched_by_a_turn(client: Client) -> None:
    id = await client.conversation("hello")
    token = await client.lease(id)
    block = new_block(new_tree_key())
    turn = in_conversation(id, pb.ContextHead(), "q", "a", owner="eve", response_id=block.id("resp"), fencing_token=token)

    await client.commit(turn)

    assert (await client.load_conversation(id)).prompts == prompts("hello")
    assert await refused(client.lease(id, "other")) == LOCKED


async def test_a_long_conversation_stays_one_range(client: Client, database: str) -> None:
    id = await client.conversation("hello")
    for n in range(20):
        await client.spoken(id, f"q{n}", f"a{n}")

    assert rows(database, "select head::text, listed::text from conversation") == [('{"[1,42)"}', '{"[1,42)"}')]


# Left-out items of responses


async def test_a_left_out_item_is_listed_and_in_no_context(client: Client) -> None:
    id = await client.conversation()
    items = [said("q", "m1"), said("out", "m2", left_out=True), said("a", "m3"), said("out too", "m4", left_out=True)]
    turn = await client.spoken(id, items=items, input_count=2)

    assert (await client.load(turn.response_id)).prompts == prompts("q", "a")
    assert [item.id for item in (await client.get(turn.response_id)).output] == ["m3", "m4"]
    assert (await client.page(turn.response_id, order=pb.ORDER_ASC))[0] == ["m1", "m2"]
