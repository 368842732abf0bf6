"""The two shapes of a running house that rounds are played in: what may be killed in it, and how it stands up again.

`open_up` is `turnkeep up` with its own Postgres in one folder; `open_three` is three `turnkeep serve` processes over a Postgres of ours.
Everything listens on loopback or on sockets of ours; only processes that were started here are killed, by their ids.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from psycopg.conninfo import make_conninfo

from launcher.cluster import Note
from launcher.postgres import open_postgres
from tests.end_to_end.gateway import END_WITH_US, PYTHON, THREE_PROCESSES, Gateway, Place, Sections, first_line, reserved_port, until_ready

SETTINGS: Sections = {"orchestrator": {"commit_timeout_seconds": 20.0}, "log": {"level": "warning"}}


@dataclass(frozen=True, slots=True)
class House:
    """A running house: its shape's name, its edge, its database, what may be killed, and how it comes back."""

    name: str
    targets: tuple[str, ...]
    url: Callable[[], str]
    dsn: Callable[[], str]
    kill: Callable[[str], None]
    start_again: Callable[[], Awaitable[None]]

    async def recover(self) -> None:
        """Starts what is dead and waits until the house is ready."""
        await self.start_again()
        await until_ready(self.url())


@asynccontextmanager
async def open_up(engine_url: str) -> AsyncIterator[House]:
    """`turnkeep up`: killed as a whole, or only its Postgres."""
    with _folder() as folder, reserved_port() as port:
        up = _Up(engine_url, port, folder)
        up.start()
        try:
            await up.ready()
            yield House("up", ("everything", "postgres"), lambda: up.url, up.dsn, up.kill, up.start_again)
        finally:
            await asyncio.to_thread(up.stop)


@asynccontextmanager
async def open_three(engine_url: str) -> AsyncIterator[House]:
    """A process for each room, and Postgres: any of the four is killed."""
    with _folder() as folder, reserved_port() as port:
        async with open_postgres(folder / "data") as postgres:
            # the edge comes back where its clients look for it
            settings: Sections = {**SETTINGS, "edge": {"port": port}}
            gateway = Gateway(Place(postgres.dsn, engine_url, settings=settings), THREE_PROCESSES)

            def kill(target: str) -> None:
                if target == "postgres":
                    os.kill(postgres.pid, signal.SIGKILL)
                else:
                    gateway.kill(target)

            gateway.prepare()
            try:
                await gateway.restart()
                targets = ("history", "postgres", "orchestrator", "edge")
                yield House("three", targets, lambda: gateway.url, lambda: postgres.dsn, kill, gateway.restart)
            finally:
                await asyncio.to_thread(gateway.close)


class _Up:
    """The process of `turnkeep up`."""

    def __init__(self, engine_url: str, port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._data = folder / "data"
        self._log = folder / "up.log"
        options = ["--engine", engine_url, "--port", str(port), "--data", str(self._data)]
        self._command = [*END_WITH_US, *PYTHON, "up", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """To be called in the main thread: what is forked ends with the thread that forks."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)

    async def ready(self) -> None:
        assert self._process is not None
        line = await asyncio.to_thread(first_line, self._process)
        if not line.startswith("Turnkeep is ready"):
            raise RuntimeError(f"turnkeep up did not start: {self._log.read_text(errors='replace')[-4000:]}")

    def kill(self, target: str) -> None:
        if target == "postgres":
            os.kill(int((self._data / "postgres" / "postmaster.pid").read_text().splitlines()[0]), signal.SIGKILL)
            return
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._forget()

    async def start_again(self) -> None:
        if self._process is None:
            self.start()
            await self.ready()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._forget()

    def dsn(self) -> str:
        """The embedded database, which only its owner's note tells the way to."""
        note = msgspec.json.decode((self._data / "owner.lock").read_bytes(), type=Note)
        return make_conninfo(host=note.sockets, port="5432", user="postgres", dbname="postgres")

    def _forget(self) -> None:
        assert self._process is not None
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tkchaos-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
