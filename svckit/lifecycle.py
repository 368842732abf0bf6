"""How a process lives: it runs until a signal asks it to stop, and its background tasks have an owner that waits for them.

What is opened and in which order is each room's business.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Self, TypeVar

from svckit.logs import get_logger

CLEANUP_SECONDS = 5.0

T = TypeVar("T")

log = get_logger(__name__)


def run(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs `main` in an event loop of its own; SIGTERM and SIGINT set the event that `main` is given. A repeated signal changes nothing."""
    asyncio.run(_run(main))


async def _run(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await main(stop)


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
