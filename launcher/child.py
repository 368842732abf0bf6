"""Child processes that do not outlive us: how one is started, kept running, and stopped.

What the child is does not matter here; become.py is its first moments.
"""

import asyncio
import contextlib
import enum
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from launcher import become
from svckit.logs import get_logger

log = get_logger(__name__)

Process = asyncio.subprocess.Process
Start = Callable[[], Awaitable[Process]]
StopSteps = Sequence[tuple[signal.Signals, float]]

FIRST_DELAY = 0.2
LONGEST_DELAY = 10.0
HEALTHY_SECONDS = 2.0


class Account(enum.Enum):
    """Who a child runs as."""

    SELF = "self"
    NAMESPACE = "namespace"
    NOBODY = "nobody"


async def start_child(
    *command: str | Path,
    directory: Path = Path("/"),
    account: Account = Account.SELF,
    death_signal: signal.Signals = signal.SIGTERM,
    environ: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Process:
    """Starts `command`, given by full path, in a session of its own; on Linux it gets `death_signal` when we die, however we die.

    To be called from the main thread: Linux ties the signal to the thread that forks.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", become.__file__, str(os.getpid()), str(int(death_signal)), account.value, str(directory)),
        *map(str, command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=environ,
        start_new_session=True,
    )


class Child:
    """A running child; `process` is its latest incarnation."""

    def __init__(self, name: str, process: Process, start: Start) -> None:
        self.name, self.process = name, process
        self._start = start
        self._ending = False

    async def keep(self) -> None:
        """Starts the child again each time it ends, slower and slower while it does not stay up."""
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY
        while True:
            started = loop.time()
            code = await self.process.wait()
            if self._ending:
                return
            delay = FIRST_DELAY if loop.time() - started > HEALTHY_SECONDS else delay
            log.warning("child_ended", child=self.name, exit_code=code, next_start_in_seconds=delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_DELAY)
            if self._ending:
                return
            await self._start_again()
            if self._ending:
                self.ask_to_end()  # asked while it was starting, so that the signal went to the one before

    def ask_to_end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Lets the child end, without waiting for it; it is not started again."""
        self._ending = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def _start_again(self) -> None:
        try:
            self.process = await self._start()
        except Exception as exc:
            log.error("child_does_not_start", child=self.name, reason=str(exc))


@contextlib.asynccontextmanager
async def open_child(name: str, start: Start, stop: StopSteps) -> AsyncIterator[Child]:
    """Starts a child and keeps it running until the block is left, then stops it.

    `start` gives a process that is ready, or raises and leaves none behind. Whatever the first start raises goes to the caller.
    """
    child = Child(name, await start(), start)
    keeper = asyncio.create_task(child.keep(), name=f"keeper of {name}")
    try:
        yield child
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        await stop_child(child.process, stop)


async def stop_child(process: Process, steps: StopSteps) -> None:
    """Sends each signal and waits its seconds for the end; SIGKILL comes after the last."""
    for number, seconds in (*steps, (signal.SIGKILL, None)):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)
