"""What is measured: each target in processes of its own, started from the outside, with what Linux tells of their CPU and memory.

Postgres is the embedded one with fsync on, run from here so that it can count statements. How load is made stands in load.py.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.load import LoadError
from launcher.child import Process, start_child, stop_child
from launcher.postgres import open_postgres
from svckit.settings import environment

ROOT = Path(__file__).parents[1]

START_SECONDS = 60.0
STOP_STEPS = ((signal.SIGTERM, 10.0),)
POSTGRES = {"shared_preload_libraries": "pg_stat_statements", "max_connections": "100"}
# nothing of the background may run into a measurement
QUIET = {
    "TURNKEEP_HISTORY_SWEEP_INTERVAL_SECONDS": "0",
    "TURNKEEP_ORCHESTRATOR_BACKGROUND_TURNS": "0",
    "TURNKEEP_LOG_LEVEL": "warning",
}
# the MCP server is of this machine, which no request could reach otherwise
REACHABLE = {"TURNKEEP_OUTBOUND_ALLOW_HOSTS": "127.0.0.1"}

T = TypeVar("T")

_CPU_CLOCK = 2


class TargetMissing(Exception):
    """A target did not start, or does not answer as it should; the message says which and why."""

    def __init__(self, name: str, why: object) -> None:
        super().__init__(f"{name} is missing: {why}")


@dataclass(frozen=True, slots=True)
class Target:
    """Running processes that answer at `url`; `start_seconds` from the fork to the line that says that they are ready."""

    name: str
    url: str
    pids: tuple[int, ...]
    start_seconds: float = 0.0

    def cpu_seconds(self) -> float:
        """What its processes have computed so far, in all their threads."""
        return sum(time.clock_gettime(~pid << 3 | _CPU_CLOCK) for pid in self.pids)

    def resident_mb(self) -> float:
        """The memory that its processes hold now."""
        return sum(_status_kb(pid, "VmRSS:") for pid in self.pids) / 1024


@dataclass(frozen=True, slots=True)
class Stand:
    """Everything that a run measures. `history` is the gRPC address of the three processes' history service."""

    engine: Target
    pass_through: Target
    turnkeep: Target
    three: Target
    mcp_server: Target
    history: str
    database: str


@asynccontextmanager
async def open_stand(folder: Path) -> AsyncIterator[Stand]:
    """Starts all targets over a fresh database in `folder`. Raises TargetMissing."""
    async with AsyncExitStack() as stack:
        start = _Starter(stack, folder)
        engine = await start("engine", "bench.engine")
        pass_through = await start("pass-through", "bench.passthrough", engine.url)
        database = (await stack.enter_async_context(open_postgres(folder / "data", options=POSTGRES))).dsn
        mcp_server = await start("MCP server", "bench.mcp_server")
        up = ("launcher.command", "up", "--engine", engine.url, "--port", "0", "--database-url", database)
        turnkeep = await start("Turnkeep", *up, environ=QUIET | REACHABLE)
        three, history = await _three_processes(start, folder, engine.url, database)
        yield Stand(engine, pass_through, turnkeep, three, mcp_server, history, database)


async def _three_processes(start: "_Starter", folder: Path, engine: str, database: str) -> tuple[Target, str]:
    """The three services, each a process of its own, over unix sockets."""
    history, orchestrator = (f"unix:{folder}/{name}.sock" for name in ("h", "o"))
    environ = QUIET | {
        "TURNKEEP_HISTORY_LISTEN": history,
        "TURNKEEP_HISTORY_METRICS_LISTEN": "",
        "TURNKEEP_HISTORY_DATABASE_URL": database,
        "TURNKEEP_ENGINE_URL": engine,
        "TURNKEEP_ORCHESTRATOR_LISTEN": orchestrator,
        "TURNKEEP_ORCHESTRATOR_METRICS_LISTEN": "",
        "TURNKEEP_ORCHESTRATOR_HISTORY": history,
        "TURNKEEP_EDGE_HISTORY": history,
        "TURNKEEP_EDGE_ORCHESTRATOR": orchestrator,
        "TURNKEEP_EDGE_PORT": "0",
    }
    rooms = [
        await start(f"Turnkeep's {room}", "launcher.command", "serve", room, environ=environ)
        for room in ("history", "orchestrator", "edge")
    ]
    pids = tuple(pid for room in rooms for pid in room.pids)
    return Target("Turnkeep as three processes", rooms[-1].url, pids), history


async def with_cpu(target: Target, work: Awaitable[T]) -> tuple[T, float]:
    """What `work` gives, and the CPU seconds that `target` took for it. Raises TargetMissing."""
    try:
        before = target.cpu_seconds()
        return await work, target.cpu_seconds() - before
    except (LoadError, OSError) as exc:
        raise TargetMissing(target.name, exc) from exc


class _Starter:
    """Starts targets that end with the stack."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder

    async def __call__(self, name: str, module: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Target:
        started = time.perf_counter()
        log = self._folder / f"{name}.log"
        with log.open("wb") as errors:
            process = await start_child(
                *(sys.executable, "-m", module, *arguments),
                directory=ROOT,
                environ={**environment(), **(environ or {})},
                stdout=asyncio.subprocess.PIPE,
                stderr=errors.fileno(),
            )
        self._stack.push_async_callback(stop_child, process, STOP_STEPS)
        url = await _url_from(process)
        if not url:
            raise TargetMissing(name, log.read_text(errors="replace").strip()[-500:] or "it did not say that it is ready")
        return Target(name, url, (process.pid,), time.perf_counter() - started)


async def _url_from(process: Process) -> str:
    """The last word of the first line that a process prints, which is where it serves; empty when it ends or stays silent instead."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
    except TimeoutError:
        return ""
    return line.decode().split()[-1] if line.strip() else ""


def _status_kb(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise ProcessLookupError(pid)
