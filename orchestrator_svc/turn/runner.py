"""Runs one turn: performs what the machine asks for and tells it what came of it. Decides nothing itself.

The consumer iterates over batches of stream events. When it leaves (its task is cancelled, or it closes the iterator), the machine is told
and what it still wants stored is stored by a task of the desk's, for the consumer waits no longer.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from orchestrator_svc.errors import EngineError, EngineTimeout
from orchestrator_svc.providers.base import Batches, Provider
from orchestrator_svc.providers.faults import failed
from orchestrator_svc.tools.base import ToolCall, ToolResult
from orchestrator_svc.tools.table import McpTool
from orchestrator_svc.turn.actions import Action, Batch, CallModel, Emit, Finish, ListTools, Record, Refuse, RunTools, Save, StreamEvent
from orchestrator_svc.turn.events import (
    Begun,
    Cancelled,
    GracePassed,
    ModelEvent,
    ModelSent,
    Saved,
    SaveFailed,
    Stopped,
    ToolFinished,
    ToolsListed,
    TurnEvent,
)
from orchestrator_svc.turn.machine import advance
from orchestrator_svc.turn.state import Phase, Turn
from svckit.patience import Patience


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a turn is run with. `save` starts a task that outlives its caller; `ended` is told of every turn at its end; `stopped` says why
    the turn may not go on, or None while it may.

    `clock` gives seconds since 1970. `first_event_grace` is in seconds, `deadline` in the event loop's time.
    """

    provider: Provider
    list_tools: Callable[[McpTool], Awaitable[ToolsListed]]
    run_tool: Callable[[Turn, ToolCall], Awaitable[ToolResult]]
    max_parallel_calls: int
    save: Callable[[Turn, Record], asyncio.Future[Saved | SaveFailed]]
    ended: Callable[[Turn], None]
    stopped: Callable[[], Stopped | Cancelled | None]
    clock: Callable[[], int]
    first_event_grace: float
    deadline: float


_BEGUN = Begun()


async def run(turn: Turn, around: Surroundings, begun: Begun = _BEGUN) -> AsyncGenerator[Batch, None]:
    """The turn's stream events, in batches of what is ready together. Raises what the turn is refused with, before the first batch."""
    runner = _Runner(turn, around)
    try:
        async with aclosing(runner.batches(begun)) as batches:
            async for batch in batches:
                yield batch
    except (asyncio.CancelledError, GeneratorExit):
        _save_abandoned(runner.turn, around)
        raise
    finally:
        around.ended(runner.turn)


def _save_abandoned(turn: Turn, around: Surroundings) -> None:
    """Tells the machine that the client has left, and begins to store what is to be stored; nobody waits for that."""
    _, actions = advance(turn, around.stopped() or Cancelled())
    for action in actions:
        if isinstance(action, Save):
            around.save(turn, action.record)


class _Runner:
    def __init__(self, turn: Turn, around: Surroundings) -> None:
        self.turn = turn
        self._around = around
        self._grace = asyncio.get_running_loop().time() + around.first_event_grace
        self._patience = Patience(until=around.deadline)
        self._model: Batches | None = None
        self._first: asyncio.Task[tuple[ModelEvent, ...] | None] | None = None
        self._unheard: Stopped | Cancelled | None = None
        self._tools: set[asyncio.Task[TurnEvent]] = set()
        self._hands = asyncio.Semaphore(around.max_parallel_calls)

    async def batches(self, begun: Begun) -> AsyncGenerator[Batch, None]:
        event: TurnEvent = begun
        try:
            while True:
                self.turn, actions = advance(self.turn, event)
                last = actions[-1] if actions else None
                ready = Batch(_emitted(actions), last.continuation if isinstance(last, Finish) else b"")
                if ready.events:
                    yield ready
                if isinstance(last, Finish):
                    return
                event = await self._next(last)
        finally:
            self._patience.close()
            await self._hang_up()

    async def _next(self, action: Action | None) -> TurnEvent:
        """Performs the action that the machine waits for, or goes on listening to the model."""
        match action:
            case Refuse():
                raise action.error
            case Save():
                saving = self._around.save(self.turn, action.record)  # first, for who leaves while the engine is hung up on loses nothing
                await self._hang_up()
                return await self._stored(saving)
            case CallModel():
                await self._hang_up()
                if self._unheard is not None:
                    return self._unheard
                self._model = self._around.provider.call(self.turn.request, action)
            case ListTools():
                await self._hang_up()
                self._tools = {asyncio.create_task(self._listed(server)) for server in action.servers}
            case RunTools():
                await self._hang_up()
                self._tools = {asyncio.create_task(self._finished(call)) for call in action.calls}
        return await self._heard()

    async def _heard(self) -> TurnEvent:
        """What the model sends next, unless a deadline or a shutdown comes first."""
        try:
            with self._patience:
                return await self._received()
        except TimeoutError:
            return Stopped("turn_timeout", "The turn took longer than the gateway allows.", EngineTimeout())
        except asyncio.CancelledError:
            return self._stopped_or_raise()

    async def _stored(self, saving: asyncio.Future[Saved | SaveFailed]) -> TurnEvent:
        """What became of the save; a shutdown does not keep the turn from hearing it, and is heard of next by one that would go on."""
        while True:
            try:
                return await asyncio.shield(saving)
            except asyncio.CancelledError:
                if saving.cancelled():
                    raise
                self._unheard = self._stopped_or_raise()

    def _stopped_or_raise(self) -> Stopped | Cancelled:
        """Why this task was cancelled, if that was a shutdown; goes on being cancelled, if it was the consumer."""
        stopped, task = self._around.stopped(), asyncio.current_task()
        if stopped is None or task is None:
            raise
        task.uncancel()
        return stopped

    async def _received(self) -> TurnEvent:
        if self._tools:
            return await self._tool_ended()
        assert self._model is not None
        if self.turn.phase is not Phase.WAITING and self._first is None:
            return self._sent(await anext(self._model, None))
        self._first = self._first or asyncio.create_task(_next_batch(self._model))
        if self.turn.phase is Phase.WAITING:
            await asyncio.wait({self._first}, timeout=self._grace_left())
            if not self._first.done():
                return GracePassed()
        batch, self._first = await self._first, None
        return self._sent(batch)

    async def _tool_ended(self) -> TurnEvent:
        """The next of the listings or calls that run to end."""
        waits = self._grace_left() if self.turn.phase is Phase.WAITING else None
        ended, _ = await asyncio.wait(self._tools, timeout=waits, return_when=asyncio.FIRST_COMPLETED)
        if not ended:
            return GracePassed()
        task: asyncio.Task[TurnEvent] = ended.pop()
        self._tools.discard(task)
        return task.result()

    async def _listed(self, server: McpTool) -> TurnEvent:
        async with self._hands:
            return await self._around.list_tools(server)

    async def _finished(self, call: ToolCall) -> TurnEvent:
        async with self._hands:
            return ToolFinished(call.call_id, await self._around.run_tool(self.turn, call))

    def _grace_left(self) -> float:
        return max(self._grace - asyncio.get_running_loop().time(), 0.0)

    def _sent(self, batch: tuple[ModelEvent, ...] | None) -> ModelSent:
        """A provider ends every call with an event of its own; should it not, the call has failed."""
        return ModelSent((failed(EngineError()),) if batch is None else batch, self._around.clock())

    async def _hang_up(self) -> None:
        """Ends the model call, and with it the connection to the engine, and the tools that still run."""
        tools, self._tools = self._tools, set()
        for task in tools:
            task.cancel()
        if tools:
            await asyncio.wait(tools)
        first, self._first = self._first, None
        if first is not None:
            first.cancel()
            await asyncio.wait({first})
        model, self._model = self._model, None
        if model is not None:
            await model.aclose()


async def _next_batch(model: Batches) -> tuple[ModelEvent, ...] | None:
    return await anext(model, None)


def _emitted(actions: tuple[Action, ...]) -> tuple[StreamEvent, ...]:
    return tuple(event for action in actions if isinstance(action, Emit) for event in action.events)
