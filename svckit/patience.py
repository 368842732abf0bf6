"""A bound on many short waits, one after the other, that costs next to nothing as long as none of them is too long.

`asyncio.timeout` arms a timer for each wait and cancels it again, which is dear where waits end thousands of times a second. Here one
timer serves all waits: it is armed again when it fires, not when a wait begins.
"""

import asyncio
from collections.abc import Callable


class Patience:
    """Calls `expired` when a wait takes more than `seconds`, and is then over unless others are allowed. To be closed at the end.

    Whoever waits sets `since` to the event loop's time before each wait, and to None after it.
    """

    __slots__ = ("_expired", "_loop", "_timer", "seconds", "since")

    def __init__(self, seconds: float, expired: Callable[[], object]) -> None:
        self.since: float | None = None
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self.seconds = seconds
        self._timer = self._loop.call_later(seconds, self._fire)

    def allow(self, seconds: float) -> None:
        """Other seconds, from the next wait on."""
        self._timer.cancel()
        self.seconds = seconds
        self._timer = self._loop.call_later(seconds, self._fire)

    def close(self) -> None:
        """No more waits."""
        self._timer.cancel()

    def _fire(self) -> None:
        now = self._loop.time()
        due = (now if self.since is None else self.since) + self.seconds
        if due <= now:
            self._expired()
        else:
            self._timer = self._loop.call_at(due, self._fire)
