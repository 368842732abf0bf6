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


def backends(database: str, *, idle: bool = False) -> int:
    """How many connections other than ours the database has; with `idle`, those that do nothing."""
    state = "and state = 'idle'" if idle else ""
    found = rows(database, f"select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() {state}")
    return int(found[0][0])


def terminate_all(database: str) -> int:
    """Ends all connections to the database but ours; says how many there were."""
    return len(
        rows(
            database,
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()",
        )
    )
