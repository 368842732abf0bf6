"""A bound on many short waits, one after the other, that costs next to nothing as long as none of them is too long.

`asyncio.timeout` arms a timer for each wait and cancels it again, which is dear where waits end thousands of times a second. Here one
timer serves all waits of a task: it is armed again when it fires, not when a wait begins.
"""

import asyncio
from types import TracebackType
from typing import Self


class Patience:
    """Used as a context manager around each wait, by one task at a time; raises TimeoutError from the block that takes too long.

    Each wait may take `seconds`, which may change between waits, and none may go on after `until` (the event loop's time). To be closed
    at the end.
    """

    __slots__ = ("_cancelling", "_due", "_expired", "_loop", "_task", "_timer", "_until", "seconds")

    def __init__(self, *, seconds: float = float("inf"), until: float = float("inf")) -> None:
        self.seconds = seconds
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._due = 0.0
        self._cancelling = 0
        self._expired = False

    def __enter__(self) -> Self:
        task = self._task = asyncio.current_task(self._loop)  # told the loop, it need not ask the system which process this is
        assert task is not None
        self._cancelling = task.cancelling()
        self._due = min(self._loop.time() + self.seconds, self._until)
        if self._timer is None or self._timer.when() > self._due:
            self._arm()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        task, self._task = self._task, None
        if not self._expired:
            return
        self._expired = False
        assert task is not None
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def close(self) -> None:
        """No more waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        self._timer = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        if self._task is None:
            self._timer = None  # nobody waits: the next wait arms it again
        elif self._due > self._loop.time():
            self._arm()
        else:
            self._timer = None
            self._expired = True
            self._task.cancel()
