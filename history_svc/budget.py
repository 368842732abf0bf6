"""A budget of bytes that the loads of this process share: who wants more than is free waits its turn, not for ever."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from history_svc.errors import HistoryOverloaded


class ByteBudget:
    """`total` bytes; those who wait are served in the order they came."""

    def __init__(self, total: int, wait_seconds: float) -> None:
        self.free = total
        self._total = total
        self._wait_seconds = wait_seconds
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator["Hold"]:
        """Holds `size` bytes for the block. Raises HistoryOverloaded when they do not get free in time."""
        hold = Hold(self, min(size, self._total))
        await self._take(hold.size)
        try:
            yield hold
        finally:
            hold.shrink(0)

    async def _take(self, size: int) -> None:
        if not self._waiting and size <= self.free:
            self.free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout(self._wait_seconds):
                await turn
        except BaseException as exc:
            self._left(size, turn)
            if isinstance(exc, TimeoutError):
                raise HistoryOverloaded() from exc
            raise

    def _left(self, size: int, turn: asyncio.Future[None]) -> None:
        """Somebody gave up; what they were given in the same moment goes back."""
        if turn.done() and not turn.cancelled():
            self.give_back(size)
        elif (size, turn) in self._waiting:
            self._waiting.remove((size, turn))
            self.give_back(0)  # whoever waited behind may fit now

    def give_back(self, size: int) -> None:
        """Frees bytes and serves who waits for them."""
        self.free += size
        while self._waiting and self._waiting[0][0] <= self.free:
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self.free -= wanted
                turn.set_result(None)


class Hold:
    """A share of the budget."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self.size = size
        self._budget = budget

    def shrink(self, size: int) -> None:
        """Gives back what is held beyond `size`."""
        if size < self.size:
            freed, self.size = self.size - size, size
            self._budget.give_back(freed)
