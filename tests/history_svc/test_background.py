"""Turns in the background: who gets them, how they are saved round by round, and which of two endings counts."""

import asyncio
import random
from contextlib import suppress

import grpc

from svckit.errors import RemoteError
from svckit.ids import new_block, new_tree_key, tree_key_of
from tests.history_svc.conftest import Open
from tests.history_svc.database import change, rows, terminate_all
from tests.history_svc.refusals import CONFLICT, LEASE_LOST, LOCKED, NOT_FOUND, refused
from tests.history_svc.turns import OWNER, QUEUED, Client, in_conversation, prompts, root, round_of, said, spans
from turnkeep.common.v1 import common_pb2 as common
from turnkeep.history.v1 import history_pb2 as pb

COMPLETED, FAILED, CANCELLED = common.RESPONSE_STATUS_COMPLETED, common.RESPONSE_STATUS_FAILED, common.RESPONSE_STATUS_CANCELLED
IN_PROGRESS = common.RESPONSE_STATUS_IN_PROGRESS
NO_RESPONSE = (NOT_FOUND, "response_not_found", None)


def run_out(database: str) -> None:
    """Lets all leases run out, as if their holders had died a while ago."""
    change(database, "update lease set expires_at = now()")


# Queueing


async def test_a_queued_turn_is_shown_and_waits_to_be_taken(client: Client) -> None:
    id = await client.enqueue(request=b"\x00what to do")

    assert await client.get(id) == pb.GetResponseReply(body=QUEUED, status=common.RESPONSE_STATUS_QUEUED)
    loaded = await client.load(id)
    assert (loaded.prompts, loaded.head.status) == (b"", common.RESPONSE_STATUS_QUEUED)
    taken = await client.take()
    assert taken == pb.TakeTurnReply(
        taken=True, owner=OWNER, response_id=id, request=b"\x00what to do", attempt=1, fencing_token=taken.fencing_token
    )
    assert await client.get(id) == pb.GetResponseReply(body=QUEUED.replace(b"queued", b"in_progress"), status=IN_PROGRESS)
    assert await client.take() == pb.TakeTurnReply()


async def test_queueing_again_changes_nothing(client: Client, database: str) -> None:
    id = await client.enqueue()
    for _ in range(2):
        await client.enqueue(response_id=id)
    taken = await client.take()
    await client.enqueue(response_id=id)
    await client.commit(round_of(taken, 1, [], "q", "a", status=COMPLETED))
    await client.enqueue(response_id=id)

    assert rows(database, "select count(*) from work") == [(0,)]
    assert (await client.get(id)).status == COMPLETED


async def test_a_turn_queued_many_times_at_once_is_queued_once(client: Client, database: str) -> None:
    id = new_block(new_tree_key()).id("resp")

    await asyncio.gather(*(client.enqueue(response_id=id) for _ in range(10)))

    assert rows(database, "select count(*) from work") == [(1,)]


async def test_another_turn_under_a_known_id_is_refused(client: Client) -> None:
    queued, stored = await client.enqueue(), root("q", "a")
    await client.commit(stored)

    assert await refused(client.enqueue(response_id=queued, request=b"other")) == CONFLICT
    assert await refused(client.enqueue(response_id=stored.response_id)) == CONFLICT
    assert await refused(client.enqueue(response_id=queued, owner="eve")) == (NOT_FOUND, "tree_not_found", None)
    assert (await refused(client.enqueue(response_id="resp_1")))[1:] == ("invalid_request", "response_id")


async def test_an_owner_may_have_so_many_turns_waiting(open_client: Open) -> None:
    async with open_client(queue_limit=3) as client:
        outcomes = await asyncio.gather(*(client.enqueue() for _ in range(9)), return_exceptions=True)
        assert sorted(isinstance(outcome, str) for outcome in outcomes) == [False] * 6 + [True] * 3
        full = (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue_full", None)
        assert await refused(client.enqueue()) == full
        await client.enqueue(owner="eve")

        await client.take()

        await client.enqueue()
        assert await refused(client.enqueue()) == full


# Taking, keeping, giving back


async def test_turns_are_taken_oldest_first_each_once(client: Client) -> None:
    ids = [await client.enqueue(owner=f"owner {n % 3}") for n in range(9)]

    assert [(await client.take()).response_id for _ in range(3)] == ids[:3]
    taken = await asyncio.gather(*(client.take(f"process {n}") for n in range(10)))

    assert sorted(reply.response_id for reply in taken if reply.taken) == sorted(ids[3:])


async def test_a_turn_that_is_kept_is_not_taken(client: Client, database: str) -> None:
    await client.enqueue()
    taken = await client.take()
    run_out(database)
    assert not await client.keep(taken)

    assert not (await client.take("other")).taken


async def test_a_turn_whose_holder_died_is_taken_over_and_its_holder_fenced(client: Client, database: str) -> None:
    id = await client.enqueue()
    old = await client.take("dead")
    saved = await client.commit(round_of(old, 1, [], "q", "a"))
    run_out(database)

    new = await client.take("alive")

    assert (new.response_id, new.attempt, new.round) == (id, 2, 1)
    assert new.fencing_token > old.fencing_token
    assert await refused(client.keep(old)) == LEASE_LOST
    assert await refused(client.commit(round_of(old, 2, saved.checkpoint, "late"))) == LEASE_LOST
    assert await refused(client.log(old, "late")) == LEASE_LOST
    await client.call("ReturnTurn", response_id=id, fencing_token=old.fencing_token)
    assert not await client.keep(new)
    await client.commit(round_of(new, 2, saved.checkpoint, "b", status=COMPLETED))
    assert (await client.load(id)).prompts == prompts("q", "a", "b")


async def test_a_turn_given_back_is_taken_at_once_and_the_attempt_does_not_count(client: Client) -> None:
    id = await client.enqueue()
    tokens = []
    for _ in range(6):
        taken = await client.take()
        assert (taken.response_id, taken.attempt) == (id, 1)
        tokens.append(taken.fencing_token)
        for _ in range(2):
            await client.call("ReturnTurn", response_id=id, fencing_token=taken.fencing_token)
        assert await refused(client.keep(taken)) == LEASE_LOST
        assert await refused(client.commit(round_of(taken, 1, [], "q", "a"))) == LEASE_LOST

    assert tokens == sorted(set(tokens))


async def test_a_turn_taken_too_often_fails(client: Client, database: str) -> None:
    id, next_id = await client.enqueue(), await client.enqueue()
    for attempt in (1, 2, 3):
        taken = await client.take()
        assert (taken.response_id, taken.attempt) == (id, attempt)
        if attempt == 2:
            await client.commit(round_of(taken, 1, [], "q", "a", body=QUEUED))
        change(database, f"update lease set expires_at = now() where subject = '{id}'")

    assert (await client.take()).response_id == next_id

    response = await client.get(id)
    assert response.status == FAILED
    assert response.body == (
        b'{"object":"response","status":"failed","n":1.50,"completed_at":null,"error":{"code":"too_many_attempts",'
        b'"message":"The response was started too often without coming to an end."}}'
    )
    assert len(response.output) == 1
    assert await client.watch(id) == []
    assert await refused(client.commit(round_of(taken, 2, spans((1, 3)), "late", status=COMPLETED))) == CONFLICT


async def test_foreign_turns_are_not_there(client: Client) -> None:
    id = await client.enqueue()
    taken = await client.take()
    taken.owner = "eve"

    assert await refused(client.keep(taken)) == LEASE_LOST
    assert await refused(client.log(taken, "x")) == LEASE_LOST
    assert await refused(client.cancel(id, owner="eve")) == NO_RESPONSE
    assert await refused(client.watch(id, owner="eve")) == NO_RESPONSE
    await client.call("ReturnTurn", response_id=id, owner="eve", fencing_token=taken.fencing_token)
    assert not (await client.take("other")).taken
    assert await refused(client.commit(round_of(taken, 1, [], "q", "a"))) == (NOT_FOUND, "tree_not_found", None)
    for id in ("resp_1", new_block(new_tree_key()).id("resp")):
        assert await refused(client.cancel(id)) == NO_RESPONSE
        assert await refused(client.watch(id)) == NO_RESPONSE


async def test_odd_requests_are_refused_by_name(client: Client) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT

    assert await refused(client.take("")) == (invalid, "invalid_request", "holder")
    assert await refused(client.take("a", 0)) == (invalid, "invalid_request", "lifetime_ms")
    assert await refused(client.call("ReturnTurn", response_id="resp_1")) == (invalid, "invalid_request", "response_id")
    assert await refused(client.keep(pb.TakeTurnReply(owner=OWNER, response_id="resp_1"))) == LEASE_LOST


# Saving round by round


async def test_each_round_is_saved_behind_the_one_before(client: Client) -> None:
    first = root("q0", "a0")
    await client.commit(first)
    id = await client.enqueue(response_id=new_block(tree_key_of(first.response_id)).id("resp"), parent_response_id=first.response_id)
    taken = await client.take()
    base = (await client.load(first.response_id)).head.checkpoint

    saved = await client.commit(round_of(taken, 1, base, "q", "call", "output", open_call_ids=["c"], resume_state=b"\x00one", carried=b"1"))
    loaded = await client.load(id)
    assert loaded.prompts == prompts("q0", "a0", "q", "call", "output")
    assert (loaded.head.status, loaded.head.resume_state, loaded.head.carried) == (IN_PROGRESS, b"\x00one", b"1")
    assert list(loaded.head.open_call_ids) == ["c"]
    side = await client.continued(first.response_id, "a branch in between")
    half = said("half", "msg_half", left_out=True)
    second = round_of(taken, 2, saved.checkpoint, items=[half, said("more", "msg_more")], resume_state=b"two")
    saved = await client.commit(second)
    await client.commit(round_of(taken, 3, saved.checkpoint, "end", status=COMPLETED, body=b"{}", completed_at=9))

    loaded = await client.load(id)
    assert loaded.prompts == prompts("q0", "a0", "q", "call", "output", "more", "end")
    assert (loaded.head.status, loaded.head.resume_state, list(loaded.head.open_call_ids)) == (COMPLETED, b"", [])
    response = await client.get(id)
    assert [item.body.count(b"half") for item in response.output] == [0, 0, 1, 0, 0]
    assert response.body == b"{}"
    given = (await client.page(id, order=pb.ORDER_ASC))[0]
    assert (len(given), given[:2]) == (3, [item.item.id for item in first.items])
    assert (await client.load(side.response_id)).prompts == prompts("q0", "a0", "a branch in between")
    assert not (await client.take()).taken


async def test_the_same_save_again_changes_nothing__b132(client: Client, database: str) -> None:
    id = await client.enqueue()
    taken = await client.take()
    one, end = round_of(taken, 1, [], "q", "a"), round_of(taken, 2, spans((1, 3)), "b", status=COMPLETED)

    for save in (one, end):
        replies = await asyncio.gather(*(client.commit(save) for _ in range(6)))
        assert sorted(reply.repeated_save for reply in replies) == [False] + [True] * 5

    assert await refused(client.commit(one)) == CONFLICT  # the turn has gone on since
    assert rows(database, "select next_seq from tree") == [(4,)]
    assert (await client.load(id)).prompts == prompts("q", "a", "b")


async def test_rounds_only_rise(client: Client) -> None:
    await client.enqueue()
    taken = await client.take()
    await client.commit(round_of(taken, 2, [], "q", "a", input_count=1))

    assert await refused(client.commit(round_of(taken, 1, [], "x", "y"))) == CONFLICT
    assert await refused(client.commit(round_of(taken, 2, spans((1, 3)), "z"))) == CONFLICT
    await client.commit(round_of(taken, 2, spans((1, 3)), status=CANCELLED))
    assert await refused(client.commit(round_of(taken, 3, spans((1, 3)), status=COMPLETED))) == CONFLICT


async def test_a_background_response_is_saved_by_its_holder_only(client: Client) -> None:
    await client.enqueue()
    waiting = pb.TakeTurnReply(owner=OWNER, response_id=await client.enqueue(owner=OWNER))
    taken = await client.take()

    assert await refused(client.commit(round_of(taken, 1, [], "q", "a", must_hold=False))) == CONFLICT
    assert await refused(client.commit(round_of(waiting, 1, [], "q", "a"))) == LEASE_LOST


async def test_a_background_turn_may_start_a_tree_with_a_copy_of_its_base(client: Client) -> None:
    first = root("q0", "a0")
    await client.commit(first)
    id = await client.enqueue(parent_response_id=first.response_id)
    taken = await client.take()
    base = (await client.load(first.response_id)).head.checkpoint

    saved = await client.commit(round_of(taken, 1, base, "q", "a", base_response_id=first.response_id))
    await client.commit(round_of(taken, 2, saved.checkpoint, "b", status=COMPLETED))

    assert (await client.load(id)).prompts == prompts("q0", "a0", "q", "a", "b")
    assert len((await client.page(id))[0]) == 3


async def test_a_background_response_expires_after_its_end_only(open_client: Open, database: str) -> None:
    async with open_client(retention_seconds=3600) as client:
        done, dropped = await client.enqueue(), await client.enqueue()
        taken = await client.take()
        await client.commit(round_of(taken, 1, [], "q", "a"))
        assert rows(database, "select count(*) from response where expires_at is not null") == [(0,)]

        await client.commit(round_of(taken, 2, spans((1, 3)), "b", status=COMPLETED))
        await client.cancel(dropped)

        assert {id for (id,) in rows(database, "select response_id from response where expires_at > now()")} == {done, dropped}


async def test_a_deleted_turn_is_lost_to_its_holder(client: Client, database: str) -> None:
    id = await client.enqueue()
    taken = await client.take()
    await client.log(taken, "a")

    await client.delete(id)

    assert await refused(client.keep(taken)) == LEASE_LOST
    assert await refused(client.commit(round_of(taken, 1, [], "q", "a"))) == LEASE_LOST
    assert await refused(client.log(taken, "b", first=1)) == LEASE_LOST
    assert await refused(client.watch(id)) == NO_RESPONSE
    assert rows(database, "select (select count(*) from work), (select count(*) from lease)") == [(0, 0)]


# Conversations


async def test_a_background_turn_has_its_conversation_to_itself_and_is_appended_at_its_end(client: Client) -> None:
    conversation = await client.conversation("hello")
    block = new_block(tree_key_of(conversation))
    id = await client.enqueue(response_id=block.id("resp"), conversation_id=conversation)
    taken = await client.take()
    base = (await client.load_conversation(conversation)).head.checkpoint
    assert await refused(client.lease(conversation)) == LOCKED
    assert not await client.keep(taken)

    saved = await client.commit(round_of(taken, 1, base, "q", "a", conversation_id=conversation))
    assert (await client.load_conversation(conversation)).prompts == prompts("hello")
    end = round_of(
        taken, 2, saved.checkpoint, "b", conversation_id=conversation, status=COMPLETED, carried=b"c", head_removed=spans((1, 2))
    )
    await client.commit(end)

    loaded = await client.load_conversation(conversation)
    assert (loaded.prompts, loaded.head.carried) == (prompts("q", "a", "b"), b"c")
    assert (await client.load(id)).prompts == prompts("hello", "q", "a", "b")
    assert len((await client.listed(conversation))[0]) == 4
    assert await client.lease(conversation) > taken.fencing_token


async def test_a_deleted_turn_gives_its_conversation_back_and_is_not_appended(client: Client) -> None:
    conversation = await client.conversation("hello")
    id = await client.enqueue(response_id=new_block(tree_key_of(conversation)).id("resp"), conversation_id=conversation)
    taken = await client.take()
    base = (await client.load_conversation(conversation)).head.checkpoint
    saved = await client.commit(round_of(taken, 1, base, "q", "a", conversation_id=conversation))

    await client.delete(id)

    end = round_of(taken, 2, saved.checkpoint, "b", conversation_id=conversation, status=COMPLETED)
    assert await refused(client.commit(end)) == LEASE_LOST
    assert await client.lease(conversation) > taken.fencing_token
    assert len((await client.listed(conversation))[0]) == 1


async def test_a_background_turn_waits_for_the_turn_that_has_its_conversation(client: Client, database: str) -> None:
    conversation = await client.conversation("hello")
    token = await client.lease(conversation)
    block = new_block(tree_key_of(conversation))
    waiting = await client.enqueue(response_id=block.id("resp"), conversation_id=conversation)
    other = await client.enqueue()
    assert (await client.take()).response_id == other
    assert not (await client.take()).taken

    turn = in_conversation(conversation, (await client.load_conversation(conversation)).head, "q", "a", fencing_token=token)
    await client.commit(turn)

    taken = await client.take()
    assert taken.response_id == waiting
    await client.call("ReturnTurn", response_id=waiting, fencing_token=taken.fencing_token)
    await client.lease(conversation, "somebody else")


async def test_nobody_holds_a_foreign_conversation_by_queueing_for_it(client: Client) -> None:
    conversation = await client.conversation("hello")
    await client.enqueue(owner="eve", conversation_id=conversation)

    assert (await client.take()).taken

    await client.lease(conversation)


# Cancelling


async def test_a_waiting_turn_is_cancelled_at_once(client: Client) -> None:
    id = await client.enqueue()

    responses = [await client.cancel(id) for _ in range(2)]

    body = b'{"object":"response","status":"cancelled","n":1.50,"completed_at":null}'
    assert responses == [pb.GetResponseReply(body=body, status=CANCELLED)] * 2
    assert await client.get(id) == responses[0]
    assert not (await client.take()).taken
    assert await client.watch(id) == []


async def test_a_running_turn_is_asked_to_end(client: Client) -> None:
    id = await client.enqueue()
    taken = await client.take()
    saved = await client.commit(round_of(taken, 1, [], "q", "a"))

    assert (await client.cancel(id)).status == IN_PROGRESS
    assert await client.keep(taken)
    await client.commit(round_of(taken, 2, saved.checkpoint, "half", status=CANCELLED))

    response = await client.cancel(id)
    assert (response.status, len(response.output)) == (CANCELLED, 2)


async def test_a_turn_that_was_to_end_when_its_holder_died_is_cancelled(client: Client, database: str) -> None:
    asked, died = await client.enqueue(), await client.enqueue()
    first, _ = await client.take(), await client.take()
    await client.commit(round_of(first, 1, [], "q", "a"))
    await client.cancel(asked)
    run_out(database)

    assert (await client.cancel(died)).status == CANCELLED
    assert not (await client.take()).taken

    response = await client.get(asked)
    assert (response.status, len(response.output)) == (CANCELLED, 1)


async def test_a_turn_that_has_ended_is_given_as_it_is__b125(client: Client) -> None:
    id = await client.enqueue()
    taken = await client.take()
    await client.commit(round_of(taken, 1, [], "q", "a", status=COMPLETED))

    assert await client.cancel(id) == await client.get(id)
    assert (await client.cancel(id)).status == COMPLETED


async def test_a_foreground_turn_is_not_cancelled__b125(client: Client) -> None:
    turn = root("q", "a")
    await client.commit(turn)

    assert await refused(client.cancel(turn.response_id)) == (grpc.StatusCode.FAILED_PRECONDITION, "not_background", None)


async def test_the_first_ending_counts_for_ever__b125(open_client: Open, database: str) -> None:
    chance = random.Random(3)
    async with open_client(queue_limit=1000, commit_connections=8) as client:

        async def race(taken: pb.TakeTurnReply) -> None:
            end = round_of(taken, 1, [], "q", "a", status=COMPLETED)
            calls = [client.commit(end), client.cancel(taken.response_id), client.cancel(taken.response_id)]
            chance.shuffle(calls)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            shown = {outcome.status for outcome in outcomes if isinstance(outcome, pb.GetResponseReply)}
            stored = (await client.get(taken.response_id)).status
            assert shown <= {stored, IN_PROGRESS}
            if stored == CANCELLED:
                assert await refused(client.commit(end)) == CONFLICT
            await client.cancel(taken.response_id)
            assert (await client.get(taken.response_id)).status == stored

        for _ in range(25):
            for _ in range(8):
                await client.enqueue()
            turns = [await client.take() for _ in range(8)]
            for taken in turns:  # some run, some were given back, and the leases of some have run out
                if chance.random() < 0.3:
                    await client.call("ReturnTurn", response_id=taken.response_id, fencing_token=taken.fencing_token)
                elif chance.random() < 0.5:
                    change(database, f"update lease set expires_at = now() where subject = '{taken.response_id}'")
            await asyncio.gather(*map(race, turns))

        assert {status for (status,) in rows(database, "select distinct status from response")} == {"completed", "cancelled"}
        assert rows(database, "select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


# Many processes, and those that die


async def test_each_turn_ends_once_though_connections_and_holders_die(open_client: Open, database: str) -> None:
    async with open_client() as one, open_client() as two:
        ids = {await one.enqueue() for _ in range(24)}

        async def work(client: Client, name: str) -> None:
            while rows(database, "select 1 from work limit 1"):
                with suppress(RemoteError):  # what was lost with a connection comes again
                    taken = await client.take(name)
                    if taken.taken:
                        await client.commit(round_of(taken, 1, [], "q", "a", status=COMPLETED))

        async def harm() -> None:
            while rows(database, "select 1 from work limit 1"):
                terminate_all(database)
                run_out(database)
                await asyncio.sleep(0.2)

        async with asyncio.timeout(50):
            await asyncio.gather(work(one, "one"), work(two, "two"), harm())

        ended = rows(database, "select response_id, status from response")
        assert {id for id, _ in ended} == ids
        assert {status for _, status in ended} <= {"completed", "failed"}
        completed = [id for id, status in ended if status == "completed"]
        assert rows(database, "select count(*) from item") == [(2 * len(completed),)]
        assert rows(database, "select count(*) from lease") == [(0,)]
