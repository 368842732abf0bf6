"""Background turns: queued by one process, run by any that takes them, each under a lease of its own.

`BackgroundTurns` puts turns into the queue and takes from it as many as this process runs at a time. A `Tenure` is the time that one turn
is this process's: it keeps the lease, runs the turn like any other, writes its event log, and stops without a word when the lease is lost.
How a turn goes on is decided in `machine`; resuming is the same loop, begun with what was saved.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from grpc import StatusCode
from msgspec import structs
from prometheus_client import Counter, Gauge
from structlog.contextvars import bind_contextvars

from orchestrator_svc.errors import ShuttingDown
from orchestrator_svc.history import LEASE_LOST, NOT_WRITTEN, History
from orchestrator_svc.request import Asked
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.turn.actions import Record, StreamEvent
from orchestrator_svc.turn.desk import Desk
from orchestrator_svc.turn.event_log import EventLog
from orchestrator_svc.turn.events import Begun, Cancelled, Saved, SaveFailed, Stopped
from orchestrator_svc.turn.opening import Opening
from orchestrator_svc.turn.response import body_of, response_of
from orchestrator_svc.turn.runner import Surroundings, run
from orchestrator_svc.turn.snapshot import Queued, read_queued, write_queued
from orchestrator_svc.turn.state import Ending, Phase, Turn
from orchestrator_svc.turn.takeover import behind_log
from orchestrator_svc.turn_queue import LeaseLost, Taken, TurnQueue, Waiting, patiently
from svckit.errors import ServiceError
from svckit.lifecycle import Background
from svckit.logs import get_logger

TAKEN = Counter("turnkeep_orchestrator_background_taken_total", "Background turns that were taken, by attempt.", ["attempt"])
LET_GO = Counter("turnkeep_orchestrator_background_let_go_total", "Background turns that were not run to their end here, by why.", ["why"])
RUNNING = Gauge("turnkeep_orchestrator_background_in_flight", "Background turns that run now.", multiprocess_mode="livesum")

# How long a process without work waits before it looks again, and how often a holder asks whether its turn is to be cancelled.
POLL_SECONDS = 1.0
KEEP_SECONDS = 2.0
_LONGEST_POLL_SECONDS = 15.0
_LAST_WORDS_SECONDS = 5.0
_SAVE_PAUSE_SECONDS = 1.0

log = get_logger(__name__)


class BackgroundTurns:
    """The background turns of one process. Used as an async context manager; `drain` comes before its end."""

    def __init__(self, desk: Desk, opening: Opening, history: History, queue: TurnQueue, settings: OrchestratorSettings) -> None:
        self._desk = desk
        self._opening = opening
        self._history = history
        self._queue = queue
        self._settings = settings
        self._holder = uuid.uuid4().hex
        self._tasks = Background(settings.commit_timeout_seconds)
        self._places = asyncio.Semaphore(settings.background_turns)
        self._nudged = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._running: dict[Tenure, asyncio.Task[None]] = {}
        self._is_draining = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        if self._settings.background_turns:
            self._looking = self._tasks.start(self._look_for_turns(), "look for background turns")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def start(self, asked: Asked) -> tuple[str, bytes]:
        """Queues a turn; gives its id and its response as it stands. Raises what it is refused with, HistoryUnavailable, RemoteError."""
        if self._is_draining:
            raise ShuttingDown
        turn = await self._opening.open(asked)
        body = body_of(turn, Ending("queued"))
        await self._queue.put(_waiting(turn, asked, body))
        self._nudged.set()
        return turn.response_id, response_of(turn.response_id, body, ())

    async def drain(self) -> None:
        """Takes no more turns, lets those that run end, and at the drain limit gives the others back, to be gone on with elsewhere."""
        self._is_draining = True
        self._nudged.set()
        looking = [self._looking] if self._looking is not None else []
        await _ended([*self._running.values(), *looking], self._settings.drain_seconds)
        await asyncio.gather(*(tenure.give_back() for tenure in self._running))

    async def _look_for_turns(self) -> None:
        while not self._is_draining:
            await self._places.acquire()
            taken = await self._next_turn()
            if taken is None:
                return
            TAKEN.labels("first" if taken.attempt == 1 else "again").inc()
            around = self._desk.surroundings(holder=f"{taken.response_id}/{taken.token}")
            tenure = Tenure(taken, around, self._opening, self._history, self._queue, self._settings, self._tasks)
            self._running[tenure] = self._tasks.start(self._hold(tenure), "run a background turn")

    async def _hold(self, tenure: "Tenure") -> None:
        RUNNING.inc()
        try:
            await tenure.run()
        finally:
            RUNNING.dec()
            del self._running[tenure]
            self._places.release()

    async def _next_turn(self) -> Taken | None:
        """Waits for a turn and takes it; None when this process takes no more."""
        pause = POLL_SECONDS
        while True:
            self._nudged.clear()
            if self._is_draining:
                return None
            try:
                taken = await self._queue.take(self._holder, self._settings.background_lease_seconds)
                pause = POLL_SECONDS
            except ServiceError as error:
                log.warning("no background turn could be taken", reason=error.reason)
                taken, pause = None, min(2 * pause, _LONGEST_POLL_SECONDS)
            if taken is not None and not self._is_draining:
                return taken
            if taken is not None:
                await self._queue.give_back(taken)
                return None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nudged.wait(), random.uniform(pause / 2, pause * 1.5))


def _waiting(turn: Turn, asked: Asked, body: bytes) -> Waiting:
    return Waiting(
        owner=turn.request.owner,
        response_id=turn.response_id,
        parent_response_id=turn.parent.response_id,
        conversation_id=turn.parent.conversation_id,
        model=turn.request.model,
        body=body,
        request=write_queued(Queued(turn.response_id, asked, turn.created_at)),
        created_at=turn.created_at,
    )


class Tenure:
    """One turn, as long as this process has its lease; `run` and `give_back` are called once each."""

    def __init__(
        self,
        taken: Taken,
        around: Surroundings,
        opening: Opening,
        history: History,
        queue: TurnQueue,
        settings: OrchestratorSettings,
        tasks: Background,
    ) -> None:
        self._taken = taken
        self._around = around
        self._opening = opening
        self._history = history
        self._queue = queue
        self._lease_seconds = settings.background_lease_seconds
        self._tasks = tasks
        self._log = EventLog(queue, taken, tasks, self._lose)
        self._task: asyncio.Task[object] | None = None
        self._cancelled: Cancelled | None = None
        self._is_running = False
        self._is_ending = False
        self._is_over = False

    async def run(self) -> None:
        """Runs the turn to its end, or until it is another process's."""
        bind_contextvars(owner=self._taken.owner, response_id=self._taken.response_id)
        self._task = asyncio.current_task()
        keeping = asyncio.create_task(self._keep())
        try:
            await self._run()
        except asyncio.CancelledError:
            if not self._is_over:
                raise
        finally:
            self._log.close()
            keeping.cancel()
            await asyncio.wait({keeping})

    async def give_back(self) -> None:
        """Stops, with what is saved by now, and lets another process go on."""
        if self._is_over or self._task is None:
            return
        self._stop_writing("given_back")
        await _ended([self._task], _LAST_WORDS_SECONDS)
        await self._queue.give_back(self._taken)

    async def _run(self) -> None:
        turn, begun = await self._opened()
        self._is_running = True
        if self._cancelled is not None:
            self._tell_to_stop()
        async with aclosing(run(turn, self._surroundings(), begun)) as batches:
            async for batch in batches:
                await self._logged(batch.events)
        await self._log.end()

    async def _opened(self) -> tuple[Turn, Begun]:
        """The turn as it was queued, or as it was saved last, behind all that its viewers have seen."""
        queued, saves = read_queued(self._taken.request), self._taken.saves
        try:
            turn, begun = await patiently(lambda: self._read(queued)), Begun()
        except ServiceError as error:
            if error.status in (StatusCode.INTERNAL, StatusCode.UNKNOWN):
                raise
            turn, begun = self._opening.hindered(queued, saves), Begun(Stopped(error.reason, error.message, error))
        logged = await patiently(lambda: self._queue.logged(self._taken, turn.output.sequence - 1))
        turn = behind_log(turn, logged)
        if begun.hindrance is not None and saves:
            turn = structs.replace(turn, output=structs.replace(turn.output, open=(), running=(), closed=()))
        return turn, begun

    async def _read(self, queued: Queued) -> Turn:
        if not self._taken.saves:
            return await self._opening.open_queued(queued)
        return await self._opening.resume(queued, self._taken.saves, await self._queue.stored(self._taken))

    async def _logged(self, events: tuple[StreamEvent, ...]) -> None:
        """Logs events, and waits for the store when too many wait for it."""
        self._log.add(events)
        if not self._log.is_full:
            return
        try:
            await self._log.flush()
        except asyncio.CancelledError:
            if self._is_over or self._cancelled is None or self._task is None:
                raise
            self._task.uncancel()
            self._tell_to_stop()  # the runner, which is asked next

    def _surroundings(self) -> Surroundings:
        ended = self._around.ended
        return replace(
            self._around,
            save=self._save,
            ended=lambda turn: ended(turn) if turn.phase is Phase.OVER else None,
            stopped=lambda: None if self._is_over else self._cancelled,
        )

    # Saving.

    def _save(self, turn: Turn, record: Record) -> asyncio.Future[Saved | SaveFailed]:
        """Stores the turn, unless this process may not: that its task is cancelled for another reason is no end of the turn."""
        if self._is_over or (record.status == "cancelled" and self._cancelled is None):
            refused: asyncio.Future[Saved | SaveFailed] = asyncio.get_running_loop().create_future()
            refused.set_result(NOT_WRITTEN)
            return refused
        self._is_ending = not record.resume_state
        return self._tasks.start(self._saved(turn, record), "save a background turn")

    async def _saved(self, turn: Turn, record: Record) -> Saved | SaveFailed:
        """What became of the save, once it is known: until then it is made again, the log before it."""
        await self._log.flush()
        saved = await self._save_once(turn, record)
        while isinstance(saved, SaveFailed) and saved.is_passing and not self._is_over and _now() < self._around.deadline:
            await asyncio.sleep(random.uniform(0, _SAVE_PAUSE_SECONDS))
            saved = await self._save_once(turn, record)
        if isinstance(saved, SaveFailed) and (saved.code == LEASE_LOST or self._is_ending):
            self._lose()
        return saved

    def _save_once(self, turn: Turn, record: Record) -> Awaitable[Saved | SaveFailed]:
        return self._history.save(turn, record, self._taken.token, int(time.time()))

    # The lease.

    async def _keep(self) -> None:
        """Prolongs the lease, and hears whether the turn is to be cancelled. A store that is away decides nothing: the token does."""
        while True:
            await asyncio.sleep(min(KEEP_SECONDS, self._lease_seconds / 3))
            try:
                cancel = await self._queue.keep(self._taken, self._lease_seconds)
            except LeaseLost:
                if not self._is_ending:  # the last save ends the lease, and knows whether it has held
                    self._lose()
                return
            except ServiceError as error:
                log.warning("the lease of a turn was not prolonged", reason=error.reason)
                continue
            if cancel and self._cancelled is None:
                self._cancelled = Cancelled()
                if self._is_running:
                    self._tell_to_stop()

    def _lose(self) -> None:
        if not self._is_over:
            log.warning("a turn has passed to another process")
            self._stop_writing("lost")

    def _stop_writing(self, why: str) -> None:
        LET_GO.labels(why).inc()
        self._is_over = True
        self._log.close()
        self._tell_to_stop()

    def _tell_to_stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _ended(tasks: Iterable[asyncio.Task[object]], seconds: float) -> None:
    tasks = set(tasks)
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def _now() -> float:
    return asyncio.get_running_loop().time()
