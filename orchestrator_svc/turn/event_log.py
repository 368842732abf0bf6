"""The event log of a background turn, as the process that runs the turn writes it: in batches, and in order.

What is added is stored a little later, unless `flush` waits for it. A store that is away for a while is waited for; a lease that is lost,
or a store that refuses, ends the writing once and for all: a log has no gaps. Viewers are served elsewhere, from what is stored.
"""

import asyncio
from collections.abc import Callable, Sequence

from orchestrator_svc.turn.actions import StreamEvent
from orchestrator_svc.turn_queue import LeaseLost, Taken, TurnQueue, patiently
from svckit.errors import ServiceError
from svckit.lifecycle import Background
from svckit.logs import get_logger

BATCH_SECONDS = 0.1
BATCH_BYTES = 64 * 1024

log = get_logger(__name__)


class EventLog:
    """The log of one turn. `lost` is called when nothing more can be written; `tasks` owns the writing that nobody waits for."""

    def __init__(self, queue: TurnQueue, turn: Taken, tasks: Background, lost: Callable[[], None]) -> None:
        self._queue = queue
        self._turn = turn
        self._tasks = tasks
        self._lost = lost
        self._waiting: list[StreamEvent] = []
        self._bytes = 0
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be stored that it should be waited for."""
        return self._bytes >= BATCH_BYTES

    def add(self, events: Sequence[StreamEvent]) -> None:
        """Events that belong together: they will be stored together."""
        if self._is_closed:
            return
        self._waiting += events
        self._bytes += sum(len(event.data) for event in events)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._flush_soon)

    async def flush(self) -> None:
        """Waits until all that was added is stored, or will not be any more."""
        await self._write(ended=False)

    async def end(self) -> None:
        """Waits until everything is stored, and says that there will be no more."""
        await self._write(ended=True)
        self.close()

    def close(self) -> None:
        """Nothing is written any more."""
        self._is_closed = True
        self._lost = _nobody  # whoever is told of a loss holds this log in turn
        self._waiting = []
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_soon(self) -> None:
        self._timer = None
        if not self._is_closed:
            self._tasks.start(self.flush(), "write an event log")

    async def _write(self, *, ended: bool) -> None:
        async with self._writing:
            if self._is_closed or not (self._waiting or ended):
                return
            batch, self._bytes = tuple(self._waiting), 0
            try:
                await patiently(lambda: self._queue.append(self._turn, batch, ended=ended))
            except LeaseLost:
                self._give_up()
            except ServiceError as error:
                log.error("events of a turn were not logged", events=len(batch), reason=error.reason)
                self._give_up()
            del self._waiting[: len(batch)]

    def _give_up(self) -> None:
        lost = self._lost
        self.close()
        lost()


def _nobody() -> None:
    """Is told when there is nobody to tell."""
