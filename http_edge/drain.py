"""The requests that are running, and their end when the process stops: time to finish first, then a last word, then no more."""

import asyncio

from aiohttp import web

_LAST_WORD_SECONDS = 2.0


class Drain:
    """Knows the task of each running request. `begun` from the first moment of the end, `over` once the time to finish has passed."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.over = False
        self._running: set[asyncio.Task[object]] = set()

    def joined(self) -> None:
        """The current task is a running request, until its end."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def takes_back_cancel(self) -> bool:
        """Was the current task cancelled by the drain? Then it may go on, to send its last word."""
        task = asyncio.current_task()
        if not self.over or task is None:
            return False
        task.uncancel()
        return True

    async def finish(self, seconds: float) -> None:
        """Waits for the running requests; those that take longer than `seconds` are cancelled and get a moment for their answer."""
        self.begun.set()
        await self._wait(seconds)
        self.over = True
        for task in self._running:
            task.cancel()
        await self._wait(_LAST_WORD_SECONDS)

    async def _wait(self, seconds: float) -> None:
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)


DRAIN = web.AppKey("drain", Drain)
