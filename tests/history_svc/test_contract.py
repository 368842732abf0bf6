"""What every caller of `turnkeep.history.v1` may rely on, told over a channel in this process and over a socket."""

import asyncio

import grpc
import pytest

from svckit.ids import new_block, new_tree_key, tree_key_of
from tests.history_svc.database import change, rows
from tests.history_svc.refusals import NOT_FOUND, refused
from tests.history_svc.turns import OWNER, Client, body, continuation, prompts, root, said, spans
from turnkeep.common.v1 import common_pb2 as common
from turnkeep.history.v1 import history_pb2 as pb

# Turns


async def test_a_first_turn_is_loaded_as_it_was_saved(client: Client) -> None:
    turn = root("hello", "hi", open_call_ids=["call_1"], model="big")

    saved = await client.commit(turn)
    loaded = await client.load(turn.response_id)

    assert saved == pb.CommitTurnReply(checkpoint=spans((1, 3)))
    assert loaded.prompts == prompts("hello", "hi")
    assert loaded.head == pb.ContextHead(
        status=common.RESPONSE_STATUS_COMPLETED,
        model="big",
        checkpoint=spans((1, 3)),
        open_call_ids=["call_1"],
        tokens=20,
        item_count=2,
    )


async def test_a_line_of_turns_keeps_one_range_and_every_item_in_order(client: Client) -> None:
    parent = root("q0", "a0")
    await client.commit(parent)
    for n in range(1, 12):
        parent = await client.continued(parent.response_id, f"q{n}", f"a{n}")

    loaded = await client.load(parent.response_id)

    assert loaded.prompts == prompts(*(word for n in range(12) for word in (f"q{n}", f"a{n}")))
    assert list(loaded.head.checkpoint) == spans((1, 25))
    assert loaded.head.parent_response_id == parent.parent_response_id


async def test_a_branch_has_its_own_past_only(client: Client) -> None:
    first = root("q", "a")
    await client.commit(first)
    left = await client.continued(first.response_id, "left")
    right = await client.continued(first.response_id, "right")
    left_child = await client.continued(left.response_id, "left again")
    right_child = await client.continued(right.response_id, "right again")

    assert (await client.load(left_child.response_id)).prompts == prompts("q", "a", "left", "left again")
    loaded = await client.load(right_child.response_id)
    assert loaded.prompts == prompts("q", "a", "right", "right again")
    assert list(loaded.head.checkpoint) == spans((1, 3), (4, 5), (6, 7))


async def test_a_hundred_branches_at_once_stay_apart__b140(client: Client) -> None:
    first = root("q", "a")
    await client.commit(first)

    branches = await asyncio.gather(*(client.continued(first.response_id, f"branch {n}") for n in range(100)))
    children = await asyncio.gather(*(client.continued(turn.response_id, f"child {n}") for n, turn in enumerate(branches)))

    for n, child in enumerate(children):
        assert (await client.load(child.response_id)).prompts == prompts("q", "a", f"branch {n}", f"child {n}")


async def test_turns_one_right_after_the_other_are_all_there__b012(client: Client) -> None:
    turn = root("turn 0")
    await client.commit(turn)
    for n in range(1, 60):
        loaded = await client.load(turn.response_id)
        assert loaded.prompts == prompts(*(f"turn {m}" for m in range(n)))
        turn = continuation(turn.response_id, loaded.head, f"turn {n}")
        await client.commit(turn)


async def test_a_turn_without_items_can_be_continued(client: Client) -> None:
    empty = root()
    await client.commit(empty)
    loaded = await client.load(empty.response_id)
    assert (loaded.prompts, list(loaded.head.checkpoint), loaded.head.item_count) == (b"", [], 0)

    child = await client.continued(empty.response_id, "hello")

    assert (await client.load(child.response_id)).prompts == prompts("hello")


async def test_input_is_all_that_was_given_and_output_what_was_made(client: Client) -> None:
    first = root("q1", "a1")
    await client.commit(first)
    second = await client.continued(first.response_id, "q2", "a2")

    response = await client.get(second.response_id)
    given, _ = await client.page(second.response_id, order=pb.ORDER_ASC)

    assert response == pb.GetResponseReply(
        body=b'"object":"response"', status=common.RESPONSE_STATUS_COMPLETED, output=[second.items[1].item]
    )
    assert given == [first.items[0].item.id, first.items[1].item.id, second.items[0].item.id]


@pytest.mark.parametrize("status", [number for number in common.ResponseStatus.values() if number])
async def test_every_status_comes_back(client: Client, status: int) -> None:
    turn = root("q", "a", status=status)
    await client.commit(turn)

    assert (await client.get(turn.response_id)).status == status
    assert (await client.load(turn.response_id)).head.status == status


# Saving again


async def test_the_same_turn_again_changes_nothing__b132(client: Client, database: str) -> None:
    first = root("q", "a")
    saved = await client.commit(first)

    again = [await client.commit(first) for _ in range(3)]

    assert again == [pb.CommitTurnReply(checkpoint=saved.checkpoint, repeated_save=True)] * 3
    assert rows(database, "select next_seq from tree") == [(3,)]
    assert rows(database, "select count(*) from item") == [(2,)]


@pytest.mark.parametrize("other_fields", [{"content_hash": b"other"}, {"round": 2}, {"fencing_token": 7}])
async def test_another_turn_under_a_known_id_is_refused(client: Client, database: str, other_fields: dict[str, object]) -> None:
    first = root("q", "a")
    await client.commit(first)
    other = pb.CommitTurnRequest()
    other.CopyFrom(first)
    for name, value in other_fields.items():
        setattr(other, name, value)

    assert await refused(client.commit(other)) == (grpc.StatusCode.ALREADY_EXISTS, "response_conflict", None)
    assert rows(database, "select next_seq from tree") == [(3,)]


async def test_equal_turns_at_once_are_stored_once__b132(client: Client, database: str) -> None:
    turn = root("q", "a")

    replies = await asyncio.gather(*(client.commit(turn) for _ in range(16)))

    assert sorted(reply.repeated_save for reply in replies) == [False] + [True] * 15
    assert {tuple((span.first, span.end) for span in reply.checkpoint) for reply in replies} == {((1, 3),)}
    assert rows(database, "select next_seq from tree") == [(3,)]


@pytest.mark.parametrize("table", ["item", "response", "tree"])
async def test_a_save_that_fails_leaves_nothing_behind__b018(client: Client, database: str, table: str) -> None:
    first = root("q", "a")
    await client.commit(first)
    loaded = await client.load(first.response_id)
    call_and_output = continuation(first.response_id, loaded.head, "call", "output")
    change(
        database,
        "create function fails() returns trigger language plpgsql as $$ begin raise 'no'; end $$",
        f"create trigger fails before insert or update on {table} for each row execute function fails()",
    )

    status, reason, _ = await refused(client.commit(call_and_output))

    assert (status, reason) == (grpc.StatusCode.INTERNAL, "internal_error")
    change(database, f"drop trigger fails on {table}")
    assert (await client.load(first.response_id)).prompts == prompts("q", "a")
    assert (await refused(client.load(call_and_output.response_id)))[1] == "previous_response_not_found"
    await client.commit(call_and_output)
    assert (await client.load(call_and_output.response_id)).prompts == prompts("q", "a", "call", "output")


# Owners


async def test_a_foreign_response_looks_like_one_that_is_not_there(client: Client) -> None:
    turn = root("q", "a")
    await client.commit(turn)

    for id in (turn.response_id, new_block(tree_key_of(turn.response_id)).id("resp"), new_block(new_tree_key()).id("resp"), "resp_1", ""):
        assert await refused(client.load(id, owner="eve")) == (NOT_FOUND, "previous_response_not_found", "previous_response_id")
        assert await refused(client.get(id, owner="eve")) == (NOT_FOUND, "response_not_found", None)
        assert await refused(client.delete(id, owner="eve")) == (NOT_FOUND, "response_not_found", None)
        assert await refused(client.page(id, owner="eve")) == (NOT_FOUND, "response_not_found", None)
    assert (await client.load(turn.response_id)).prompts == prompts("q", "a")


async def test_nobody_saves_into_a_foreign_tree(client: Client, database: str) -> None:
    turn = root("q", "a")
    await client.commit(turn)
    head = (await client.load(turn.response_id)).head
    same = pb.CommitTurnRequest()
    same.CopyFrom(turn)
    same.owner = "eve"
    block = new_block(tree_key_of(turn.response_id))

    for intruder in (same, root("x", owner="eve", response_id=block.id("resp")), continuation(turn.response_id, head, "x", owner="eve")):
        assert await refused(client.commit(intruder)) == (NOT_FOUND, "tree_not_found", None)
    assert rows(database, "select next_seq, (select count(*) from item) from tree") == [(3, 2)]


async def test_a_continuation_never_makes_its_tree(client: Client, database: str) -> None:
    orphan = root("x", base=spans((1, 3)))

    assert await refused(client.commit(orphan)) == (NOT_FOUND, "tree_not_found", None)
    assert rows(database, "select count(*) from tree") == [(0,)]


async def test_a_base_of_numbers_not_given_out_yet_is_refused(client: Client) -> None:
    turn = root("q", "a")
    await client.commit(turn)
    ahead = continuation(turn.response_id, pb.ContextHead(checkpoint=spans((1, 4))), "x")

    assert await refused(client.commit(ahead)) == (NOT_FOUND, "tree_not_found", None)


# Deleting


async def test_a_chain_goes_on_over_a_deleted_middle__b019(client: Client) -> None:
    first = root("q1", "a1")
    await client.commit(first)
    second = await client.continued(first.response_id, "q2", "a2")
    third = await client.continued(second.response_id, "q3", "a3")

    await client.delete(second.response_id)

    assert await refused(client.get(second.response_id)) == (NOT_FOUND, "response_not_found", None)
    assert await refused(client.delete(second.response_id)) == (NOT_FOUND, "response_not_found", None)
    assert (await refused(client.load(second.response_id)))[1] == "previous_response_not_found"
    from_third = await client.continued(third.response_id, "q4")
    from_first = await client.continued(first.response_id, "q5")
    assert (await client.load(from_third.response_id)).prompts == prompts("q1", "a1", "q2", "a2", "q3", "a3", "q4")
    assert (await client.load(from_first.response_id)).prompts == prompts("q1", "a1", "q5")


async def test_a_turn_in_flight_over_a_deleted_parent_is_stored_whole__b019(client: Client) -> None:
    parent = root("q", "a")
    await client.commit(parent)
    loaded = await client.load(parent.response_id)

    await client.delete(parent.response_id)
    child = continuation(parent.response_id, loaded.head, "next")
    await client.commit(child)

    assert (await client.load(child.response_id)).prompts == prompts("q", "a", "next")


# Items


async def test_prompts_come_from_the_prompt_where_there_is_one(client: Client) -> None:
    items = [
        said("body", "msg_1"),
        said("shown", "msg_2", prompt=body("meant")),
        said("hidden", "msg_3", prompt=b""),
        said("last", "msg_4", prompt=b'{"a":1},{"b":2}'),
    ]
    turn = root(items=items, input_count=4)
    await client.commit(turn)

    loaded = await client.load(turn.response_id)

    assert loaded.prompts == prompts("body", "meant") + b',{"a":1},{"b":2}'
    assert (loaded.head.item_count, loaded.head.tokens) == (4, 40)


async def test_opaque_items_of_a_provider_stand_alone(client: Client) -> None:
    origins = ["", "acme", "acme", "", "", "other", ""]
    items = [said(f"i{n}", f"msg_{n}", origin=origin) for n, origin in enumerate(origins)]
    items.insert(4, said("hidden", "msg_hidden", origin="acme", prompt=b""))
    turn = root(items=items)
    await client.commit(turn)

    loaded = await client.load(turn.response_id)

    given = [(item.prompt, item.origin) for reply in loaded.replies for item in reply.items]
    assert given == [
        (prompts("i0"), ""),
        (prompts("i1"), "acme"),
        (prompts("i2"), "acme"),
        (prompts("i3", "i4"), ""),
        (prompts("i5"), "other"),
        (prompts("i6"), ""),
    ]


async def test_items_come_back_byte_for_byte__b138(client: Client) -> None:
    odd = b'{"type":"message","z":1,"a":"\\u0000 \\ud83d","a":2,  "raw":"\x00\xff"}'
    item = common.Item(id="msg_x", type="message", body=odd)
    first = root(items=[pb.NewItem(item=item), pb.NewItem(item=item, prompt=b"\x00\xff")], input_count=1, body=odd)
    await client.commit(first)
    second = await client.continued(first.response_id, "next")

    assert (await client.load(second.response_id)).prompts == b",".join([odd, b"\x00\xff", body("next")])
    response = await client.get(first.response_id)
    assert (response.body, list(response.output)) == (odd, [item])


async def test_items_of_kinds_nobody_here_knows_are_kept__b149(client: Client) -> None:
    future = common.Item(id="xyz_1", type="hologram_call", body=b'{"type":"hologram_call","depth":[1,{"new":null}]}')
    first = root(items=[pb.NewItem(item=future), pb.NewItem(item=future)], input_count=1)
    await client.commit(first)
    second = await client.continued(first.response_id, "next")

    assert (await client.load(second.response_id)).prompts == b",".join([future.body, future.body, body("next")])
    assert (await client.page(second.response_id))[0] == ["xyz_1", "xyz_1"]
    assert list((await client.get(first.response_id)).output) == [future]


async def test_a_long_context_comes_in_messages_of_about_a_mebibyte(client: Client) -> None:
    words = [f"{n} " + "x" * 10_000 for n in range(500)] + ["y" * 3_000_000, "end"]
    turn = root(*words)
    await client.commit(turn)

    loaded = await client.load(turn.response_id)

    assert loaded.prompts == prompts(*words)
    sizes = [reply.ByteSize() for reply in loaded.replies]
    assert sorted(sizes)[-2] < 1_100_000 < sorted(sizes)[-1] < 3_010_000
    assert len(sizes) < 10
    assert [reply.HasField("head") for reply in loaded.replies] == [True] + [False] * (len(sizes) - 1)


# Paging


async def test_pages_are_walked_both_ways(client: Client) -> None:
    first = root(*(f"w{n}" for n in range(30)))
    await client.commit(first)
    side = await client.continued(first.response_id, "side")
    second = await client.continued(first.response_id, *(f"v{n}" for n in range(16)))
    assert list((await client.load(second.response_id)).head.checkpoint) == spans((1, 31), (32, 48)), side
    ids = [item.item.id for item in (*first.items, *second.items[:-1])]

    for limit in (1, 7, 20, 45, 100):
        assert await walked(client, second.response_id, limit, pb.ORDER_ASC) == ids
        assert await walked(client, second.response_id, limit, pb.ORDER_DESC) == ids[::-1]
    assert await client.page(second.response_id) == (ids[:-21:-1], ids[-20])


async def walked(client: Client, response_id: str, limit: int, order: int) -> list[str]:
    ids, token = await client.page(response_id, page_size=limit, order=order)
    while token:
        assert ids[-1] == token
        more, token = await client.page(response_id, page_size=limit, order=order, page_token=token)
        ids += more
    return ids


async def test_walking_pages_ends_though_ids_come_twice(client: Client) -> None:
    turn = root(items=[said(f"w{n}", f"msg_{n % 3}") for n in range(9)], input_count=9)
    await client.commit(turn)

    for order in (pb.ORDER_ASC, pb.ORDER_DESC):
        assert {"msg_0", "msg_1", "msg_2"} == set(await walked(client, turn.response_id, 1, order))


async def test_pages_that_cannot_be_are_refused(client: Client) -> None:
    turn = root("q", "a")
    await client.commit(turn)
    invalid = grpc.StatusCode.INVALID_ARGUMENT

    assert await refused(client.page(turn.response_id, page_size=101)) == (invalid, "invalid_request", "limit")
    assert await refused(client.page(turn.response_id, page_size=-1)) == (invalid, "invalid_request", "limit")
    assert await refused(client.page(turn.response_id, page_token="msg_none")) == (invalid, "invalid_request", "after")
    output = turn.items[1].item.id
    assert await refused(client.page(turn.response_id, page_token=output)) == (invalid, "invalid_request", "after")


async def test_a_response_without_input_has_one_empty_page(client: Client) -> None:
    turn = root("only output")
    await client.commit(turn)

    assert await client.page(turn.response_id) == ([], "")


# What cannot be saved


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_id": "resp_1"}, "response_id"),
        ({"response_id": ""}, "response_id"),
        ({"base_response_id": "resp_1"}, "base_response_id"),
        ({"input_count": 3}, "input_count"),
        ({"input_count": -1}, "input_count"),
        ({"status": common.RESPONSE_STATUS_UNSPECIFIED}, "status"),
        ({"base": spans((0, 2))}, "base"),
        ({"base": spans((2, 2))}, "base"),
        ({"model": "a\0b"}, "model"),
        ({"owner": "a\0b"}, "owner"),
        ({"open_call_ids": ["a\0b"]}, "open_call_ids"),
        ({"items": [said("x", "a\0b")], "input_count": 0}, "items"),
    ],
)
async def test_a_turn_that_cannot_be_saved_is_refused_by_name(client: Client, fields: dict[str, object], param: str) -> None:
    assert await refused(client.commit(root("q", "a", **fields))) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", param)


# What is missing


@pytest.mark.parametrize("gone", [[1], [2], [4], [1, 2, 3, 4]])
async def test_a_shortened_history_is_never_given__b010(client: Client, database: str, gone: list[int]) -> None:
    first = root("q1", "a1")
    await client.commit(first)
    second = await client.continued(first.response_id, "q2", "a2")
    rows(database, "delete from item where seq = any(%s) returning 1", gone)
    lost = (grpc.StatusCode.DATA_LOSS, "history_incomplete", None)

    assert await refused(client.load(second.response_id)) == lost
    if 4 in gone:
        assert await refused(client.get(second.response_id)) == lost
    if 1 in gone:
        assert await refused(client.page(second.response_id)) == lost


# Another tree


async def test_a_base_in_another_tree_is_copied_with_its_ids(client: Client) -> None:
    old = root("q1", "a1")
    await client.commit(old)
    await client.continued(old.response_id, "a branch in between")
    parent = await client.continued(old.response_id, "q2", "a2")
    head = (await client.load(parent.response_id)).head
    turn = root("q3", "a3", parent_response_id=parent.response_id, base=head.checkpoint, base_response_id=parent.response_id)

    saved = await client.commit(turn)

    assert list(saved.checkpoint) == spans((1, 7))
    assert (await client.commit(turn)).repeated_save
    assert (await client.load(turn.response_id)).prompts == prompts("q1", "a1", "q2", "a2", "q3", "a3")
    given = [item.item.id for item in (*old.items, *parent.items, turn.items[0])]
    assert (await client.page(turn.response_id, order=pb.ORDER_ASC))[0] == given
    assert [item.id for item in (await client.get(turn.response_id)).output] == [turn.items[1].item.id]
    child = await client.continued(turn.response_id, "q4")
    assert (await client.load(child.response_id)).prompts == prompts("q1", "a1", "q2", "a2", "q3", "a3", "q4")


async def test_a_base_in_a_tree_that_is_foreign_or_gone_is_refused(client: Client, database: str) -> None:
    old = root("q1", "a1")
    await client.commit(old)
    checkpoint = (await client.load(old.response_id)).head.checkpoint
    foreign = root("x", owner="eve", base=checkpoint, base_response_id=old.response_id)
    absent = root("x", base=checkpoint, base_response_id=new_block(new_tree_key()).id("resp"))
    incomplete = root("x", base=spans((1, 4)), base_response_id=old.response_id)

    for turn in (foreign, absent, incomplete):
        assert await refused(client.commit(turn)) == (NOT_FOUND, "tree_not_found", None)
    assert rows(database, "select count(*) from tree") == [(1,)]


# Leases


async def test_a_turn_that_must_hold_its_lease_is_refused_without_it(client: Client, database: str) -> None:
    held, lost = root("q", "a", must_hold=True, fencing_token=3), root("q", "a", must_hold=True, fencing_token=3)
    for turn, token in ((held, 3), (lost, 4)):
        rows(database, "insert into lease values (%s, 'me', %s, now()) returning 1", turn.response_id, token)

    await client.commit(held)
    assert (await client.load(held.response_id)).prompts == prompts("q", "a")
    assert await refused(client.commit(lost)) == (grpc.StatusCode.FAILED_PRECONDITION, "lease_lost", None)
    never = root("q", "a", must_hold=True, fencing_token=3)
    assert await refused(client.commit(never)) == (grpc.StatusCode.FAILED_PRECONDITION, "lease_lost", None)
    assert rows(database, "select count(*) from tree") == [(1,)]


async def test_a_late_turn_of_a_conversation_is_added_and_undoes_nothing__b141(client: Client, database: str) -> None:
    block = new_block(new_tree_key())
    conversation = block.id("conv")
    fields = {"conversation_id": conversation}
    rows(database, "insert into tree values (%s, %s, 1) returning 1", block.tree_key, OWNER)
    rows(database, "insert into conversation values (%s, %s, %s) returning 1", block.tree_key, conversation, OWNER)
    late = root("late", response_id=block.id("resp", 1), **fields)
    newer = root("newer", response_id=block.id("resp", 2), **fields)

    await client.commit(newer)
    await client.commit(late)

    assert rows(database, "select head::text, revision from conversation") == [('{"[1,3)"}', 2)]
    assert (await client.load(newer.response_id)).prompts == prompts("newer")


# Items for the model only, and what is carried


async def test_items_without_a_body_are_for_the_model_only(client: Client) -> None:
    def hidden(word: str, id: str) -> pb.NewItem:
        return said("", id, item=common.Item(id=id, type="function_call"), prompt=body(word))

    items = [hidden("h0", "fc_0"), said("q", "msg_1"), hidden("h2", "fc_2"), hidden("h3", "fc_3"), said("a", "msg_4"), hidden("h5", "fc_5")]
    first = root(items=items, input_count=3)
    await client.commit(first)
    second = await client.continued(first.response_id, "q2", "a2")
    q2 = second.items[0].item.id

    assert (await client.load(second.response_id)).prompts == prompts("h0", "q", "h2", "h3", "a", "h5", "q2", "a2")
    assert (await client.load(second.response_id)).head.item_count == 8
    assert [item.id for item in (await client.get(first.response_id)).output] == ["msg_4"]
    for limit in (1, 2, 3, 100):
        assert await walked(client, second.response_id, limit, pb.ORDER_ASC) == ["msg_1", "msg_4", q2]
        assert await walked(client, second.response_id, limit, pb.ORDER_DESC) == [q2, "msg_4", "msg_1"]


async def test_what_is_carried_comes_back_as_it_was(client: Client) -> None:
    turn = root("q", "a", carried=b"\x00\xff anything")
    await client.commit(turn)

    assert (await client.load(turn.response_id)).head.carried == b"\x00\xff anything"


# Finding items


async def test_items_are_found_by_id_newest_first_in_their_tree(client: Client) -> None:
    block = new_block(new_tree_key())
    one, two, three = block.id("msg", 1), block.id("fc", 2), block.id("msg", 3)
    items = [
        said("old", one),
        said("shown", two, prompt=body("meant"), origin="acme"),
        said("new", one, tokens=7),
        said("", three, item=common.Item(id=three, type="message"), prompt=body("hidden")),
    ]
    turn = root(items=items, input_count=4, response_id=block.id("resp"))
    await client.commit(turn)

    found = await client.find(two, one, one, three, block.id("msg", 9), new_block(new_tree_key()).id("msg"), "msg_1", "")

    assert sorted(found, key=lambda item: item.item.body) == [items[2], items[1]]
    assert await client.find(one, two, owner="eve") == []
    assert await client.find() == []


async def test_too_many_items_at_once_are_refused(client: Client) -> None:
    assert await refused(client.find(*["msg_1"] * 1001)) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "item_ids")


async def test_many_found_items_come_in_messages_of_about_a_mebibyte(client: Client) -> None:
    block = new_block(new_tree_key())
    items = [said("x" * 20_000, block.id("msg", n)) for n in range(300)]
    await client.commit(root(items=items, response_id=block.id("resp")))

    request = pb.FindItemsRequest(owner=OWNER, item_ids=[item.item.id for item in items])
    replies = [reply async for reply in client.stub.FindItems(request)]

    assert sorted(item.item.id for reply in replies for item in reply.items) == sorted(item.item.id for item in items)
    assert max(reply.ByteSize() for reply in replies) < 1_100_000


# Claims


async def test_a_call_is_granted_once_and_its_outcome_told_to_whoever_comes_later(client: Client) -> None:
    turn = root("q", "a")
    await client.commit(turn)
    call = new_block(tree_key_of(turn.response_id)).id("mcpr")
    granted, unknown = pb.ClaimCallReply(granted=True), pb.ClaimCallReply()

    assert await client.claim(call, "resp_a") == granted
    assert await client.claim(call, "resp_a") == granted
    assert await client.claim(call, "resp_b") == unknown
    await client.settle(call, "resp_a", b"\x00done")
    await client.settle(call, "resp_a", b"done twice")

    settled = pb.ClaimCallReply(settled=True, outcome=b"\x00done")
    assert [await client.claim(call, response) for response in ("resp_a", "resp_b")] == [settled, settled]


async def test_an_empty_outcome_is_an_outcome(client: Client) -> None:
    call = new_block(new_tree_key()).id("mcpr")
    await client.claim(call, "resp_a")
    await client.settle(call, "resp_a", b"")

    assert await client.claim(call, "resp_a") == pb.ClaimCallReply(settled=True)


async def test_of_many_claims_at_once_one_is_granted(client: Client) -> None:
    for _ in range(5):
        call = new_block(new_tree_key()).id("mcpr")
        replies = await asyncio.gather(*(client.claim(call, f"resp_{n}") for n in range(12)))
        assert sum(reply.granted for reply in replies) == 1


async def test_a_claim_of_a_tree_that_is_not_stored_yet_holds_and_its_turn_is_saved(client: Client) -> None:
    turn = root("q", "a")
    call = new_block(tree_key_of(turn.response_id)).id("mcpr")

    assert (await client.claim(call, turn.response_id)).granted
    await client.commit(turn)

    assert not (await client.claim(call, "resp_other")).granted
    assert (await client.load(turn.response_id)).prompts == prompts("q", "a")


async def test_foreign_and_absent_claims_look_the_same(client: Client) -> None:
    turn = root("q", "a")
    await client.commit(turn)
    block = new_block(tree_key_of(turn.response_id))
    call = block.id("mcpr")
    await client.claim(call, "resp_a")
    missing = (NOT_FOUND, "claim_not_found", None)

    assert await refused(client.claim(call, "resp_a", owner="eve")) == missing
    assert await refused(client.claim(block.id("mcpr", 1), "resp_a", owner="eve")) == missing
    assert await refused(client.settle(call, "resp_a", b"x", owner="eve")) == missing
    assert await refused(client.settle(call, "resp_b", b"x")) == missing
    assert await refused(client.settle(block.id("mcpr", 1), "resp_a", b"x")) == missing
    assert await refused(client.settle("mcpr_1", "resp_a", b"x")) == missing
    assert await refused(client.claim("mcpr_1", "resp_a")) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "claim_id")
