"""Connections that die, callers that leave, and a service that has no room."""

import asyncio
import random
from pathlib import Path

import grpc
import msgspec
import psycopg
import pytest

from history_svc.pools import Pool, open_pools
from history_svc.settings import HistorySettings
from svckit.errors import RemoteError
from tests.history_svc.conftest import Open
from tests.history_svc.database import change, rows, terminate_all
from tests.history_svc.turns import prompts, root
from tests.postgres import database_url
from turnkeep.history.v1 import history_pb2 as pb


async def test_the_call_after_all_connections_were_ended_works__b143(open_client: Open, database: str) -> None:
    async with open_client() as client:
        turn = root("turn 0")
        await client.commit(turn)
        await asyncio.gather(*(client.load(turn.response_id) for _ in range(6)))
        for n in range(1, 4):
            assert terminate_all(database) >= 2
            turn = await client.continued(turn.response_id, f"turn {n}")
            assert terminate_all(database) >= 2
            await client.get(turn.response_id)
            assert terminate_all(database) >= 2
            await client.delete((await client.continued(turn.response_id, "x")).response_id)
        assert (await client.load(turn.response_id)).prompts == prompts(*(f"turn {n}" for n in range(4)))


async def test_a_commit_whose_connection_is_lost_under_it_is_made_once__b132(open_client: Open, database: str) -> None:
    async with open_client() as client:
        turn = root("q", "a")
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("lock table item")
            waiting = asyncio.create_task(client.commit(turn))
            await _until(database, "select pg_terminate_backend(pid) from pg_locks where not granted")
            await other.rollback()

        await waiting
        assert rows(database, "select next_seq, (select count(*) from item) from tree") == [(3, 2)]


async def test_a_load_whose_connection_is_lost_under_it_is_read_on_another__b132(open_client: Open, database: str) -> None:
    async with open_client() as client:
        texts = ["x" * 20_000] * 60
        turn = root(*texts)
        await client.commit(turn)
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("lock table item")
            waiting = asyncio.create_task(client.load(turn.response_id))
            await _until(database, "select pg_terminate_backend(pid) from pg_locks where not granted")
            await other.rollback()

        assert (await waiting).prompts == prompts(*texts)


async def test_nothing_is_held_while_nothing_is_asked__b143(settings: HistorySettings) -> None:
    async with open_pools(settings) as pools:
        await pools.read.run(_one)
        assert (pools.read.lent, pools.commit.lent, pools.background.lent) == (0, 0, 0)


async def _one(connection: psycopg.AsyncConnection) -> object:
    return await (await connection.execute("select 1")).fetchone()


async def test_callers_that_leave_take_no_connection_with_them__b144(settings: HistorySettings) -> None:
    chance = random.Random(11)
    small = msgspec.structs.replace(settings, pool_wait_seconds=20)
    async with Pool("storm", 4, small).opened() as pool:

        async def slow(connection: psycopg.AsyncConnection) -> object:
            return await (await connection.execute("select pg_sleep(0.002)")).fetchone()

        async def leaves_early() -> None:
            call = asyncio.create_task(pool.run(slow))
            for _ in range(chance.randint(0, 12)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.003)))
            call.cancel()
            call.cancel()  # gRPC and a task group may both cancel
            await asyncio.wait([call])

        for _ in range(10):
            await asyncio.gather(*(leaves_early() for _ in range(40)))

        assert pool.lent == 0
        together = asyncio.Barrier(4)  # passes only when all connections are lent at once

        async def all_at_once(connection: psycopg.AsyncConnection) -> object:
            await together.wait()
            return await _one(connection)

        assert await asyncio.gather(*(pool.run(all_at_once) for _ in range(8))) == [(1,)] * 8


async def test_callers_of_the_service_that_leave_take_nothing_with_them__b144(open_client: Open) -> None:
    chance = random.Random(5)
    async with open_client(read_connections=2, commit_connections=2, load_budget_bytes=64 * 1024 * 1024) as client:
        turn = root(*["x" * 20_000] * 60)
        await client.commit(turn)

        async def leaves_early(n: int) -> None:
            request = pb.LoadContextRequest(owner=turn.owner, response_id=turn.response_id)
            call = client.stub.LoadContext(request) if n % 2 else client.stub.CommitTurn(turn)
            await asyncio.sleep(chance.choice((0, 0.001, 0.004, 0.01)))
            call.cancel()

        await asyncio.gather(*(leaves_early(n) for n in range(80)))

        await asyncio.gather(*(client.load(turn.response_id) for _ in range(10)), *(client.commit(turn) for _ in range(10)))


async def test_a_call_that_gets_no_connection_in_time_is_refused_as_overload(open_client: Open, database: str) -> None:
    async with open_client(commit_connections=1, pool_wait_seconds=0.2) as client:
        turn = root("q", "a")
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("lock table item")
            first = asyncio.create_task(client.commit(turn))
            await _until(database, "select 1 from pg_locks where not granted")
            with pytest.raises(RemoteError) as refusal:
                await client.commit(root("q", "a"))
            await other.rollback()

        assert (refusal.value.status, refusal.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "history_overloaded")
        await first
        assert (await client.load(turn.response_id)).prompts == prompts("q", "a")  # readers have connections of their own


async def test_a_queue_that_is_full_refuses_at_once(open_client: Open, database: str) -> None:
    async with open_client(commit_connections=1, pool_queue=1) as client:
        await client.commit(root("the connection is there"))
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("lock table item")
            calls = [asyncio.create_task(client.commit(root("q", "a"))) for _ in range(6)]
            refused, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert {call.exception().reason for call in refused} == {"history_overloaded"}
            await other.rollback()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(outcome, pb.CommitTurnReply) for outcome in outcomes) >= 2


async def test_a_statement_that_does_not_end_is_given_up(open_client: Open, database: str) -> None:
    async with open_client(statement_seconds=0.2) as client:
        turn = root("q", "a")
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("lock table item")
            with pytest.raises(RemoteError) as refusal:
                await client.commit(turn)
            await other.rollback()
            await client.commit(turn)
            await other.execute("lock table item")
            with pytest.raises(RemoteError) as unread:
                await client.load(turn.response_id)
            await other.rollback()

        for error in (refusal.value, unread.value):
            assert (error.status, error.reason) == (grpc.StatusCode.UNAVAILABLE, "database_unavailable")
        assert (await client.load(turn.response_id)).prompts == prompts("q", "a")


async def test_loads_past_the_memory_budget_are_refused_as_overload(open_client: Open) -> None:
    mebibyte = 1024 * 1024
    async with open_client(context_limit_bytes=6 * mebibyte, load_budget_bytes=6 * mebibyte, pool_wait_seconds=0.2) as client:
        turn = root(*["x" * 100_000] * 50)
        await client.commit(turn)
        slow = client.stub.LoadContext(pb.LoadContextRequest(owner=turn.owner, response_id=turn.response_id))
        await slow.read()

        with pytest.raises(RemoteError) as refusal:
            await client.load(turn.response_id)

        assert (refusal.value.status, refusal.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "history_overloaded")
        slow.cancel()
        assert (await client.load(turn.response_id)).head.item_count == 50


async def test_a_context_larger_than_the_limit_is_refused__b022(open_client: Open) -> None:
    async with open_client(context_limit_bytes=1_000_000) as client:
        fits = root(*["x" * 9_000] * 100)
        await client.commit(fits)
        too_large = await client.continued(fits.response_id, "x" * 200_000)

        assert (await client.load(fits.response_id)).head.item_count == 100
        with pytest.raises(RemoteError) as refusal:
            await client.load(too_large.response_id)

        assert (refusal.value.status, refusal.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "context_too_large")
        assert refusal.value.param == "previous_response_id"
        assert (await client.get(too_large.response_id)).output


async def test_a_full_tree_says_so_and_goes_on_in_another__b022(open_client: Open) -> None:
    async with open_client(tree_max_items=4) as client:
        first = root("q1", "a1")
        await client.commit(first)
        parent = await client.continued(first.response_id, "q2", "a2")
        assert not (await client.load(first.response_id)).head.parent_response_id
        head = (await client.load(parent.response_id)).head
        assert head.tree_full

        moved = root("q3", base=head.checkpoint, base_response_id=parent.response_id, parent_response_id=parent.response_id)
        await client.commit(moved)

        loaded = await client.load(moved.response_id)
        assert (loaded.prompts, loaded.head.parent_response_id) == (prompts("q1", "a1", "q2", "a2", "q3"), parent.response_id)


async def test_a_database_that_is_down_is_said_to_be_so(open_client: Open, tmp_path: Path) -> None:
    async with open_client(database_url=database_url(tmp_path, "nowhere"), pool_wait_seconds=0.2) as client:
        for call in (client.load(root().response_id), client.commit(root("q")), client.get(root().response_id)):
            with pytest.raises(RemoteError) as refusal:
                await call
            assert (refusal.value.status, refusal.value.reason) == (grpc.StatusCode.UNAVAILABLE, "database_unavailable")


async def test_a_database_that_comes_back_is_found_again__b143(open_client: Open, database: str, server: str) -> None:
    name = rows(database, "select current_database()")[0][0]
    async with open_client(pool_wait_seconds=0.5) as client:
        turn = root("q", "a")
        await client.commit(turn)
        change(server, f"alter database {name} allow_connections false")
        terminate_all(server, name)
        for _ in range(3):
            with pytest.raises(RemoteError) as refusal:
                await client.load(turn.response_id)
            assert refusal.value.reason == "database_unavailable"

        change(server, f"alter database {name} allow_connections true")

        assert (await client.load(turn.response_id)).prompts == prompts("q", "a")
        await client.continued(turn.response_id, "next")


async def _until(database: str, statement: str) -> None:
    """Returns once the statement gives a row."""
    async with asyncio.timeout(10):
        while not rows(database, statement):
            await asyncio.sleep(0.01)
