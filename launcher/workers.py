"""Worker processes: each runs all three rooms, and they share one port, one database and one engine.

A worker is `turnkeep serve history orchestrator edge`, told by its environment where everything is.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from prometheus_client import multiprocess

from launcher.child import Child, Process, open_child, start_child, stop_child
from launcher.errors import WorkerError
from launcher.rooms import ROOMS
from svckit.settings import ENV_PREFIX, Sections

START_SECONDS = 120.0
KILL_AFTER_DRAIN_SECONDS = 30.0
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@asynccontextmanager
async def open_workers(count: int, config: Path | None, environ: Mapping[str, str], drain_seconds: float) -> AsyncIterator[None]:
    """Runs `count` workers until the block is left; one that dies is started again. Raises WorkerError.

    To be entered in the main thread.
    """
    steps = ((signal.SIGTERM, drain_seconds + KILL_AFTER_DRAIN_SECONDS),)
    children: list[Child] = []
    async with AsyncExitStack() as stack:
        environ = {**environ, METRICS_VARIABLE: stack.enter_context(_metrics_folder())}
        for number in range(1, count + 1):
            worker = _Worker(config, environ)
            children.append(await stack.enter_async_context(open_child(f"worker {number}", worker.start, steps)))
        try:
            yield
        finally:
            # all drain at the same time; leaving the stack then waits for each
            for child in children:
                child.ask_to_end()


def as_environment(flags: Sections) -> dict[str, str]:
    """Settings as the environment variables that say the same."""
    return {f"{ENV_PREFIX}{section}_{key}".upper(): _written(value) for section, values in flags.items() for key, value in values.items()}


def _written(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _metrics_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="turnkeep-metrics-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Worker:
    """One worker's command, and its latest process."""

    def __init__(self, config: Path | None, environ: Mapping[str, str]) -> None:
        options = ["--config", str(config.absolute())] if config else []
        self._command = [sys.executable, "-P", "-m", "launcher.command", "serve", *ROOMS, *options]
        self._environ = environ
        self._pid: int | None = None

    async def start(self) -> Process:
        if self._pid is not None:
            multiprocess.mark_process_dead(self._pid, self._environ[METRICS_VARIABLE])  # type: ignore[no-untyped-call]
        process = await start_child(*self._command, directory=Path.cwd(), environ=self._environ, stdout=asyncio.subprocess.PIPE)
        self._pid = process.pid
        try:
            await _ready(process)
        except BaseException:
            await stop_child(process, ((signal.SIGTERM, KILL_AFTER_DRAIN_SECONDS),))
            raise
        return process


async def _ready(process: Process) -> None:
    """Waits for the line that says that the worker serves."""
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    except TimeoutError as exc:
        raise WorkerError(f"a worker did not start within {START_SECONDS:.0f} seconds") from exc
    if not line:
        raise WorkerError(f"a worker ended while starting, with exit code {await process.wait()}")
