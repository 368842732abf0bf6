"""How Postgres runs the statements: index range scans however many ranges there are, and one statement to read, one to write."""

from collections.abc import Iterator

import psycopg
import pytest

from history_svc.statements import STATEMENTS
from svckit.ids import IdBlock, new_block, new_tree_key, tree_key_of
from tests.history_svc.conftest import Open
from tests.history_svc.database import change, rows
from tests.history_svc.turns import OWNER, Client, root, said

ITEMS = 10_000
RAN = """
select query, calls from pg_stat_statements s join pg_database d on d.oid = s.dbid
where datname = current_database() and query not like '%pg_stat_statements%'
"""


@pytest.fixture
async def tree(open_client: Open, database: str) -> IdBlock:
    """A tree of 10,000 items with a response of 1, of 100 and of 1,000 ranges, and tables large enough to be worth an index."""
    async with open_client() as client:
        block = new_block(new_tree_key())
        turn = root(items=[said(f"word {n}", f"msg_{n}") for n in range(ITEMS)], response_id=block.id("resp", 1))
        await client.commit(turn)
        for count in (100, 1000):
            step = ITEMS // count
            base = [(n * step + 1, n * step + 1 + step // 2) for n in range(count)]
            branch = root("x", response_id=block.id("resp", count), base=[{"first": first, "end": end} for first, end in base])
            await client.commit(branch)
    change(database, "analyze")
    return block


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("ranges", [1, 100, 1000])
def test_a_context_is_read_by_index_ranges_only(tree: IdBlock, database: str, ranges: int, mode: str) -> None:
    values = {
        "tree_key": tree.tree_key,
        "owner": OWNER,
        "response_id": tree.id("resp", ranges),
        "conversation_id": "",
        "limit": 1 << 30,
        "large": 1 << 20,
    }

    plan = explained(database, STATEMENTS["load_context"], values, mode)

    on_items = [node for node in nodes(plan) if node.get("Relation Name") == "item"]
    assert [(node["Node Type"], node["Index Name"]) for node in on_items] == [("Index Scan", "item_pkey")]
    assert "seq" in on_items[0]["Index Cond"]
    assert on_items[0].get("Rows Removed by Filter", 0) == 0
    assert not [node for node in nodes(plan) if "Join Filter" in node]
    assert not [node for node in nodes(plan) if node["Node Type"] == "Sort" and node["Actual Rows"] > 200]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in on_items) == pytest.approx(
        ITEMS if ranges == 1 else ITEMS / 2 + 1, rel=0.1
    )


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_items_are_shown_by_index_ranges_only(tree: IdBlock, database: str, mode: str) -> None:
    values = {"tree_key": tree.tree_key, "owner": OWNER, "firsts": [5, 900], "ends": [10, 905]}

    plan = explained(database, STATEMENTS["items"], values, mode)

    assert [node["Index Name"] for node in nodes(plan) if node.get("Relation Name") == "item"] == ["item_pkey"]
    assert not [node for node in nodes(plan) if "Join Filter" in node]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_items_are_found_by_the_index_of_their_ids(tree: IdBlock, database: str, mode: str) -> None:
    wanted = {"tree_keys": [tree.tree_key] * 3, "item_ids": ["msg_1", "msg_500", "msg_none"], "limit": 1 << 30}

    plans = [
        explained(database, STATEMENTS["find_items"], {"owner": OWNER, **wanted}, mode),
        explained(database, STATEMENTS["item_numbers"], {"owner": OWNER, "tree_key": tree.tree_key, "item_id": "msg_7"}, mode),
    ]

    for plan in plans:
        assert [node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "item"] == ["Index Scan"]
        assert [node["Index Name"] for node in nodes(plan) if node.get("Relation Name") == "item"] == ["item_by_id"]


@pytest.fixture
async def busy(open_client: Open, database: str) -> str:
    """A response with a log of 5,000 batches among 2,000 turns that wait, of which the oldest 50 run; gives its id."""
    async with open_client(queue_limit=5000) as client:
        id = await client.enqueue()
        taken = await client.take()
        await client.log(taken, "first")
    change(
        database,
        """
        insert into event_batch
        select tree_key, response_id, n, n, owner, types, events, bytes from event_batch, generate_series(1, 5000) as n
        """,
        """
        insert into work (response_id, tree_key, owner, conversation_id, request)
        select 'resp_' || n, n, 'owner ' || n % 20, '', '' from generate_series(1, 2000) as n
        """,
        "insert into lease select 'resp_' || n, 'holder', 1, now() + interval '1 hour' from generate_series(1, 50) as n",
        "analyze",
    )
    return id


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("after", [-1, 3000, 4999, 5000])
def test_events_are_read_from_their_number_on(busy: str, database: str, after: int, mode: str) -> None:
    values = {"tree_key": tree_key_of(busy), "owner": OWNER, "response_id": busy, "after": after}
    values |= {"keep_seconds": 60, "last_event_seconds": 5, "limit": 1 << 20}

    plan = explained(database, STATEMENTS["events_behind"], values, mode)

    on_events = [node for node in nodes(plan) if node.get("Relation Name") == "event_batch"]
    assert {node["Index Name"] for node in on_events} == {"event_batch_pkey"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in on_events) <= 18


def test_the_next_turn_is_found_by_its_age(busy: str, database: str) -> None:
    search = body_of_function(database, "take_turn", "select w.* into found_work", "limit 1").replace("into found_work", "")

    plan = explained(database, search, {}, "force_custom_plan")

    on_work = [node for node in nodes(plan) if node.get("Relation Name") == "work"]
    assert [node.get("Index Name") for node in on_work] == ["work_by_age"]
    assert on_work[0]["Actual Rows"] <= 60
    assert not [node for node in nodes(plan) if node["Node Type"] == "Sort"]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_conversation_is_read_by_its_key(tree: IdBlock, database: str, mode: str) -> None:
    conversation = tree.id("conv")
    change(database, f"insert into conversation select {tree.tree_key}, '{conversation}', '{OWNER}', checkpoint from response limit 1")
    values = {"tree_key": tree.tree_key, "owner": OWNER, "response_id": "", "conversation_id": conversation}

    plan = explained(database, STATEMENTS["load_context"], {**values, "limit": 1 << 30, "large": 1 << 20}, mode)

    on_items = [node for node in nodes(plan) if node.get("Relation Name") == "item"]
    assert [(node["Node Type"], node["Index Name"]) for node in on_items] == [("Index Scan", "item_pkey")]
    assert not [node for node in nodes(plan) if "Join Filter" in node]


def body_of_function(database: str, name: str, start: str, end: str) -> str:
    """A part of a function of ours."""
    text = rows(database, "select prosrc from pg_proc where proname = %s", name)[0][0]
    return text[text.index(start) : text.index(end) + len(end)]


def explained(database: str, statement: str, values: dict[str, object], mode: str) -> dict[str, object]:
    """The plan of a statement as the database makes it, prepared so that a generic plan is possible."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"set plan_cache_mode = {mode}")
        cursor = connection.execute("explain (analyze, format json) " + statement, values, prepare=True)
        return cursor.fetchone()[0][0]["Plan"]


def nodes(plan: dict[str, object]) -> Iterator[dict[str, object]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def test_a_continued_turn_is_one_read_and_one_write(open_client: Open, database: str) -> None:
    async with open_client() as client:
        parent = root(*(f"word {n}" for n in range(5_000)))
        await client.commit(parent)
        await client.continued(parent.response_id, "warm", "up")
        change(database, "create extension pg_stat_statements")
        change(database, "select pg_stat_statements_reset()")

        for _ in range(5):
            parent = await client.continued(parent.response_id, "q", "a")

        ran = rows(database, RAN)
        assert [calls for _, calls in ran] == [5, 5]
        assert [any(source in query for query, _ in ran) for source in ("from response r", "from commit_turn(")] == [True, True]


async def test_a_turn_of_a_conversation_is_one_read_and_two_writes(open_client: Open, database: str) -> None:
    async with open_client() as client:
        id = await client.conversation("hello")
        await client.spoken(id, "warm", "up")
        change(database, "create extension pg_stat_statements")
        change(database, "select pg_stat_statements_reset()")

        for _ in range(5):
            await client.spoken(id, "q", "a")

        ran = dict(rows(database, RAN))
        assert sorted(ran.values()) == [5, 5, 5]  # the commit gives the lease back


async def test_a_turn_takes_the_same_room_at_any_depth__b147(open_client: Open, database: str) -> None:
    async with open_client() as client:
        parent = root("q" * 100, "a" * 100)
        await client.commit(parent)
        for _ in range(200):
            parent = await client.continued(parent.response_id, "q" * 100, "a" * 100)

        sizes = rows(
            database,
            """
            select pg_column_size(checkpoint), pg_column_size(input), pg_column_size(output), pg_column_size(r.*)
            from response r order by upper(checkpoint[1])
            """,
        )
        assert len(set(sizes[1:])) == 1
        assert rows(database, "select count(*) from item") == [(402,)]


async def test_branches_that_grow_side_by_side_take_a_range_for_each_turn__b147(client: Client, database: str) -> None:
    first = root("q", "a")
    await client.commit(first)
    tips = [first.response_id] * 4
    for n in range(20):
        for branch, tip in enumerate(tips):
            tips[branch] = (await client.continued(tip, f"branch {branch} turn {n}")).response_id

    for tip in tips:
        head = (await client.load(tip)).head
        assert len(head.checkpoint) == pytest.approx(21, abs=1)
    largest = rows(database, "select max(pg_column_size(checkpoint)) from response")[0][0]
    assert largest < 21 * 24
