"""Connections to Postgres: three pools, so that readers, commits and background work never wait for one another's connections.

A connection that has died is found before it is used, and what a connection was lost under runs once more on another. Nothing here
survives in a session: every statement is a transaction of its own unless it asks for more, and nothing is prepared, so that a pooler in
transaction mode may stand between. No SQL here.
"""

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from prometheus_client import Gauge
from psycopg import AsyncConnection, InterfaceError, OperationalError
from psycopg.conninfo import make_conninfo
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from history_svc.arrays import ADAPTERS
from history_svc.errors import ConnectionLost, DatabaseUnavailable, HistoryOverloaded
from history_svc.settings import HistorySettings
from svckit.errors import ServiceError
from svckit.logs import get_logger

Connection: TypeAlias = AsyncConnection[TupleRow]
T = TypeVar("T")

SESSION: dict[str, object] = {"autocommit": True, "prepare_threshold": None}
LINK: dict[str, str | int] = {
    "connect_timeout": 5,
    "client_encoding": "UTF8",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

CONNECTIONS_LENT = Gauge(
    "turnkeep_history_connections_lent", "Database connections in use, by pool.", ["pool"], multiprocess_mode="livesum"
)

log = get_logger(__name__)


class Pool:
    """A bounded number of connections to one database."""

    def __init__(self, name: str, size: int, settings: HistorySettings) -> None:
        self.size = size
        self.lent = 0
        self._gauge = CONNECTIONS_LENT.labels(name)
        self._wait_seconds = settings.pool_wait_seconds
        self._statement_seconds = settings.statement_seconds
        self._caring: set[asyncio.Task[None]] = set()
        self._pool = AsyncConnectionPool[Connection](
            settings.database_url,
            kwargs={**SESSION, **LINK, "context": ADAPTERS},
            min_size=1,
            max_size=size,
            open=False,
            name=name,
            max_waiting=settings.pool_queue,
            reconnect_timeout=settings.pool_wait_seconds,  # then the next call tries at once; a longer back-off would outlast the outage
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Pool"]:
        """Connects in the background, and disconnects with the block."""
        await self._pool.open()
        try:
            yield self
        finally:
            if self._caring:
                await asyncio.wait(self._caring, timeout=self._wait_seconds)
            await self._pool.close()

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Runs `work` on a connection, once more on another when the first is lost and `work` may be repeated.

        Raises HistoryOverloaded when all connections stay in use, DatabaseUnavailable when there are none.
        """
        try:
            return await self._attempt(work)
        except ConnectionLost:
            if not repeatable:
                raise
            await self._to_its_end(self._pool.check())  # those that died with it go, too
            return await self._attempt(work)

    async def _attempt(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._connection() as connection:
            try:
                async with asyncio.timeout(self._statement_seconds):
                    return await work(connection)
            except (OperationalError, InterfaceError, ReadOnlySqlTransaction, TimeoutError) as exc:
                log.warning("the database failed", error=repr(exc), lost=connection.closed)
                raise (ConnectionLost() if connection.closed else DatabaseUnavailable()) from exc

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await self._taken()
        self.lent += 1
        self._gauge.inc()
        try:
            yield connection
        finally:
            self.lent -= 1
            self._gauge.dec()
            await self._to_its_end(self._pool.putconn(connection))

    async def _taken(self) -> Connection:
        now = asyncio.get_running_loop().time
        deadline = now() + self._wait_seconds
        while True:
            try:
                connection = await self._pool.getconn(timeout=deadline - now())
            except (PoolTimeout, PoolClosed, TooManyRequests) as exc:
                raise self._refusal(exc) from exc
            if not _has_news(connection):
                return connection
            await connection.close()
            await self._to_its_end(self._pool.putconn(connection))

    def _refusal(self, reason: PoolTimeout | PoolClosed | TooManyRequests) -> ServiceError:
        """Nobody gets a connection while all are in use; with some of them not even there, it is the database that is missing."""
        if isinstance(reason, TooManyRequests) or self.lent >= self.size:
            return HistoryOverloaded()
        return DatabaseUnavailable()

    async def _to_its_end(self, care: Coroutine[None, None, None]) -> None:
        """Care for the pool, in a task of its own: cancelled half-way with its caller, it would lose a connection's place for ever."""
        task = asyncio.create_task(care)
        self._caring.add(task)
        task.add_done_callback(self._caring.discard)
        await asyncio.shield(task)


async def connected(dsn: str) -> Connection:
    """A connection of its own, outside the pools. Raises psycopg's errors."""
    return await AsyncConnection.connect(make_conninfo(dsn, **LINK), autocommit=True, prepare_threshold=None)


def _has_news(connection: Connection) -> bool:
    """An idle connection has nothing to read unless the server has ended it, or is about to."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


@dataclass(frozen=True, slots=True)
class Pools:
    """The three pools of a history service."""

    read: Pool
    commit: Pool
    background: Pool


@asynccontextmanager
async def open_pools(settings: HistorySettings) -> AsyncIterator[Pools]:
    """Opens the three pools; a database that does not answer yet is no error here."""
    async with AsyncExitStack() as stack:
        yield Pools(
            read=await stack.enter_async_context(Pool("read", settings.read_connections, settings).opened()),
            commit=await stack.enter_async_context(Pool("commit", settings.commit_connections, settings).opened()),
            background=await stack.enter_async_context(Pool("background", settings.background_connections, settings).opened()),
        )
