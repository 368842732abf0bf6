"""Event logs: what viewers see, in which process they may be, and when they are done."""

import asyncio
from contextlib import aclosing

import grpc
import pytest

from history_svc.bell import Bell
from history_svc.event_log import LAST_EVENT_SECONDS, PART_BYTES
from history_svc.pools import Pool, open_pools
from history_svc.settings import HistorySettings
from history_svc.stores import open_stores
from history_svc.sweep import sweep
from tests.history_svc.conftest import Open
from tests.history_svc.database import change, rows, terminate_all
from tests.history_svc.refusals import LEASE_LOST, refused
from tests.history_svc.turns import OWNER, Client, events, root, round_of
from turnkeep.common.v1 import common_pb2 as common
from turnkeep.history.v1 import history_pb2 as pb

COMPLETED = common.RESPONSE_STATUS_COMPLETED
GONE = (grpc.StatusCode.FAILED_PRECONDITION, "events_gone", None)


async def test_a_viewer_sees_every_event_from_where_it_left(client: Client) -> None:
    id = await client.enqueue()
    taken = await client.take()
    await client.log(taken, "a", "b", "c")
    await client.log(taken, "d", first=3)
    await client.log(taken, "e", "f", first=4, ended=True)
    all_events = events("a", "b", "c", "d", "e", "f")

    for after in range(-1, 6):
        assert await client.watch(id, after) == all_events[after + 1 :]
    assert await client.watch(id, 99) == []


async def test_appending_again_changes_nothing_whatever_the_batches(client: Client, database: str) -> None:
    id = await client.enqueue()
    taken = await client.take()
    for _ in range(2):
        await client.log(taken, "a", "b")
    await client.log(taken, "a", "b", "c")
    await client.log(taken, "b", first=1)
    await client.log(taken, "c", "d", first=2, ended=True)
    await client.log(taken, "after the end", first=4)

    assert await client.watch(id) == events("a", "b", "c", "d")
    assert rows(database, "select first_number, last_number from event_batch order by 1") == [(0, 1), (2, 2), (3, 3)]


async def test_events_are_appended_in_order_or_not_at_all(client: Client) -> None:
    await client.enqueue()
    taken = await client.take()
    fields = {"response_id": taken.response_id, "fencing_token": taken.fencing_token}
    invalid = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "events")

    for odd in ([*events("a"), *events("c", first=2)], events("a", first=-1)):
        assert await refused(client.call("AppendEvents", events=odd, **fields)) == invalid


async def test_who_has_ended_a_turn_may_append_its_last_events(client: Client) -> None:
    id = await client.enqueue()
    taken = await client.take()
    await client.log(taken, "a")
    await client.commit(round_of(taken, 1, [], "q", "a", status=COMPLETED))

    await client.log(taken, "done", first=1, ended=True)

    assert await client.watch(id) == events("a", "done")
    taken.fencing_token += 1
    assert await refused(client.log(taken, "x", first=2)) == LEASE_LOST


async def test_a_log_may_end_without_a_last_event(client: Client) -> None:
    id = await client.enqueue()
    taken = await client.take()
    await client.log(taken, "a")
    await client.log(taken, first=0, ended=True)

    assert await client.watch(id) == events("a")


async def test_a_turn_that_ended_long_ago_has_no_further_event(client: Client, database: str) -> None:
    id = await client.enqueue()
    taken = await client.take()
    await client.log(taken, "a")
    await client.commit(round_of(taken, 1, [], "q", "a", status=COMPLETED))
    change(database, f"update event_log set ended_at = now() - make_interval(secs => {LAST_EVENT_SECONDS})")

    assert await client.watch(id) == events("a")
    for after, told in ((-1, [0]), (0, [0]), (1, [])):  # whoever has been told of the end comes back behind it
        request = pb.WatchEventsRequest(owner=OWNER, response_id=id, starting_after=after)
        replies = [reply async for reply in client.stub.WatchEvents(request)]
        assert [reply.lost_behind for reply in replies if reply.HasField("lost_behind")] == told


async def test_what_is_logged_so_far_is_given_without_waiting(client: Client) -> None:
    id = await client.enqueue()
    assert await client.watch(id, only_logged=True) == []
    taken = await client.take()
    for n in range(40):
        await client.log(taken, f"event {n}", first=n)

    assert await client.watch(id, 1, only_logged=True) == events(*(f"event {n}" for n in range(40)))[2:]


async def test_foreground_turns_have_no_events(client: Client) -> None:
    turn = root("q", "a")
    await client.commit(turn)

    assert await refused(client.watch(turn.response_id)) == GONE


async def test_a_viewer_follows_a_turn_as_it_is_written(client: Client) -> None:
    id = await client.enqueue()
    taken = await client.take()
    call = client.stub.WatchEvents(pb.WatchEventsRequest(owner=OWNER, response_id=id, starting_after=-1))
    seen: list[pb.LoggedEvent] = []

    for n in range(5):
        await client.log(taken, f"event {n}", first=n)
        reply = await asyncio.wait_for(call.read(), 20)
        seen += reply.events
    await client.log(taken, "end", first=5, ended=True)
    seen += [event async for reply in _rest(call) for event in reply.events]

    assert seen == events(*(f"event {n}" for n in range(5)), "end")


async def _rest(call: grpc.aio.UnaryStreamCall) -> object:
    while (reply := await call.read()) is not grpc.aio.EOF and reply is not None:
        yield reply


async def test_many_viewers_in_two_processes_share_one_listening_connection(open_client: Open, database: str) -> None:
    async with open_client() as writing, open_client() as viewing:
        id = await writing.enqueue()
        taken = await writing.take()
        viewers = [asyncio.create_task(viewing.watch(id)) for _ in range(50)]
        await _until(database, "select 1 from pg_stat_activity where query ilike 'listen %' and datname = current_database()")
        for n in range(20):
            await writing.log(taken, f"event {n}", first=n)
        await writing.log(taken, "end", first=20, ended=True)

        async with asyncio.timeout(30):
            seen = await asyncio.gather(*viewers)

        assert seen == [events(*(f"event {n}" for n in range(20)), "end")] * 50
        listening = "select count(*) from pg_stat_activity where query ilike 'listen %' and datname = current_database()"
        assert rows(database, listening) == [(1,)]


async def test_more_viewers_than_may_wait_for_connections_wake_at_once(open_client: Open) -> None:
    async with open_client(read_connections=2, pool_queue=1) as client:
        id = await client.enqueue()
        taken = await client.take()
        viewers = [asyncio.create_task(client.watch(id)) for _ in range(100)]
        for n in range(5):
            await client.log(taken, f"event {n}", first=n)
        await client.log(taken, "end", first=5, ended=True)

        async with asyncio.timeout(30):
            assert await asyncio.gather(*viewers) == [events(*(f"event {n}" for n in range(5)), "end")] * 100


async def test_viewers_outlive_the_connections_of_their_process(open_client: Open, database: str) -> None:
    async with open_client() as writing, open_client() as viewing:
        id = await writing.enqueue()
        taken = await writing.take()
        view = aiter(viewing.stub.WatchEvents(pb.WatchEventsRequest(owner=OWNER, response_id=id, starting_after=-1)))
        for n in range(3):
            await writing.log(taken, f"event {n}", first=n, ended=n == 2)
            async with asyncio.timeout(30):
                assert list((await anext(view)).events) == events(f"event {n}", first=n)
            terminate_all(database)  # a read is repeated once, so each has to lose no more than one
        async with asyncio.timeout(30):
            assert await anext(view, None) is None


async def test_a_viewer_that_nothing_is_told_looks_for_itself(open_client: Open, tmp_path: object) -> None:
    async with open_client() as writing, open_client(listen_url="host=/nowhere dbname=none") as viewing:
        id = await writing.enqueue()
        taken = await writing.take()
        viewer = asyncio.create_task(viewing.watch(id))
        await writing.log(taken, "a", first=0)
        await writing.log(taken, "end", first=1, ended=True)

        async with asyncio.timeout(30):
            assert await viewer == events("a", "end")


async def test_a_cancellation_ends_the_view_in_another_process(open_client: Open) -> None:
    async with open_client() as one, open_client() as two:
        id = await one.enqueue()
        viewer = asyncio.create_task(two.watch(id))
        await one.cancel(id)

        async with asyncio.timeout(30):
            assert await viewer == []


async def test_a_view_that_stays_silent_too_long_is_given_up(open_client: Open) -> None:
    async with open_client(longest_turn_seconds=0.0) as client:
        id = await client.enqueue()

        assert await refused(client.watch(id)) == (grpc.StatusCode.DEADLINE_EXCEEDED, "watch_timeout", None)


async def test_a_long_log_is_read_in_parts(settings: HistorySettings, open_client: Open) -> None:
    async with open_client() as client, open_stores(settings) as stores:
        id = await client.enqueue()
        taken = await client.take()
        for n in range(40):
            await client.log(taken, "x" * 100_000, "y" * 100_000, first=2 * n)
        await client.log(taken, "end", first=80, ended=True)

        async with aclosing(stores.events.watch(OWNER, id, -1)) as parts:
            sizes = [sum(len(event.data) for event in part.events) async for part in parts]

        assert sum(sizes) > 8_000_000
        assert max(sizes) < PART_BYTES + 200_000


async def test_events_are_kept_for_a_while_and_then_swept_in_batches__b147(
    settings: HistorySettings, open_client: Open, database: str
) -> None:
    async with open_client(sweep_batch=3) as client, open_stores(settings) as stores:
        ids = [await client.enqueue() for _ in range(3)]
        for _ in ids:
            taken = await client.take()
            for n in range(8):
                await client.log(taken, f"event {n}", first=n)
            if taken.response_id != ids[2]:
                await client.commit(round_of(taken, 1, [], "q", "a", status=COMPLETED))
        change(database, f"update event_log set ended_at = now() - interval '3601 seconds' where response_id = '{ids[0]}'")

        assert await refused(client.watch(ids[0])) == GONE
        await sweep(stores)

        assert {id for (id,) in rows(database, "select distinct response_id from event_batch")} == set(ids[1:])
        assert {id for (id,) in rows(database, "select response_id from event_log")} == set(ids[1:])
        assert await refused(client.watch(ids[0])) == GONE
        assert (await client.get(ids[0])).status == COMPLETED


async def test_the_events_of_a_deleted_response_go_with_the_next_sweep(settings: HistorySettings, open_client: Open, database: str) -> None:
    async with open_client() as client, open_stores(settings) as stores:
        id = await client.enqueue()
        taken = await client.take()
        await client.log(taken, "a")
        await client.delete(id)

        await sweep(stores)

        assert rows(database, "select (select count(*) from event_log), (select count(*) from event_batch)") == [(0, 0)]


async def test_rings_travel_together_and_outside_the_commits(settings: HistorySettings, database: str) -> None:
    async with open_pools(settings) as pools:
        heard, sent = Bell(pools.background, database), Bell(pools.background, database)
        async with heard.opened(), sent.opened():
            with heard.heard("resp_1") as one, heard.heard("resp_2") as two:
                while not heard.hears:
                    await one.wait()
                one.forget()
                two.forget()

                for _ in range(100):
                    sent.ring("resp_1")
                    sent.ring("resp_2")

                async with asyncio.timeout(5):
                    await one.wait()
                    await two.wait()


async def test_a_pooler_or_a_dead_end_is_not_taken_for_hearing(settings: HistorySettings) -> None:
    async with Pool("bell", 1, settings).opened() as pool:
        bell = Bell(pool, "host=/nowhere dbname=none")
        async with bell.opened():
            with bell.heard("resp_1") as ear:
                await ear.wait(0.1)
                assert not bell.hears


async def _until(database: str, statement: str) -> None:
    """Returns once the statement gives a row."""
    async with asyncio.timeout(10):
        while not rows(database, statement):
            await asyncio.sleep(0.01)


# Idempotency keys


async def test_a_key_stands_for_the_response_of_its_first_request(client: Client) -> None:
    fields = {"key": "k", "request_hash": b"h", "lifetime_seconds": 60}

    first = await client.call("ClaimIdempotencyKey", response_id="resp_1", **fields)
    again = [await client.call("ClaimIdempotencyKey", response_id=id, **fields) for id in ("resp_1", "resp_2")]

    assert first == again[0] == pb.ClaimIdempotencyKeyReply(granted=True, response_id="resp_1")
    assert again[1] == pb.ClaimIdempotencyKeyReply(granted=False, response_id="resp_1")
    other = client.call("ClaimIdempotencyKey", response_id="resp_2", **{**fields, "request_hash": b"other"})
    assert await refused(other) == (grpc.StatusCode.INVALID_ARGUMENT, "idempotency_mismatch", None)
    of_eve = await client.call("ClaimIdempotencyKey", response_id="resp_3", owner="eve", **{**fields, "request_hash": b"other"})
    assert of_eve.granted


async def test_a_key_claimed_many_times_at_once_is_granted_once(client: Client) -> None:
    fields = {"key": "k", "request_hash": b"h", "lifetime_seconds": 60}

    replies = await asyncio.gather(*(client.call("ClaimIdempotencyKey", response_id=f"resp_{n}", **fields) for n in range(12)))

    assert sum(reply.granted for reply in replies) == 1
    assert len({reply.response_id for reply in replies}) == 1


async def test_a_key_is_free_again_when_its_time_is_over(open_client: Open, settings: HistorySettings, database: str) -> None:
    async with open_client() as client, open_stores(settings) as stores:
        for key in ("used again", "forgotten"):
            await client.call("ClaimIdempotencyKey", key=key, request_hash=b"h", response_id="resp_1", lifetime_seconds=60)
        change(database, "update idempotency set expires_at = now()")

        reply = await client.call("ClaimIdempotencyKey", key="used again", request_hash=b"i", response_id="resp_2", lifetime_seconds=60)
        await sweep(stores)

        assert reply.granted
        assert rows(database, "select key, response_id from idempotency") == [("used again", "resp_2")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"key": ""}, "key"), ({"key": "k" * 256}, "key"), ({"key": "a\0b"}, "key"), ({"lifetime_seconds": 0}, "lifetime_seconds")],
)
async def test_a_key_that_cannot_be_is_refused_by_name(client: Client, fields: dict[str, object], param: str) -> None:
    values = {"key": "k", "request_hash": b"h", "response_id": "resp_1", "lifetime_seconds": 60, **fields}

    assert await refused(client.call("ClaimIdempotencyKey", **values)) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", param)
