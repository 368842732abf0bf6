"""History behind pgbouncer in transaction mode: each statement may meet another server connection."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from history_svc.migrations import migrate
from history_svc.settings import HistorySettings
from history_svc.stores import open_stores
from history_svc.sweep import sweep
from tests.history_svc.conftest import Open
from tests.history_svc.database import rows, terminate_all
from tests.history_svc.turns import events, prompts, root, round_of, said
from tests.postgres import not_as_root
from turnkeep.common.v1 import common_pb2 as common

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)")

CONFIG = """
[databases]
* = host={sockets} user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 100
logfile = {directory}/log
pidfile = {directory}/pid
"""


@pytest.fixture
async def pooled(database: str) -> AsyncIterator[str]:
    """The DSN of the test's database through a pooler with three server connections."""
    prefix = not_as_root()
    if prefix is None:
        pytest.skip("pgbouncer refuses to run as root, and there are no user namespaces here")
    found = conninfo_to_dict(database)
    directory = Path(tempfile.mkdtemp(prefix="tkpb-"))
    (directory / "ini").write_text(CONFIG.format(sockets=found["host"], directory=directory))
    pooler = await asyncio.create_subprocess_exec(*prefix, str(PGBOUNCER), "-q", str(directory / "ini"), stderr=subprocess.DEVNULL)
    try:
        dsn = f"postgresql://postgres@:6432/{found['dbname']}?host={quote(str(directory), safe='')}"
        await _until_ready(dsn)
        yield dsn
    finally:
        pooler.terminate()
        await pooler.wait()
        shutil.rmtree(directory)


async def _until_ready(dsn: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                psycopg.connect(dsn).close()
                return
            except psycopg.OperationalError:
                await asyncio.sleep(0.02)


async def test_turns_go_through_a_pooler_that_gives_each_statement_another_session(open_client: Open, pooled: str, database: str) -> None:
    async with open_client(database_url=pooled, listen_url=database, migrate_at_start=True) as client:

        async def chain(name: str) -> str:
            turn = root(f"{name} 0")
            await client.commit(turn)
            for n in range(1, 8):
                turn = await client.continued(turn.response_id, f"{name} {n}")
            return turn.response_id

        tips = await asyncio.gather(*(chain(f"chain {n}") for n in range(12)))

        for n, tip in enumerate(tips):
            assert (await client.load(tip)).prompts == prompts(*(f"chain {n} {m}" for m in range(8)))
            await client.get(tip)
            await client.page(tip)
            await client.delete(tip)
        assert rows(database, "select count(*) from response") == [(12 * 7,)]


async def test_sessions_that_end_behind_a_pooler_are_replaced__b143(open_client: Open, pooled: str, database: str) -> None:
    async with open_client(database_url=pooled) as client:
        turn = root("turn 0")
        await client.commit(turn)
        for n in range(1, 5):
            assert terminate_all(database) >= 1
            turn = await client.continued(turn.response_id, f"turn {n}")
        assert (await client.load(turn.response_id)).prompts == prompts(*(f"turn {n}" for n in range(5)))


async def test_a_sweep_goes_through_a_pooler(open_client: Open, pooled: str, settings: HistorySettings, database: str) -> None:
    through = msgspec.structs.replace(settings, database_url=pooled, longest_turn_seconds=0.0)
    async with open_client(database_url=pooled) as client, open_stores(through) as stores:
        turn = root("q", "a")
        await client.commit(turn)
        await client.delete(turn.response_id)

        await sweep(stores)

        assert rows(database, "select count(*) from item") == [(0,)]


async def test_a_schema_can_be_migrated_through_a_pooler(pooled: str) -> None:
    assert await migrate(pooled) == []


async def test_conversations_and_background_turns_go_through_a_pooler(open_client: Open, pooled: str, database: str) -> None:
    async with open_client(database_url=pooled, listen_url=database) as client:
        id = await client.conversation("hello")
        await asyncio.gather(
            *(client.call("AddConversationItems", conversation_id=id, items=[said(f"w{n}", f"msg_{n}")]) for n in range(6))
        )
        await client.spoken(id, "q", "a")
        await client.call("DeleteConversationItem", conversation_id=id, item_id="msg_3")
        assert (await client.load_conversation(id)).head.item_count == 8

        ids = await asyncio.gather(*(client.enqueue() for _ in range(12)))
        assert (await client.cancel(ids[0])).status == common.RESPONSE_STATUS_CANCELLED
        turns = await asyncio.gather(*(client.take() for _ in range(12)))
        assert sorted(taken.response_id for taken in turns if taken.taken) == sorted(ids[1:])
        for taken in turns:
            if taken.taken:
                await client.keep(taken)
                await client.commit(round_of(taken, 1, [], "q", "a", status=common.RESPONSE_STATUS_COMPLETED))


@pytest.mark.parametrize("direct", [True, False])
async def test_viewers_behind_a_pooler_see_all_events(open_client: Open, pooled: str, database: str, direct: bool) -> None:
    urls = {"database_url": pooled, "listen_url": database if direct else ""}  # without a direct way nothing is heard
    async with open_client(**urls) as writing, open_client(**urls) as viewing:
        id = await writing.enqueue()
        taken = await writing.take()
        viewer = asyncio.create_task(viewing.watch(id))
        for n in range(10):
            await writing.log(taken, f"event {n}", first=n)
        await writing.log(taken, "end", first=10, ended=True)

        async with asyncio.timeout(30):
            assert await viewer == events(*(f"event {n}" for n in range(10)), "end")
