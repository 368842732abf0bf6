"""A column arrives in the database as it is, whatever its elements are."""

import struct
from collections.abc import Sequence

import psycopg
import pytest

from history_svc.arrays import ADAPTERS
from history_svc.columns import Blobs, Flags, Ints, Texts

TEXTS = Texts(["", "a", "日本語 🎉", 'with "quotes", {braces}\\ and NULL', "x" * 100_000])
BLOBS = Blobs([b"", None, b"\x00\xff", b"NULL", bytes(range(256)) * 100])
INTS = Ints([0, -1, 2**31 - 1, -(2**31)])
FLAGS = Flags([True, False, True])


@pytest.mark.parametrize(
    ("column", "kind"),
    [(TEXTS, "text"), (BLOBS, "bytea"), (INTS, "int"), (FLAGS, "boolean"), (Texts(), "text"), (Blobs(), "bytea")],
)
async def test_a_column_arrives_as_it_is(server: str, column: Sequence[object], kind: str) -> None:
    async with await psycopg.AsyncConnection.connect(server, autocommit=True, prepare_threshold=None, context=ADAPTERS) as connection:
        cursor = connection.cursor(binary=True)
        await cursor.execute(f"select %s::{kind}[], cardinality(%s::{kind}[])", (column, column))  # type: ignore[arg-type]
        assert await cursor.fetchone() == (list(column), len(column))


async def test_a_number_that_is_too_large_is_refused_and_not_cut(server: str) -> None:
    async with await psycopg.AsyncConnection.connect(server, autocommit=True, context=ADAPTERS) as connection:
        with pytest.raises(struct.error):
            await connection.execute("select %s::int[]", (Ints([2**31]),))
