"""A bound on many short waits, one after the other, that costs next to nothing as long as none of them is too long.

`asyncio.timeout` arms a timer for each wait and cancels it again, which is dear where waits end thousands of times a second. Here one
timer serves all waits of all users: it is armed again when it fires during one, and when a user begins after it has fired in vain.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context


class Patience:
    """Serves one user after the other. Between `begin` and `end` it calls `expired`, once, when a wait takes more than `first` seconds, or
    more than `later` once `go_on` was called. To be closed at the end.

    Whoever waits sets `since` to the event loop's time before each wait, and to None after it.
    """

    __slots__ = ("_expired", "_first", "_later", "_loop", "_seconds", "_timer", "since")

    def __init__(self, first: float, later: float) -> None:
        self.since: float | None = None
        self._expired: Callable[[], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._first = self._seconds = first
        self._later = later
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, expired: Callable[[], object]) -> None:
        """A user begins."""
        self._expired = expired
        self._seconds = self._first
        if self._timer is None:
            self._look_at(self._loop.time() + self._seconds)

    def go_on(self) -> None:
        """The first waits are over."""
        self._seconds = self._later

    def end(self) -> None:
        """The user waits no more."""
        self._expired = self.since = None

    def close(self) -> None:
        """There will be no other user."""
        self.end()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, due: float) -> None:
        """Looks then, or earlier: as early as a wait could be due that begins after this."""
        due = min(due, self._loop.time() + min(self._first, self._later))
        self._timer = self._loop.call_at(due, self._look, context=Context())  # it outlives the user whose context this is

    def _look(self) -> None:
        self._timer = None
        if self._expired is None:
            return
        now = self._loop.time()
        due = (now if self.since is None else self.since) + self._seconds
        if due > now:
            self._look_at(due)
        else:
            expired, self._expired = self._expired, None
            expired()
