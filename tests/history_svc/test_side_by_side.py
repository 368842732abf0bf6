"""Commits that meet: numbers without gaps, one owner for a tree, locks taken in one order."""

import asyncio
import random

import grpc
import psycopg
import pytest

from svckit.errors import RemoteError
from svckit.ids import new_block, new_tree_key
from tests.history_svc.conftest import Open
from tests.history_svc.database import rows
from tests.history_svc.turns import OWNER, Client, continuation, prompts, root


async def test_commits_at_once_on_one_tree_give_out_numbers_without_gaps(open_client: Open, database: str) -> None:
    async with open_client(commit_connections=16) as client:
        first = root("q", "a")
        await client.commit(first)
        head = (await client.load(first.response_id)).head
        chance = random.Random(7)
        turns = [continuation(first.response_id, head, *(f"turn {n} item {m}" for m in range(chance.randint(1, 7)))) for n in range(160)]

        await asyncio.gather(*map(client.commit, turns))

        items = sum(len(turn.items) for turn in turns)
        assert rows(database, "select array_agg(seq order by seq) from item") == [(list(range(1, items + 3)),)]
        assert rows(database, "select next_seq from tree") == [(items + 3,)]
        for n, turn in enumerate(turns):
            own = (f"turn {n} item {m}" for m in range(len(turn.items)))
            assert (await client.load(turn.response_id)).prompts == prompts("q", "a", *own)


async def test_a_new_tree_gets_one_of_two_owners(open_client: Open, database: str) -> None:
    async with open_client() as client:
        for _ in range(10):
            block = new_block(new_tree_key())
            ada, eve = root("ada", response_id=block.id("resp")), root("eve", response_id=block.id("resp", 1), owner="eve")

            outcomes = await asyncio.gather(client.commit(ada), client.commit(eve), return_exceptions=True)

            refusals = [outcome for outcome in outcomes if isinstance(outcome, RemoteError)]
            assert [refusal.reason for refusal in refusals] == ["tree_not_found"]
            assert len(rows(database, "select owner from response where tree_key = %s", block.tree_key)) == 1


async def test_appends_to_one_conversation_all_arrive__b012(open_client: Open, database: str) -> None:
    async with open_client(commit_connections=16) as client:
        block = new_block(new_tree_key())
        conversation = block.id("conv")
        rows(database, "insert into tree values (%s, %s, 1) returning 1", block.tree_key, OWNER)
        rows(database, "insert into conversation values (%s, %s, %s) returning 1", block.tree_key, conversation, OWNER)
        turns = [root("q", "r", "a", response_id=block.id("resp", n), conversation_id=conversation) for n in range(1, 101)]

        await asyncio.gather(*map(client.commit, turns))

        assert rows(database, "select head::text, revision from conversation") == [('{"[1,301)"}', 100)]


async def test_a_commit_waits_for_one_in_flight_and_takes_its_numbers_if_that_fails(open_client: Open, database: str) -> None:
    async with open_client() as client:
        first = root("q", "a")
        await client.commit(first)
        head = (await client.load(first.response_id)).head
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("update tree set next_seq = next_seq + 5")
            waiting = asyncio.create_task(client.commit(continuation(first.response_id, head, "next")))
            await until_somebody_waits(database)
            await other.rollback()

        assert [(span.first, span.end) for span in (await waiting).checkpoint] == [(1, 4)]


async def test_a_take_over_in_flight_is_waited_for(open_client: Open, database: str) -> None:
    async with open_client() as client:
        turn = root("q", "a", must_hold=True, fencing_token=1)
        rows(database, "insert into lease values (%s, 'me', 1, now()) returning 1", turn.response_id)
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("update lease set token = 2, holder = 'other'")
            waiting = asyncio.create_task(client.commit(turn))
            await until_somebody_waits(database)
            await other.commit()

        with pytest.raises(RemoteError) as refusal:
            await waiting
        assert (refusal.value.status, refusal.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "lease_lost")


async def until_somebody_waits(database: str) -> None:
    """Returns once a statement waits for a lock."""
    async with asyncio.timeout(10):
        while rows(database, "select count(*) from pg_locks where not granted") == [(0,)]:
            await asyncio.sleep(0.01)


async def test_deletions_and_commits_at_once_never_lock_each_other_for_ever(open_client: Open, database: str) -> None:
    async with open_client(commit_connections=8) as client:
        first = root("q", "a")
        await client.commit(first)
        head = (await client.load(first.response_id)).head
        turns = [continuation(first.response_id, head, f"turn {n}") for n in range(40)]

        async def saved_and_deleted(client: Client, n: int) -> None:
            await asyncio.gather(client.commit(turns[n]), client.commit(turns[n]))
            await asyncio.gather(client.delete(turns[n].response_id), client.commit(turns[n]))

        await asyncio.gather(*(saved_and_deleted(client, n) for n in range(40)))

        assert rows(database, "select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]
