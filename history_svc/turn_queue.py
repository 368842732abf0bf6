"""The queue of turns that run in the background: put in by one process, taken by any, given back or taken over when a process ends.

Each method is one transaction. Who runs a turn holds the lease of its response. Which of two endings counts is decided here and in the
commit, both under the lock of the turn's row: the first one.
"""

from psycopg.rows import TupleRow

from history_svc.bell import Bell
from history_svc.errors import LeaseLost, NotBackground, QueueFull, ResponseConflict, ResponseNotFound, TreeNotFound
from history_svc.model import NewWork, StoredResponse, TakenTurn, body_with
from history_svc.pools import Connection, Pools
from history_svc.reading import Values, key_of, rows, written
from history_svc.settings import HistorySettings
from history_svc.statements import STATEMENTS
from history_svc.store import read_response
from svckit.errors import ServiceError

TOO_MANY_ATTEMPTS = {"code": "too_many_attempts", "message": "The response was started too often without coming to an end."}


class TurnQueue:
    """The queue of one database."""

    def __init__(self, pools: Pools, settings: HistorySettings, bell: Bell) -> None:
        self._pools = pools
        self._bell = bell
        self._queue_limit = settings.queue_limit
        self._max_attempts = settings.max_attempts
        self._keep_seconds = settings.retention_seconds or None

    async def enqueue(self, work: NewWork) -> None:
        """Stores a queued response and its turn. The same turn once more changes nothing."""
        values: Values = {
            "tree_key": work.tree_key,
            "owner": work.owner,
            "response_id": work.response_id,
            "parent_id": work.parent_id,
            "conversation_id": work.conversation_id,
            "model": work.model,
            "body": work.body,
            "request": work.request,
            "request_hash": work.request_hash,
            "created_at": work.created_at,
            "queue_limit": self._queue_limit,
        }
        (outcome,) = await self._pools.commit.run(lambda connection: written(connection, "enqueue_turn", values))
        if outcome in _REFUSALS:
            raise _REFUSALS[outcome](id=work.response_id)

    async def take(self, holder: str, seconds: float) -> TakenTurn | None:
        """Takes the oldest turn that nobody runs, if there is one, under a lease of its own."""
        values = {"holder": holder, "lifetime": seconds}
        while taken := await self._pools.commit.run(lambda connection: self._taken(connection, values), repeatable=False):
            turn, goes_on = taken
            if goes_on:
                return turn
            self._bell.ring(turn.response_id)
        return None

    async def _taken(self, connection: Connection, values: Values) -> tuple[TakenTurn, bool] | None:
        """A turn, and whether it is to be run: one that was cancelled or taken too often is ended instead."""
        async with connection.transaction():
            found = await rows(connection, "take_turn", values)
            if not found:
                return None
            tree_key, owner, response_id, request, attempt, cancel_requested, token, round, status, body = found[0]
            key: Values = {"tree_key": tree_key, "owner": owner, "response_id": response_id}
            turn = TakenTurn(owner, response_id, request, attempt, token, round)
            if cancel_requested:
                await self._end(connection, key, "cancelled", body)
            elif attempt > self._max_attempts:
                await self._end(connection, key, "failed", body, error=TOO_MANY_ATTEMPTS)
            elif status == "queued":
                await connection.execute(STATEMENTS["start_turn"], {**key, "body": body_with(body, status="in_progress")})
            return turn, not cancel_requested and attempt <= self._max_attempts

    async def keep(self, owner: str, response_id: str, token: int, seconds: float) -> bool:
        """Prolongs the lease of a turn; says whether it is to be cancelled."""
        values = {**key_of(owner, "response_id", response_id, LeaseLost), "token": token, "lifetime": seconds}
        kept = await self._pools.commit.run(lambda connection: rows(connection, "keep_turn", values))
        if not kept:
            raise LeaseLost(id=response_id)
        return bool(kept[0][0])

    async def give_back(self, owner: str, response_id: str, token: int) -> None:
        """Gives a turn back, to be taken at once; one that has passed on is left alone."""
        values = {**key_of(owner, "response_id", response_id, ResponseNotFound), "token": token}
        await self._pools.commit.run(lambda connection: rows(connection, "return_turn", values))

    async def cancel(self, owner: str, response_id: str) -> StoredResponse:
        """Cancels a turn that waits, asks for the end of one that runs, and gives the response as it is then."""
        key = key_of(owner, "response_id", response_id, ResponseNotFound)
        response = await self._pools.commit.run(lambda connection: self._cancelled(connection, key))
        self._bell.ring(response_id)
        return response

    async def _cancelled(self, connection: Connection, key: Values) -> StoredResponse:
        async with connection.transaction():
            work = await rows(connection, "lock_work", key)
            background, body = await _to_cancel(connection, key)
            if not background:
                raise NotBackground(id=key["response_id"])
            if work and work[0][0]:
                await connection.execute(STATEMENTS["request_cancel"], key)
            elif work:
                await self._end(connection, key, "cancelled", body)
            return await read_response(connection, key)

    async def _end(self, connection: Connection, key: Values, status: str, body: bytes, **fields: object) -> None:
        ended = body_with(body, status=status, completed_at=None, **fields)
        values = {**key, "status": status, "body": ended, "keep_seconds": self._keep_seconds}
        await connection.execute(STATEMENTS["end_turn"], values)


_REFUSALS: dict[str, type[ServiceError]] = {"conflict": ResponseConflict, "full": QueueFull, "not_found": TreeNotFound}


async def _to_cancel(connection: Connection, key: Values) -> TupleRow:
    found = await rows(connection, "response_to_cancel", key)
    if not found:
        raise ResponseNotFound(id=key["response_id"])
    return found[0]
