"""The queue of background turns and their event logs at the history service, as whoever starts and runs such turns uses them.

This file converts and calls. Which turn is run when, and what a lost lease means, is decided in `turn/background`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc

from orchestrator_svc.history import LEASE_LOST, named
from orchestrator_svc.items import Item
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.turn.actions import StreamEvent
from svckit.errors import RemoteError, ServiceError
from svckit.grpc_client import Caller
from svckit.logs import get_logger
from turnkeep.history.v1 import history_pb2
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceStub

T = TypeVar("T")

log = get_logger(__name__)


class LeaseLost(Exception):
    """The turn has passed to another process, or it is over, or its response is gone: nothing of it may be written any more."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn as it is put into the queue; `body` is the queued response, `request` what whoever takes it needs."""

    owner: str
    response_id: str
    parent_response_id: str
    conversation_id: str
    model: str
    body: bytes
    request: bytes
    created_at: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn that this process has the lease of. `attempt` counts from 1, `saves` how often the turn has been saved."""

    owner: str
    response_id: str
    request: bytes
    attempt: int
    token: int
    saves: int


class TurnQueue:
    """Puts turns into the queue and takes them out, and writes their logs."""

    def __init__(self, channel: grpc.aio.Channel, caller: Caller, settings: OrchestratorSettings) -> None:
        self._stub = HistoryServiceStub(channel)
        self._caller = caller
        self._settings = settings

    async def put(self, turn: Waiting) -> None:
        """Stores a turn that waits. Raises HistoryUnavailable, RemoteError (queue_full)."""
        request = history_pb2.EnqueueTurnRequest(
            owner=turn.owner,
            response_id=turn.response_id,
            parent_response_id=turn.parent_response_id,
            conversation_id=turn.conversation_id,
            model=turn.model,
            body=turn.body,
            request=turn.request,
            created_at=turn.created_at,
        )
        with named():
            deadline = self._settings.commit_timeout_seconds
            await self._caller.unary(self._stub.EnqueueTurn, request, deadline=deadline, idempotent=True)

    async def take(self, holder: str, seconds: float) -> Taken | None:
        """The oldest turn that waits or whose holder has died, with its lease. Raises HistoryUnavailable, RemoteError."""
        request = history_pb2.TakeTurnRequest(holder=holder, lifetime_ms=int(seconds * 1000))
        with named():
            reply = await self._caller.unary(self._stub.TakeTurn, request, deadline=self._settings.load_timeout_seconds)
        if not reply.taken:
            return None
        return Taken(reply.owner, reply.response_id, reply.request, reply.attempt, reply.fencing_token, reply.round)

    async def keep(self, turn: Taken, seconds: float) -> bool:
        """Prolongs the lease; says whether the turn is to be cancelled. Raises LeaseLost, HistoryUnavailable, RemoteError."""
        request = history_pb2.KeepTurnRequest(
            owner=turn.owner, response_id=turn.response_id, fencing_token=turn.token, lifetime_ms=int(seconds * 1000)
        )
        try:
            with named():
                reply = await self._caller.unary(self._stub.KeepTurn, request, deadline=seconds / 2, idempotent=True)
        except RemoteError as error:
            raise _lost(error) from error
        return reply.cancel_requested

    async def give_back(self, turn: Taken) -> None:
        """Lets another process take the turn at once; where that fails, its lease runs out."""
        request = history_pb2.ReturnTurnRequest(owner=turn.owner, response_id=turn.response_id, fencing_token=turn.token)
        try:
            await self._caller.unary(self._stub.ReturnTurn, request, deadline=_LAST_CALL_SECONDS, idempotent=True)
        except RemoteError as error:
            log.warning("a turn was not given back", response_id=turn.response_id, reason=error.reason)

    async def append(self, turn: Taken, events: Sequence[StreamEvent], *, ended: bool) -> None:
        """Logs events; `ended`: there will be no others. Raises LeaseLost, HistoryUnavailable, RemoteError."""
        request = history_pb2.AppendEventsRequest(
            owner=turn.owner,
            response_id=turn.response_id,
            fencing_token=turn.token,
            events=[history_pb2.LoggedEvent(type=one.type, sequence_number=one.sequence_number, data=one.data) for one in events],
            ended=ended,
        )
        try:
            with named():
                await self._caller.unary(self._stub.AppendEvents, request, deadline=self._settings.commit_timeout_seconds, idempotent=True)
        except RemoteError as error:
            raise _lost(error) from error

    async def logged(self, turn: Taken, behind: int) -> list[StreamEvent]:
        """What is logged of a turn behind a number. Raises HistoryUnavailable, RemoteError."""
        request = history_pb2.WatchEventsRequest(owner=turn.owner, response_id=turn.response_id, starting_after=behind, only_logged=True)
        events: list[StreamEvent] = []
        with named():
            deadline = self._settings.load_timeout_seconds
            async with self._caller.stream(self._stub.WatchEvents, request, deadline=deadline, idempotent=True) as replies:
                async for reply in replies:
                    events += [StreamEvent(one.type, one.sequence_number, one.data) for one in reply.events]
        return events

    async def stored(self, turn: Taken) -> tuple[Item, ...]:
        """The items that are stored of a turn's output, as they are shown; they render nothing. Raises HistoryUnavailable, RemoteError."""
        request = history_pb2.GetResponseRequest(owner=turn.owner, response_id=turn.response_id)
        with named():
            deadline = self._settings.load_timeout_seconds
            reply = await self._caller.unary(self._stub.GetResponse, request, deadline=deadline, idempotent=True)
        return tuple(Item(item.id, item.type, item.body, b"", 0) for item in reply.output)


def _lost(error: RemoteError) -> Exception:
    return LeaseLost() if error.reason == LEASE_LOST else error


_LAST_CALL_SECONDS = 5.0


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call until it gets an answer: while the history service is away or has too much to do, it is made again."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except ServiceError as error:
            if error.status not in _PASSING and error.reason != "history_overloaded":
                raise
        await asyncio.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_PASSING = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
