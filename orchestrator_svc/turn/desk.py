"""The desk: where turns come in, and who owns them while they run.

It admits a turn, loads what it continues from, runs it, and stores what it made in tasks of its own, so that no caller's leaving can lose
a turn. At shutdown it waits, then stops what still runs. How a turn goes on is decided in `machine`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

from prometheus_client import Counter, Gauge, Histogram
from structlog.contextvars import bind_contextvars

from orchestrator_svc.context.pairing import call_ids_in
from orchestrator_svc.context.pipeline import Draft, assembled, wanted
from orchestrator_svc.errors import (
    Overloaded,
    PreviousResponseNotFound,
    RequestTooLarge,
    ResponseNotContinuable,
    ResponseNotFinished,
    ShuttingDown,
)
from orchestrator_svc.history import Context, Continued, Head, History
from orchestrator_svc.items import Item
from orchestrator_svc.providers.base import Provider
from orchestrator_svc.request import Asked, TurnRequest, read_request
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.tools import outcomes
from orchestrator_svc.tools.base import ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.table import McpTool
from orchestrator_svc.tools.toolbox import Toolbox
from orchestrator_svc.turn.actions import Record
from orchestrator_svc.turn.events import Saved, SaveFailed, Stopped, ToolsListed
from orchestrator_svc.turn.output import Output
from orchestrator_svc.turn.runner import StreamEvents, Surroundings, run
from orchestrator_svc.turn.state import Limits, Phase, Turn
from svckit.errors import ServiceError
from svckit.ids import IdBlock, new_block, new_tree_key, tree_key_of
from svckit.lifecycle import Background
from svckit.logs import get_logger

TURNS = Counter("turnkeep_orchestrator_turns_total", "Turns that ended, by status.", ["status"])
ROUNDS = Counter("turnkeep_orchestrator_rounds_total", "Model calls of ended turns.")
TOKENS = Counter("turnkeep_orchestrator_tokens_total", "Tokens that engines counted, by kind.", ["kind"])
FAILURES = Counter("turnkeep_orchestrator_failures_total", "Turns that failed after their start, by code.", ["code"])
IN_FLIGHT = Gauge("turnkeep_orchestrator_turns_in_flight", "Turns that run now.", multiprocess_mode="livesum")
FIRST_EVENT_SECONDS = Histogram("turnkeep_orchestrator_first_event_seconds", "Seconds from a request to the turn's first stream event.")

# What a save may be: both forms of the input, the output, and room for the rest within one message.
_MAX_SAVE_BYTES = 56 * 1024 * 1024
_SHUTDOWN = Stopped("server_shutdown", "The gateway was shut down before the turn ended.", ShuttingDown())
_LAST_WORDS_SECONDS = 5.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A turn that may start, and what its save needs to know of the parent."""

    turn: Turn
    continued: Continued


class Desk:
    """The turns of one process. Used as an async context manager; leaving it waits for what is being stored."""

    def __init__(self, provider: Provider, history: History, toolbox: Toolbox, settings: OrchestratorSettings) -> None:
        self._provider = provider
        self._toolbox = toolbox
        self._history = history
        self._settings = settings
        self._saves = Background(settings.commit_timeout_seconds)
        self._running: set[asyncio.Task[object]] = set()
        self._is_draining = False
        self._stopped: Stopped | None = None

    async def __aenter__(self) -> Self:
        await self._saves.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._saves.__aexit__(kind, error, trace)

    async def respond(self, asked: Asked) -> AsyncGenerator[StreamEvents, None]:
        """Runs one turn. Raises what it is refused with, before the first batch."""
        started = time.perf_counter()
        with self._seat():
            opened = await self._unless_stopped(self._opened(asked))
            bind_contextvars(response_id=opened.turn.response_id)
            async with aclosing(run(opened.turn, self._surroundings(opened.continued))) as batches:
                async for batch in batches:
                    if batch[0].sequence_number == 0:
                        FIRST_EVENT_SECONDS.observe(time.perf_counter() - started)
                    yield batch

    async def _unless_stopped(self, opening: Coroutine[object, object, _Opened]) -> _Opened:
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

    async def _opened(self, asked: Asked) -> _Opened:
        block = _block(asked)
        request = read_request(asked, self._toolbox.kinds, partial(_next_id, block, iter(range(1, 1 << 32))))
        loaded = await self._loaded(request)
        draft = Draft(request, self._toolbox.kinds.specs)
        if loaded is not None:
            draft = replace(draft, carried=loaded.head.carried, open_call_ids=loaded.head.open_call_ids)
        draft = assembled(replace(draft, stored=await self._found(draft)))
        head = loaded.head if loaded else None
        if head is not None and head.tree_full:
            block = replace(block, tree_key=new_tree_key())
        context = loaded.rendered(self._provider.name) if loaded else b""
        return _Opened(self._turn(block, draft, context), Continued(head, other_tree=head is not None and head.tree_full))

    async def _loaded(self, request: TurnRequest) -> Context | None:
        if request.previous_response_id is None:
            return None
        context = await self._history.load(request.owner, request.previous_response_id)
        _check_continuable(context.head)
        return context

    async def _found(self, draft: Draft) -> dict[str, Item]:
        ids = wanted(draft.request, draft.carried)
        return await self._history.find(draft.request.owner, ids) if ids else {}

    def _turn(self, block: IdBlock, draft: Draft, context: bytes) -> Turn:
        settings, request = self._settings, draft.request
        _check_size(context, request, settings.max_context_bytes)
        return Turn(
            response_id=block.id("resp"),
            request=request,
            context=context,
            created_at=_now(),
            limits=Limits(settings.max_rounds, settings.max_output_chars, settings.max_output_items),
            output=Output(
                block,
                settings.reasoning_events,
                self._provider.name,
                next_id=1 + len(request.input),
                tools=request.tools,
                include=request.include,
                call_ids=call_ids_in((context, *(item.rendered for item in request.input))),
            ),
            carried=draft.carried,
            approved=draft.approved,
        )

    def _surroundings(self, continued: Continued) -> Surroundings:
        return Surroundings(
            provider=self._provider,
            list_tools=self._list_tools,
            run_tool=self._run_tool,
            max_parallel_calls=self._settings.max_parallel_calls,
            save=partial(self._save, continued),
            ended=_counted,
            stopped=lambda: self._stopped,
            clock=_now,
            first_event_grace=self._settings.first_event_grace_seconds,
            deadline=asyncio.get_running_loop().time() + self._settings.turn_timeout_seconds,
        )

    def _save(self, continued: Continued, turn: Turn, record: Record) -> asyncio.Task[Saved | SaveFailed]:
        """Stores the turn in a task of the desk's: whoever waits for it may leave, the save goes on."""
        request = turn.request
        saving = self._history.save(request.owner, request.model, turn.created_at, continued, record, _now())
        return self._saves.start(saving, "save a turn")

    async def _list_tools(self, mcp: McpTool) -> ToolsListed:
        try:
            return ToolsListed(mcp, await self._toolbox.list(mcp.server))
        except ToolFailed as failure:
            return ToolsListed(mcp, error=failure.message)

    async def _run_tool(self, turn: Turn, call: ToolCall) -> ToolResult:
        """Runs a call; one that a client approved is claimed before, so that it happens at most once, whoever asks for it again."""
        if not call.approval_request_id:
            return await self._toolbox.run(call)
        owner, claim_id, response_id = turn.request.owner, call.approval_request_id, turn.response_id
        try:
            claim = await self._history.claim(owner, claim_id, response_id)
        except ServiceError:
            return ToolResult("Error: the approval could not be recorded, so this call was not run.", failed=True)
        if not claim.granted:
            return outcomes.read(claim.outcome)
        result = await self._toolbox.run(call)
        settling = self._saves.start(self._history.settle(owner, claim_id, response_id, outcomes.write(result)), "record an outcome")
        await asyncio.shield(settling)
        return result


def _block(asked: Asked) -> IdBlock:
    """The ids of a turn: in the parent's tree, or in a new one."""
    if asked.previous_response_id is None:
        return new_block(new_tree_key())
    tree_key = tree_key_of(asked.previous_response_id)
    if tree_key is None:
        raise PreviousResponseNotFound(response_id=asked.previous_response_id[:64])
    return new_block(tree_key)


def _next_id(block: IdBlock, offsets: Iterator[int], prefix: str) -> str:
    return block.id(prefix, next(offsets))


def _check_continuable(head: Head) -> None:
    if head.status in ("queued", "in_progress"):
        raise ResponseNotFinished(response_id=head.response_id, status=head.status)
    if head.status in ("failed", "cancelled"):
        instead = f"'{head.parent_response_id}'" if head.parent_response_id else "the start"
        raise ResponseNotContinuable(response_id=head.response_id, status=head.status, instead=instead)


def _check_size(context: bytes, request: TurnRequest, limit: int) -> None:
    prompts = sum(len(item.rendered) for item in request.input)
    stored = sum(len(item.body) + len(item.prompt or b"") for item in request.input)
    if len(context) + prompts > limit or stored > _MAX_SAVE_BYTES:
        raise RequestTooLarge(limit=limit)


def _counted(turn: Turn) -> None:
    """Counts a turn that has ended, or that its client has left."""
    ending = turn.ending
    TURNS.labels(ending.status if ending else "refused" if turn.phase is Phase.OVER else "cancelled").inc()
    ROUNDS.inc(turn.round)
    if ending and ending.code:
        FAILURES.labels(ending.code).inc()
        log.warning("a turn failed", code=ending.code)
    if turn.usage:
        TOKENS.labels("input").inc(turn.usage.input_tokens)
        TOKENS.labels("cached_input").inc(turn.usage.cached_tokens)
        TOKENS.labels("output").inc(turn.usage.output_tokens)


def _now() -> int:
    return int(time.time())
