"""The schema: made once, whoever comes first, and never changed under a number that is known."""

import asyncio
import sys
from typing import LiteralString, cast

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from history_svc.migrations import MigrationChanged, migrate, migrations
from history_svc.statements import STATEMENTS
from tests.history_svc.database import change, rows

PLANNER_QUERY = """
select setconfig from pg_db_role_setting s join pg_database d on d.oid = setdatabase where datname = current_database()
"""
PLANNER = {"jit=off", "plan_cache_mode=force_custom_plan", "max_parallel_workers_per_gather=0"}
SCHEMA = """
select c.relname, c.relkind::text, pg_get_indexdef(c.oid),
       (select array_agg(attname || ' ' || format_type(atttypid, atttypmod) order by attnum)
        from pg_attribute where attrelid = c.oid and attnum > 0)
from pg_class c where relnamespace = 'public'::regnamespace order by 1
"""


async def test_a_database_is_migrated_once(empty_database: str) -> None:
    names = [migration.name for migration in migrations()]

    assert await migrate(empty_database) == names
    assert await migrate(empty_database) == []
    assert [name for (name,) in rows(empty_database, "select name from schema_migration order by number")] == names


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


async def test_twenty_processes_on_an_empty_database_all_succeed__b146(empty_database: str, database: str) -> None:
    code = f"import asyncio; from history_svc.migrations import migrate; print(len(asyncio.run(migrate({empty_database!r}))))"

    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        for _ in range(20)
    ]
    outcomes = [(await process.communicate(), process.returncode) for process in processes]

    assert [code for _, code in outcomes] == [0] * 20, outcomes
    assert sorted(int(out) for (out, _), _ in outcomes) == [0] * 19 + [len(migrations())]
    assert rows(empty_database, SCHEMA) == rows(database, SCHEMA)


async def test_a_migration_that_was_changed_is_refused(database: str) -> None:
    change(database, "update schema_migration set checksum = 'other' where number = 1")

    with pytest.raises(MigrationChanged, match=r"0001_history\.sql"):
        await migrate(database)


async def test_a_process_that_migrates_for_ever_does_not_keep_others_waiting(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("history_svc.migrations.LOCK_SECONDS", 0.1)
    with psycopg.connect(database) as other:
        other.execute(cast("LiteralString", STATEMENTS["lock_schema"]))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await migrate(database)
    assert await migrate(database) == []


async def test_a_database_that_is_ahead_is_left_alone__b146(database: str) -> None:
    change(database, "insert into schema_migration (number, name, checksum) values (9999, '9999_later.sql', 'x')")

    assert await migrate(database) == []


async def test_the_planner_is_set_for_the_database(database: str) -> None:
    ((settings,),) = rows(database, PLANNER_QUERY)

    assert set(settings) == PLANNER


async def test_a_role_that_may_not_alter_the_database_migrates_all_the_same(empty_database: str) -> None:
    change(
        empty_database,
        "create role lowly login",
        "grant create, usage on schema public to lowly",
    )
    lowly = make_conninfo(**{**conninfo_to_dict(empty_database), "user": "lowly"})
    try:
        assert len(await migrate(lowly)) == len(migrations())
        with psycopg.connect(lowly) as connection:
            assert connection.execute("select count(*) from tree").fetchone() == (0,)
    finally:
        change(empty_database, "drop owned by lowly", "drop role lowly")


def test_a_process_of_the_version_before_saves_turns_side_by_side_with_ours(database: str) -> None:
    none, turn = "'{}'", "'q', 1, 0, false, 'hash', '', '', '{}', '{}', 1"
    items = "'{msg_1,msg_2}', '{message,message}', '{\"\",\"\"}', '{q,a}', '{null,null}', '{1,1}', 1"

    statement = f"select outcome from commit_turn(1, 'ada', {turn}, {items}, 'completed', 'm', {none}, '', '', now(), now(), null)"

    assert rows(database, statement) == [("stored",)]
    assert rows(database, statement) == [("repeated",)]
    assert rows(database, "select output::text, own::text, background, unlisted from response") == [('{"[2,3)"}', "{}", False, False)]
