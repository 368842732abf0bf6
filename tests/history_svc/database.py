"""Looks, or reaches, into the database past the service."""

from typing import LiteralString, cast

import psycopg
from psycopg.rows import TupleRow


def rows(database: str, statement: str, *values: object) -> list[TupleRow]:
    """The rows that one statement gives."""
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(cast("LiteralString", statement), values or None).fetchall()


def change(database: str, *statements: str) -> None:
    """Runs statements that give no rows."""
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in statements:
            connection.execute(cast("LiteralString", statement))


def terminate_all(database: str, name: str = "") -> int:
    """Ends all connections but ours to the database, or to the one called `name`; says how many there were."""
    statement = "select pg_terminate_backend(pid) from pg_stat_activity where datname = coalesce(nullif(%s, ''), current_database())"
    return len(rows(database, statement + " and pid <> pg_backend_pid()", name))
