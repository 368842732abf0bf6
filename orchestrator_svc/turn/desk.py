"""The desk: where turns come in, and who owns them while they run.

It admits a turn, loads what it continues from, runs it, and stores what it made in tasks of its own, so that no caller's leaving can lose
a turn. At shutdown it waits, then stops what still runs. How a turn goes on is decided in `machine`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from prometheus_client import Counter, Gauge, Histogram
from structlog.contextvars import bind_contextvars

from orchestrator_svc.errors import InvalidRequest, Overloaded, ShuttingDown
from orchestrator_svc.history import History
from orchestrator_svc.providers.base import Provider
from orchestrator_svc.request import Asked
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.tools import outcomes
from orchestrator_svc.tools.base import ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.table import McpTool
from orchestrator_svc.tools.toolbox import Toolbox
from orchestrator_svc.turn.actions import Batch, Record
from orchestrator_svc.turn.compacting import compacted, estimated
from orchestrator_svc.turn.events import Saved, SaveFailed, Stopped, ToolsListed
from orchestrator_svc.turn.lease import Lease, take_lease
from orchestrator_svc.turn.machine import ENDS, first_call
from orchestrator_svc.turn.opening import Opening
from orchestrator_svc.turn.runner import Surroundings, run
from orchestrator_svc.turn.state import Phase, Turn
from orchestrator_svc.turn_queue import patiently
from svckit.errors import ServiceError, forget_frames
from svckit.grpc_server import HandOver
from svckit.lifecycle import Background
from svckit.logs import get_logger

TURNS = Counter("turnkeep_orchestrator_turns_total", "Turns that ended, by status.", ["status"])
ROUNDS = Counter("turnkeep_orchestrator_rounds_total", "Model calls of ended turns.")
TOKENS = Counter("turnkeep_orchestrator_tokens_total", "Tokens that engines counted, by kind.", ["kind"])
FAILURES = Counter("turnkeep_orchestrator_failures_total", "Turns that failed after their start, by code.", ["code"])
COMPACTIONS = Counter("turnkeep_orchestrator_compactions_total", "Compactions of contexts, by outcome.", ["outcome"])
IN_FLIGHT = Gauge("turnkeep_orchestrator_turns_in_flight", "Turns that run now.", multiprocess_mode="livesum")
FIRST_EVENT_SECONDS = Histogram("turnkeep_orchestrator_first_event_seconds", "Seconds from a request to the turn's first stream event.")

_SHUTDOWN = Stopped("server_shutdown", "The gateway was shut down before the turn ended.", ShuttingDown())
_LAST_WORDS_SECONDS = 5.0
_RELEASE_SECONDS = 1.0

T = TypeVar("T")

log = get_logger(__name__)


class Desk:
    """The turns of one process. Used as an async context manager; leaving it waits for what is being stored."""

    def __init__(self, provider: Provider, history: History, toolbox: Toolbox, opening: Opening, settings: OrchestratorSettings) -> None:
        self._provider = provider
        self._toolbox = toolbox
        self._history = history
        self._settings = settings
        self._opening = opening
        self._saves = Background(settings.commit_timeout_seconds)
        self._running: set[asyncio.Task[object]] = set()
        self._is_draining = False
        self._stopped: Stopped | None = None

    async def __aenter__(self) -> Self:
        await self._saves.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._saves.__aexit__(kind, error, trace)

    async def respond(self, asked: Asked, hand_over: HandOver | None = None) -> AsyncGenerator[Batch, None]:
        """Runs one turn. Raises what it is refused with, before the first batch. `hand_over` is as in Surroundings."""
        started = time.perf_counter()
        with self._seat():
            async with self._leased(asked) as lease:
                turn = await self._unless_stopped(self._opening.open(asked))
                bind_contextvars(response_id=turn.response_id)
                async with aclosing(run(turn, self.surroundings(lease, hand_over=hand_over))) as batches:
                    async for batch in batches:
                        if lease is not None and batch.events[-1].type in ENDS:
                            await lease.release()
                        if batch.events[0].sequence_number == 0:
                            FIRST_EVENT_SECONDS.observe(time.perf_counter() - started)
                        yield batch

    async def count(self, asked: Asked) -> int:
        """How many input tokens the turn's first model call would have: by the engine's count where it offers one, else by estimate."""
        turn = await self._opening.open(replace(asked, prewarm=True))
        call = first_call(turn)
        counted = await self._provider.count(turn.request, call)
        return estimated(turn) if counted is None else counted

    async def compact(self, asked: Asked) -> bytes:
        """Compacts a context and stores nothing; gives the `response.compaction` object as JSON.

        Raises what a turn would be refused with, and CompactionFailed.
        """
        if asked.conversation_id is not None:
            raise InvalidRequest("A conversation is compacted by a turn in it.", param="conversation_id")
        with self._seat():
            turn = await self._unless_stopped(self._opening.open(replace(asked, store=False, compact_only=True)))
            async with aclosing(run(turn, self.surroundings())) as batches:
                async for batch in batches:
                    last = batch.events[-1]
        return compacted(turn, last)

    @asynccontextmanager
    async def _leased(self, asked: Asked) -> AsyncIterator[Lease | None]:
        """Holds the lease of the turn's conversation, if it has one. Whoever is told of a turn's end finds it given back, or nearly so."""
        if asked.conversation_id is None:
            yield None
            return
        lease = await self._unless_stopped(take_lease(self._history, asked.owner, asked.conversation_id))
        try:
            yield lease
        finally:
            releasing = self._saves.start(lease.release(), "release a conversation")
            await asyncio.wait({releasing}, timeout=_RELEASE_SECONDS)

    async def _unless_stopped(self, opening: Coroutine[object, object, T]) -> T:
        """A shutdown that cancels a turn before its start refuses it."""
        try:
            return await opening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopped is None or task is None:
                raise
            task.uncancel()
            raise ShuttingDown from None

    async def drain(self) -> None:
        """Takes no more turns, lets those that run end, and stops them at the drain limit: they are stored as failed."""
        self._is_draining = True
        await self._turns_end(self._settings.drain_seconds)
        self._stopped = _SHUTDOWN
        for task in self._running:
            task.cancel()
        await self._turns_end(_LAST_WORDS_SECONDS)

    async def _turns_end(self, seconds: float) -> None:
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)

    @contextmanager
    def _seat(self) -> Iterator[None]:
        """Counts the caller's task among those that run a turn."""
        if self._is_draining:
            raise ShuttingDown
        if len(self._running) >= self._settings.max_turns:
            raise Overloaded(headers={"retry-after": "1"})
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        IN_FLIGHT.inc()
        try:
            yield
        finally:
            self._running.discard(task)
            IN_FLIGHT.dec()

    def surroundings(self, lease: Lease | None = None, holder: str = "", hand_over: HandOver | None = None) -> Surroundings:
        """What a turn of this process is run with; `holder` claims its calls, by default its response."""
        return Surroundings(
            provider=self._provider,
            list_tools=self._list_tools,
            run_tool=partial(self._run_tool, holder),
            max_parallel_calls=self._settings.max_parallel_calls,
            save=partial(self._save, lease),
            ended=_counted,
            stopped=lambda: self._stopped,
            clock=time.time,
            first_event_grace=self._settings.first_event_grace_seconds,
            deadline=asyncio.get_running_loop().time() + self._settings.turn_timeout_seconds,
            hand_over=hand_over,
        )

    def _save(self, lease: Lease | None, turn: Turn, record: Record) -> asyncio.Task[Saved | SaveFailed]:
        """Stores the turn in a task of the desk's: whoever waits for it may leave, the save goes on."""
        saving = self._history.save(turn, record, lease.token if lease else 0, _now())
        return self._saves.start(lease.spent_on(saving) if lease else saving, "save a turn")

    async def _list_tools(self, mcp: McpTool) -> ToolsListed:
        try:
            return ToolsListed(mcp, await self._toolbox.list(mcp.server))
        except ToolFailed as failure:
            forget_frames(failure)
            return ToolsListed(mcp, error=failure.message)

    async def _run_tool(self, holder: str, turn: Turn, call: ToolCall) -> ToolResult:
        """Runs a call; one with a claim is claimed before, so that it happens at most once, whoever asks for it again."""
        if not call.claim_id:
            return await self._toolbox.run(call)
        owner, is_patient, holder = turn.request.owner, bool(holder), holder or turn.response_id
        claiming = partial(self._history.claim, owner, call.claim_id, holder)
        try:
            claim = await (patiently(claiming) if is_patient else claiming())
        except ServiceError:
            return ToolResult("Error: it could not be recorded that this call is run, so it was not run.", failed=True)
        if not claim.granted:
            may_run = call.tool.repeatable and not call.approval_request_id and claim.outcome is None
            return await self._toolbox.run(call) if may_run else outcomes.read(claim.outcome)
        result = await self._toolbox.run(call)
        settling = self._saves.start(self._history.settle(owner, call.claim_id, holder, outcomes.write(result)), "record an outcome")
        await asyncio.shield(settling)
        return result


def _counted(turn: Turn) -> None:
    """Counts a turn that has ended, or that its client has left."""
    ending = turn.ending
    TURNS.labels(ending.status if ending else "refused" if turn.phase is Phase.OVER else "cancelled").inc()
    ROUNDS.inc(turn.round)
    if ending and ending.code:
        FAILURES.labels(ending.code).inc()
        log.warning("a turn failed", code=ending.code)
    if turn.compaction_failed:
        COMPACTIONS.labels("failed").inc()
        log.warning("a context could not be compacted", tokens=estimated(turn))
    COMPACTIONS.labels("made").inc(sum(item.type == "compaction" for item in turn.output.items))
    if turn.usage:
        TOKENS.labels("input").inc(turn.usage.input_tokens)
        TOKENS.labels("cached_input").inc(turn.usage.cached_tokens)
        TOKENS.labels("output").inc(turn.usage.output_tokens)


def _now() -> int:
    return int(time.time())
