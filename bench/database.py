"""What the database knows of a run: sizes on disk, checkpoints, counted statements. Reads only; the rooms write."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

import psycopg

from svckit.ids import tree_key_of


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes on disk of the tables with their indexes, and bytes of write-ahead log ever written."""

    tables: int
    wal: int


async def sizes(dsn: str) -> Stored:
    """How large everything is now."""
    rows = await _rows(
        dsn,
        "select sum(pg_total_relation_size(name::regclass))::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint"
        " from unnest(array['tree', 'item', 'response']) as t(name)",
    )
    return Stored(*(int(str(value)) for value in rows[0]))


async def checkpoint_bytes(dsn: str, response_ids: Sequence[str]) -> list[int]:
    """What the checkpoints of responses of one tree take."""
    sql: LiteralString = "select pg_column_size(checkpoint) from response where tree_key = %s and response_id = any(%s)"
    rows = await _rows(dsn, sql, [tree_key_of(response_ids[0]), list(response_ids)])
    if len(rows) != len(response_ids):
        raise LookupError("responses of the run are not stored")
    return [int(str(size)) for (size,) in rows]


async def forget_statements(dsn: str) -> None:
    """Statements are counted from now on."""
    await _rows(dsn, "create extension if not exists pg_stat_statements")
    await _rows(dsn, "select pg_stat_statements_reset()")


async def statements(dsn: str) -> dict[str, int]:
    """How often each statement ran, our own not counted."""
    rows = await _rows(
        dsn, "select left(query, 60), sum(calls)::int from pg_stat_statements where query not like '%pg_stat_statements%' group by 1"
    )
    return {str(query): int(str(calls)) for query, calls in rows}


async def _rows(dsn: str, sql: LiteralString, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(sql, values or None)
        return list(await cursor.fetchall()) if cursor.description else []
