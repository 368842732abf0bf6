"""An embedded Postgres: a server over a data folder of ours, kept running while we run, gone when we are gone.

Reached over a private socket only. How the folder is made and owned stands in cluster.py; any DSN replaces all of this.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from launcher.child import Child, Process, open_child, start_child, stop_child
from launcher.cluster import Cluster, last_complaint, open_cluster
from launcher.errors import PostgresError

PORT = "5432"
STOP_STEPS = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0))
# replaying a long write-ahead log after a crash is slow, and is no failure
READY_SECONDS = 300.0
POLL_SECONDS = 0.03
# backends of a killed server hold its shared memory until they notice
SHARED_MEMORY_SECONDS = 20.0
SHARED_MEMORY_IN_USE = "shared memory block"

OPTIONS: Mapping[str, str] = {"listen_addresses": "", "max_connections": "60", "unix_socket_permissions": "0700"}
NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running embedded Postgres."""

    dsn: str
    cluster: Cluster
    child: Child

    @property
    def pid(self) -> int:
        """The server's process id; another one after it was started again."""
        return self.child.process.pid

    def announce_stop(self) -> None:
        """Tells whoever waits for the folder that we are about to go."""
        self.cluster.lock.leave_note(self.cluster.sockets, stopping=True)


@contextlib.asynccontextmanager
async def open_postgres(
    folder: Path, *, durable: bool = True, sockets_in: Path = Path("/tmp"), options: Mapping[str, str] | None = None
) -> AsyncIterator[Postgres]:
    """Runs Postgres over `folder` until the block is left. `options` are server settings. Raises PostgresError.

    To be entered in the main thread. Without `durable` a crash of the machine may cost the data: for tests.
    """
    settings = {**OPTIONS, **({} if durable else NOT_DURABLE), **(options or {})}
    async with open_cluster(folder, durable=durable, sockets_in=sockets_in) as cluster:
        dsn = make_conninfo(host=str(cluster.sockets), port=PORT, user="postgres", dbname="postgres")
        async with open_child("postgres", partial(_start, cluster, dsn, settings), STOP_STEPS) as child:
            yield Postgres(dsn, cluster, child)


async def _start(cluster: Cluster, dsn: str, settings: Mapping[str, str]) -> Process:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SHARED_MEMORY_SECONDS
    while True:
        try:
            return await _start_once(cluster, dsn, settings)
        except PostgresError as exc:
            if SHARED_MEMORY_IN_USE not in str(exc) or loop.time() > deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def _start_once(cluster: Cluster, dsn: str, settings: Mapping[str, str]) -> Process:
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with cluster.log.open("ab") as output:
        start = output.tell()
        process = await start_child(
            cluster.binaries / "postgres",
            *("-D", str(cluster.data), "-k", str(cluster.sockets), "-p", PORT, *options),
            directory=cluster.data,
            account=cluster.account,
            death_signal=signal.SIGINT,
            stdout=output.fileno(),
            stderr=output.fileno(),
        )
    try:
        await _ready(process, dsn)
    except BaseException as exc:
        await stop_child(process, STOP_STEPS)
        if isinstance(exc, TimeoutError | ChildProcessError):
            reason = last_complaint(cluster.log, start)
            raise PostgresError(f"Postgres does not start: {reason}; its log is {cluster.log}") from exc
        raise
    return process


async def _ready(process: Process, dsn: str) -> None:
    """Waits for the first connection. Raises TimeoutError, and ChildProcessError when the server ends instead."""
    async with asyncio.timeout(READY_SECONDS):
        while process.returncode is None:
            with contextlib.suppress(psycopg.OperationalError):
                connection = await psycopg.AsyncConnection.connect(dsn, connect_timeout=10)
                return await connection.close()
            await asyncio.sleep(POLL_SECONDS)
    raise ChildProcessError(process.returncode)
