"""Bringing a database's schema up to date: the numbered files of `sql/migrations`, each applied once, all in one transaction.

Any number of processes may start at once; one migrates, the others wait for it and find nothing to do. A database that knows newer
migrations than this build is left alone, so that old and new processes can run side by side during an upgrade.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

import psycopg

from history_svc.statements import STATEMENTS

LOCK_SECONDS = 10.0


class MigrationChanged(Exception):
    """A migration file is not what was applied to the database under its number."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Tells whether the file has changed since it was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """All migrations of this build, in order."""
    found = (entry for entry in files("history_svc").joinpath("sql/migrations").iterdir() if entry.name.endswith(".sql"))
    return sorted((Migration(int(entry.name[:4]), entry.name, entry.read_text("utf-8")) for entry in found), key=lambda one: one.number)


async def migrate(dsn: str) -> list[str]:
    """Applies what is missing and gives the names of what was applied; `dsn` leads to the database directly.

    Raises MigrationChanged, and psycopg's errors: LockNotAvailable where another process has held a lock for LOCK_SECONDS.
    """
    async with await psycopg.AsyncConnection.connect(dsn, prepare_threshold=None, connect_timeout=5) as connection:
        await connection.execute(STATEMENTS["bound_lock_waits"], {"milliseconds": int(LOCK_SECONDS * 1000)})
        await connection.execute(STATEMENTS["lock_schema"])
        await connection.execute(STATEMENTS["make_migration_table"])
        applied: dict[int, str] = dict(await (await connection.execute(STATEMENTS["applied_migrations"])).fetchall())
        missing = _missing(migrations(), applied)
        for migration in missing:
            await connection.execute(migration.sql)
            values = {"number": migration.number, "name": migration.name, "checksum": migration.checksum}
            await connection.execute(STATEMENTS["record_migration"], values)
        return [migration.name for migration in missing]


def _missing(known: list[Migration], applied: dict[int, str]) -> list[Migration]:
    for migration in known:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise MigrationChanged(f"{migration.name} has changed since it was applied; changes go into a new file")
    return [migration for migration in known if migration.number not in applied]
