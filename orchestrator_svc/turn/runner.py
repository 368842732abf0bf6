"""Runs one turn: performs what the machine asks for and tells it what came of it. Decides nothing itself.

The consumer iterates over batches of stream events. When it leaves (its task is cancelled, or it closes the iterator), the machine is told
and what it still wants stored is stored by a task of the desk's, for the consumer waits no longer.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
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
from orchestrator_svc.turn.machine import advance, more_text
from orchestrator_svc.turn.state import Phase, Turn
from svckit.grpc_server import HandOver


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a turn is run with. `save` starts a task that outlives its caller; `ended` is told of every turn at its end; `stopped` says why
    the turn may not go on, or None while it may.

    `clock` gives seconds since 1970. `first_event_grace` is in seconds, `deadline` in the event loop's time. `hand_over` has a batch of
    more text while the consumer waits for the next one, and says whether it takes it.
    """

    provider: Provider
    list_tools: Callable[[McpTool], Awaitable[ToolsListed]]
    run_tool: Callable[[Turn, ToolCall], Awaitable[ToolResult]]
    max_parallel_calls: int
    save: Callable[[Turn, Record], asyncio.Future[Saved | SaveFailed]]
    ended: Callable[[Turn], None]
    stopped: Callable[[], Stopped | Cancelled | None]
    clock: Callable[[], float]
    first_event_grace: float
    deadline: float
    hand_over: HandOver | None = None


_BEGUN = Begun()


def run(turn: Turn, around: Surroundings, begun: Begun = _BEGUN) -> AsyncGenerator[Batch, None]:
    """The turn's stream events, in batches of what is ready together, for one task. Raises what the turn is refused with, before the first
    batch."""
    return _Runner(turn, around).batches(begun)


class _Runner:
    def __init__(self, turn: Turn, around: Surroundings) -> None:
        self.turn = turn
        self._around = around
        self._grace = asyncio.get_running_loop().time() + around.first_event_grace
        self._listener: asyncio.Task[object] | None = None
        self._is_overdue = False
        self._cancelled_before = 0
        self._model: Batches | None = None
        self._first: asyncio.Task[tuple[ModelEvent, ...] | None] | None = None
        self._unheard: Stopped | Cancelled | None = None
        self._tools: set[asyncio.Task[TurnEvent]] = set()
        self._hands = asyncio.Semaphore(around.max_parallel_calls)

    async def batches(self, begun: Begun) -> AsyncGenerator[Batch, None]:
        event: TurnEvent = begun
        task = asyncio.current_task()
        assert task is not None
        self._cancelled_before = task.cancelling()
        deadline = asyncio.get_running_loop().call_at(self._around.deadline, self._pass_deadline)
        try:
            while True:
                self.turn, actions = advance(self.turn, event)
                last = actions[-1] if actions else None
                if events := _emitted(actions):
                    yield Batch(events, last.continuation if isinstance(last, Finish) else b"")
                if isinstance(last, Finish):
                    return
                event = await (self._heard(task) if last is None or isinstance(last, Emit) else self._performed(last, task))
        except (asyncio.CancelledError, GeneratorExit, Exception):
            self._save_abandoned()  # a turn that was refused has nothing to store
            raise
        finally:
            deadline.cancel()
            try:
                await self._hang_up()
            finally:
                self._around.ended(self.turn)

    def _save_abandoned(self) -> None:
        """Tells the machine that the client has left, and begins to store what is to be stored; nobody waits for that."""
        _, actions = advance(self.turn, self._around.stopped() or Cancelled())
        for action in actions:
            if isinstance(action, Save):
                self._around.save(self.turn, action.record)

    def _pass_deadline(self) -> None:
        self._is_overdue = True
        if self._listener is not None:
            self._listener.cancel()

    async def _performed(self, action: Action, task: asyncio.Task[object]) -> TurnEvent:
        """Does what the machine waits for, and gives what came of it, or listens for that."""
        match action:
            case Refuse():
                raise action.error
            case Save():
                saving = self._around.save(self.turn, action.record)  # first, for who leaves while the engine is hung up on loses nothing
                await self._hang_up()
                return await self._stored(saving, task)
            case CallModel():
                await self._hang_up()
                if self._unheard is not None:
                    return self._unheard
                hand_over = self._around.hand_over
                taker = None if hand_over is None else _Taker(self, hand_over)  # the model's alone: the runner must not hold who holds it
                self._model = self._around.provider.call(self.turn.request, action, taker)
            case ListTools():
                await self._hang_up()
                self._tools = {asyncio.create_task(self._listed(server)) for server in action.servers}
            case RunTools():
                await self._hang_up()
                self._tools = {asyncio.create_task(self._finished(call)) for call in action.calls}
        return await self._heard(task)

    async def _heard(self, task: asyncio.Task[object]) -> TurnEvent:
        """What the model or a tool sends next, unless a deadline or a shutdown comes first."""
        if self._is_overdue:
            return _overdue()
        self._listener, model = task, self._model
        try:
            if model is not None and self._first is None and self.turn.phase is not Phase.WAITING:
                return ModelSent(await anext(model), int(self._around.clock()))
            return await self._tool_ended() if self._tools else await self._first_sent()
        except StopAsyncIteration:
            return self._sent(None)
        except asyncio.CancelledError:
            if self._is_overdue and task.uncancel() <= self._cancelled_before:
                return _overdue()
            return self._stopped_or_raise(task)
        finally:
            self._listener = None

    @property
    def listens(self) -> bool:
        """Does it wait for the model, and is there time left?"""
        return self._listener is not None and not self._is_overdue

    async def _stored(self, saving: asyncio.Future[Saved | SaveFailed], task: asyncio.Task[object]) -> TurnEvent:
        """What became of the save; a shutdown does not keep the turn from hearing it, and is heard of next by one that would go on."""
        while True:
            try:
                return await asyncio.shield(saving)
            except asyncio.CancelledError:
                if saving.cancelled():
                    raise
                self._unheard = self._stopped_or_raise(task)

    def _stopped_or_raise(self, task: asyncio.Task[object]) -> Stopped | Cancelled:
        """Why this task was cancelled, if that was a shutdown; goes on being cancelled, if it was the consumer."""
        stopped = self._around.stopped()
        if stopped is None:
            raise
        task.uncancel()
        return stopped

    async def _first_sent(self) -> TurnEvent:
        """The model's first words, as long as the grace lasts; those of a client that has heard that it waits, however long they take."""
        assert self._model is not None
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
        return ModelSent((failed(EngineError()),) if batch is None else batch, int(self._around.clock()))

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


class _Taker:
    """Hands more text over the moment it comes, in the callback that read it; all else waits to be heard."""

    __slots__ = ("_hand_over", "_runner")

    def __init__(self, runner: _Runner, hand_over: HandOver) -> None:
        self._runner = runner
        self._hand_over = hand_over

    @property
    def is_open(self) -> bool:
        return self._hand_over.is_open and self._runner.listens

    def __call__(self, events: tuple[ModelEvent, ...]) -> bool:
        more = more_text(self._runner.turn, events)
        if more is None or not self._hand_over(Batch(more[1].events)):
            return False
        self._runner.turn = more[0]
        return True


def _overdue() -> Stopped:
    return Stopped("turn_timeout", "The turn took longer than the gateway allows.", EngineTimeout())


async def _next_batch(model: Batches) -> tuple[ModelEvent, ...] | None:
    return await anext(model, None)


def _emitted(actions: tuple[Action, ...]) -> tuple[StreamEvent, ...]:
    return tuple(event for action in actions if isinstance(action, Emit) for event in action.events)
