"""How a process lives: it runs until a signal asks it to stop, and its background tasks have an owner that waits for them.

What is opened and in which order is each room's business.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType, TracebackType
from typing import Self, TypeVar

import uvloop

from svckit.logs import get_logger
from svckit.memory import keep_freed_memory

CLEANUP_SECONDS = 5.0

T = TypeVar("T")

log = get_logger(__name__)


def run(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs `main` as all that this process does; SIGTERM and SIGINT set the event that it is given. A repeated signal changes nothing."""
    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(main))
    finally:
        _on_stop_signals(signal.SIG_IGN)  # the default would kill a process that is about to end by itself


async def _run(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    _on_stop_signals(ask)  # not with loop.add_signal_handler, which falls back to the default before the end
    await main(stop)


def _on_stop_signals(action: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, action)


class Background:
    """The owner of tasks that outlive the call which started them. Leaving the context waits `grace` seconds for them, then cancels."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._tasks: set[asyncio.Task[object]] = set()
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    def start(self, work: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        """Starts `work`; an error that ends it is logged under `name`, and raised again for whoever awaits the task."""
        if not self._open:
            work.close()
            raise RuntimeError(f"{name} was started after the stop")
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open = False
        try:
            await self._wait(self._grace)
        finally:
            for task in self._tasks:
                task.cancel()
            await self._wait(CLEANUP_SECONDS)

    async def _wait(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", task=task.get_name(), exc_info=error)
