"""What is deleted, when, and what never is."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import psycopg
import pytest

from history_svc.settings import HistorySettings
from history_svc.stores import Stores, open_stores
from history_svc.sweep import keep_sweeping, sweep
from svckit.errors import RemoteError
from svckit.ids import new_block, tree_key_of
from tests.history_svc.conftest import Open
from tests.history_svc.database import change, rows
from tests.history_svc.turns import continuation, prompts, root, said, spans


@pytest.fixture
async def stores(settings: HistorySettings) -> AsyncIterator[Stores]:
    """Stores that are swept at once, three items at a time."""
    small = msgspec.structs.replace(settings, longest_turn_seconds=0.0, sweep_batch=3)
    async with open_stores(small) as opened:
        yield opened


def numbers(database: str) -> list[int]:
    """The numbers of all items that are there."""
    return [seq for (seq,) in rows(database, "select seq from item order by seq")]


async def test_a_sweep_deletes_what_only_the_deleted_response_named(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        first = root("q", "a")
        await client.commit(first)
        gone = await client.continued(first.response_id, *(f"gone {n}" for n in range(8)))
        kept = await client.continued(first.response_id, "kept")
        await client.delete(gone.response_id)
        assert numbers(database) == list(range(1, 12))

        await sweep(stores)

        assert numbers(database) == [1, 2, 11]
        assert (await client.load(kept.response_id)).prompts == prompts("q", "a", "kept")
        assert rows(database, "select count(*) from tree where dirty_at is not null") == [(0,)]


async def test_a_child_keeps_the_items_of_its_deleted_parent__b019(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        first = root("q", "a")
        await client.commit(first)
        child = await client.continued(first.response_id, "next")
        await client.delete(first.response_id)

        await sweep(stores)

        assert (await client.load(child.response_id)).prompts == prompts("q", "a", "next")
        await client.delete(child.response_id)
        await sweep(stores)
        assert (numbers(database), rows(database, "select count(*) from tree")) == ([], [(0,)])


async def test_a_tree_with_a_conversation_keeps_its_row_and_its_head(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        id = await client.conversation("hello")
        turn = await client.spoken(id, "q", "a")
        await client.delete(turn.response_id)

        await sweep(stores)

        assert (numbers(database), rows(database, "select next_seq from tree")) == ([1, 2, 3], [(4,)])
        assert (await client.load_conversation(id)).prompts == prompts("hello", "q", "a")


async def test_what_a_conversation_lists_is_kept_though_its_head_has_dropped_it(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        id = await client.conversation("q1", "a1")
        turn = await client.spoken(id, "summary", head_removed=spans((1, 3)), unlisted=True)
        change(database, "update response set expires_at = now()", "update tree set dirty_at = now()")

        await sweep(stores)

        assert numbers(database) == [1, 2, 3]
        assert (await client.load_conversation(id)).prompts == prompts("summary")
        assert not rows(database, "select 1 from response where response_id = %s", turn.response_id)


async def test_a_deleted_item_goes_once_no_response_names_it(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        id = await client.conversation("one", "two")
        turn = await client.spoken(id, "q", "a")
        for item in (await client.listed(id))[0][1:]:
            await client.call("DeleteConversationItem", conversation_id=id, item_id=item)

        await sweep(stores)
        assert numbers(database) == [1, 2, 3, 4]
        await client.delete(turn.response_id)
        await sweep(stores)

        assert numbers(database) == [4]
        assert (await client.load_conversation(id)).prompts == prompts("a")


async def test_a_deleted_conversation_leaves_what_its_responses_name(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        id = await client.conversation("hello")
        turn = await client.spoken(id, "q", "a")
        await client.call("AddConversationItems", conversation_id=id, items=[said("late", "msg_late")])
        await client.call("DeleteConversation", conversation_id=id)

        await sweep(stores)
        assert numbers(database) == [1, 2, 3]
        await client.delete(turn.response_id)
        await sweep(stores)

        assert rows(database, "select (select count(*) from item), (select count(*) from tree), (select count(*) from lease)") == [
            (0, 0, 0)
        ]


async def test_nothing_is_swept_while_a_turn_may_still_run_over_it(open_client: Open, settings: HistorySettings, database: str) -> None:
    async with open_client() as client, open_stores(settings) as patient:
        parent = root("q", "a")
        await client.commit(parent)
        head = (await client.load(parent.response_id)).head
        await client.delete(parent.response_id)

        await sweep(patient)
        child = continuation(parent.response_id, head, "late")
        await client.commit(child)

        assert (await client.load(child.response_id)).prompts == prompts("q", "a", "late")
        longest = settings.longest_turn_seconds
        change(database, f"update tree set dirty_at = dirty_at - make_interval(secs => {longest})")
        await sweep(patient)
        assert rows(database, "select dirty_at from tree") == [(None,)]
        assert (await client.load(child.response_id)).prompts == prompts("q", "a", "late")


async def test_a_sweep_passes_over_a_tree_that_is_being_committed_to(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        parent = root("q", "a")
        await client.commit(parent)
        head = (await client.load(parent.response_id)).head
        await client.delete(parent.response_id)
        child = continuation(parent.response_id, head, *(f"late {n}" for n in range(5)))
        change(
            database,
            "create function waits() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(1); return new; end $$",
            "create trigger waits before insert on response for each row execute function waits()",
        )
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("select pg_advisory_xact_lock(1)")
            saving = asyncio.create_task(client.commit(child))
            await until_somebody_waits(database)  # the commit has the tree's row
            assert not await stores.turns.sweep_tree()
        await saving

        await sweep(stores)

        assert (await client.load(child.response_id)).prompts == prompts("q", "a", *(f"late {n}" for n in range(5)))


async def until_somebody_waits(database: str) -> None:
    """Returns once a statement waits for a lock."""
    async with asyncio.timeout(10):
        while not rows(database, "select 1 from pg_locks where not granted"):
            await asyncio.sleep(0.01)


async def test_sweeps_and_turns_at_once_lose_nothing(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        first = root("q", "a")
        await client.commit(first)
        sweeping = asyncio.create_task(keep_sweeping(stores, 0.001))
        last = first
        for n in range(60):
            side = await client.continued(last.response_id, f"side {n}")
            last = await client.continued(last.response_id, f"turn {n}")
            await client.delete(side.response_id)
        sweeping.cancel()
        await asyncio.wait([sweeping])

        await sweep(stores)

        assert (await client.load(last.response_id)).prompts == prompts("q", "a", *(f"turn {n}" for n in range(60)))
        assert len(numbers(database)) == 62


async def test_a_response_is_kept_as_long_as_set_and_then_is_not_there__b147(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client(retention_seconds=3600) as client:
        old = [root("q", "a") for _ in range(7)]
        for turn in old:
            await client.commit(turn)
        change(database, "update response set expires_at = now() - interval '1 second'")
        young = root("young")
        await client.commit(young)

        for turn in old:
            with pytest.raises(RemoteError) as refusal:
                await client.get(turn.response_id)
            assert refusal.value.reason == "response_not_found"
            with pytest.raises(RemoteError) as refusal:
                await client.load(turn.response_id)
            assert refusal.value.reason == "previous_response_not_found"
        await sweep(stores)

        assert rows(database, "select count(*) from response") == [(1,)]
        assert (await client.load(young.response_id)).prompts == prompts("young")
        assert rows(database, "select count(*) from item") == [(1,)]


async def test_claims_go_with_their_tree(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        kept, dropped = root("q", "a"), root("never saved")
        for turn in (kept, dropped):
            await client.claim(new_block(tree_key_of(turn.response_id)).id("mcpr"), turn.response_id)
        await client.commit(kept)

        await sweep(stores)
        assert rows(database, "select response_id from claim") == [(kept.response_id,)]
        assert rows(database, "select count(*) from tree") == [(1,)]

        await client.delete(kept.response_id)
        await sweep(stores)
        assert rows(database, "select count(*) from claim") == [(0,)]


async def test_claims_of_a_round_go_once_their_turn_has_ended(open_client: Open, stores: Stores, database: str) -> None:
    async with open_client() as client:
        turn = root("q", "a")
        await client.commit(turn)
        block = new_block(tree_key_of(turn.response_id))
        await client.claim(block.id("mcpr"), turn.response_id)
        for number in range(7):
            await client.claim(block.id("call", number), f"{turn.response_id}/{number}")
        change(
            database,
            "insert into work (response_id, tree_key, owner, conversation_id, request)"
            " select response_id, tree_key, owner, '', '' from response",
        )

        await sweep(stores)
        assert rows(database, "select count(*) from claim") == [(8,)]

        change(database, "delete from work")
        await sweep(stores)
        assert rows(database, "select claim_id from claim") == [(block.id("mcpr"),)]


async def test_young_claims_of_a_round_are_kept(open_client: Open, settings: HistorySettings, database: str) -> None:
    async with open_client() as client, open_stores(settings) as stores:
        turn = root("q", "a")
        await client.commit(turn)
        await client.claim(new_block(tree_key_of(turn.response_id)).id("call"), f"{turn.response_id}/1")

        await sweep(stores)

        assert rows(database, "select count(*) from claim") == [(1,)]
