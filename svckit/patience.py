"""A bound on many short waits, one after the other, that costs next to nothing as long as none of them is too long.

`asyncio.timeout` arms a timer for each wait and cancels it again, which is dear where waits end thousands of times a second. Here one
timer serves all waits: it is armed again when it fires, not when a wait begins.
"""

import asyncio
from collections.abc import Callable


class Patience:
    """Calls `expired`, once, when a wait takes more than `first` seconds, or more than `later` once `go_on` was called. To be closed at the
    end.

    Whoever waits sets `since` to the event loop's time before each wait, and to None after it.
    """

    __slots__ = ("_expired", "_later", "_loop", "_seconds", "_timer", "since")

    def __init__(self, first: float, later: float, expired: Callable[[], object]) -> None:
        self.since: float | None = None
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._seconds = first
        self._later = later
        self._timer = self._loop.call_later(min(first, later), self._fire)

    def go_on(self) -> None:
        """The first waits are over."""
        self._seconds = self._later

    def close(self) -> None:
        """No more waits."""
        self._timer.cancel()

    def _fire(self) -> None:
        now = self._loop.time()
        due = (now if self.since is None else self.since) + self._seconds
        if due <= now:
            self._expired()
        else:
            self._timer = self._loop.call_at(min(due, now + self._later), self._fire)
