"""Gateways as users run them: `turnkeep serve` processes over a database and an engine that belong to the tests.

A `Gateway` starts, kills and restarts processes and knows the URL of the edge. What is asked of it over HTTP is `client.py`'s business.
"""

import asyncio
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

Sections = Mapping[str, Mapping[str, object]]

ROOMS = ("history", "orchestrator", "edge")
ONE_PROCESS: tuple[tuple[str, ...], ...] = (ROOMS,)
THREE_PROCESSES = tuple((room,) for room in ROOMS)
START_SECONDS = 45.0
STOP_SECONDS = 20.0
PYTHON = [sys.executable, "-P", "-m", "launcher.command"]
END_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
# What stands in a log only when something went wrong that nobody foresaw.
UNFORESEEN = (b"unexpected exception", b"Traceback", b"never retrieved", b"was destroyed but it is pending")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway's world is: its database, its engine, the owners' keys, and settings that differ from the defaults."""

    database_url: str
    engine_url: str
    keys: Mapping[str, str] = field(default_factory=dict)
    settings: Sections = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


class Gateway:
    """The processes of one gateway, each with the rooms of one group. Used as a context manager."""

    def __init__(self, place: Place, groups: tuple[tuple[str, ...], ...] = ONE_PROCESS) -> None:
        self.place = place
        self.groups = groups
        self.url = ""
        # a socket's path may have 107 bytes, which the directories of pytest exceed
        self.directory = Path(tempfile.mkdtemp(prefix="tkend-"))
        self.log = self.directory / "gateway.log"
        self._processes: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.prepare()
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def prepare(self) -> None:
        """Writes the settings that its processes read."""
        (self.directory / "turnkeep.toml").write_text(_toml(self._settings()), "utf-8")

    def start(self) -> None:
        """Starts what does not run, and waits until all serve. To be called in the main thread."""
        self._await_ready(self._spawn_missing())

    async def restart(self) -> None:
        """The same, and the event loop runs meanwhile."""
        # forked here and not in the other thread: what is forked would end with that thread
        started = self._spawn_missing()
        await asyncio.to_thread(self._await_ready, started)

    def kill(self, room: str) -> None:
        """kill -9 of the process that has this room."""
        group = self.group_of(room)
        process = self._processes.pop(group)
        process.kill()
        process.wait()
        _closed(process)

    def stop(self, room: str) -> int:
        """SIGTERM to the process that has this room; gives its exit status."""
        process = self._processes.pop(self.group_of(room))
        process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        finally:
            process.kill()
            _closed(process)

    def close(self) -> None:
        """Ends all processes, the edge first, and removes their files."""
        for group in reversed(self.groups):
            if group in self._processes:
                self.stop(group[-1])
        shutil.rmtree(self.directory, ignore_errors=True)

    def group_of(self, room: str) -> tuple[str, ...]:
        return next(group for group in self.groups if room in group)

    def address(self, room: str) -> str:
        """Where a room's gRPC listens."""
        return f"unix:{self.directory}/{room}.sock"

    def log_bytes(self, start: int = 0) -> bytes:
        """What all processes have logged from byte `start` on."""
        if not self.log.exists():
            return b""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read()

    def _spawn_missing(self) -> list[tuple[str, ...]]:
        missing = [group for group in self.groups if group not in self._processes]
        for group in missing:
            self._processes[group] = self._spawned(group)
        return missing

    def _spawned(self, group: tuple[str, ...]) -> subprocess.Popen[bytes]:
        command = [*END_WITH_US, *PYTHON, "serve", *group, "--config", str(self.directory / "turnkeep.toml")]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environ | dict(self.place.environ))

    def _await_ready(self, groups: Iterable[tuple[str, ...]]) -> None:
        for group in groups:
            line = first_line(self._processes[group])
            if not line.startswith("Serving"):
                raise RuntimeError(f"{group} did not start: {line!r} {self.log_bytes().decode(errors='replace')[-4000:]}")
            if "edge" in group:
                self.url = line.rpartition("edge at ")[2].strip()

    def _settings(self) -> Sections:
        alone = len(self.groups) > 1
        own: Sections = {
            "log": {"level": "info"},
            "history": {"database_url": self.place.database_url, "listen": self.address("history") if alone else "", "metrics_listen": ""},
            "orchestrator": {
                "listen": self.address("orchestrator") if alone else "",
                "history": self.address("history"),
                "metrics_listen": "",
            },
            "edge": {"port": 0, "history": self.address("history"), "orchestrator": self.address("orchestrator")},
            "engine": {"url": self.place.engine_url},
            "api_keys": self.place.keys,
        }
        return {name: {**own.get(name, {}), **self.place.settings.get(name, {})} for name in {*own, *self.place.settings}}


def _toml(sections: Sections) -> str:
    # strings, numbers, booleans and lists of them are written alike in JSON and in TOML
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()) for name, values in sections.items()
    ]
    return "\n".join(lines)


def first_line(process: subprocess.Popen[bytes]) -> str:
    """What a process says first, or nothing when it says nothing in time or ends."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        if not waiting.select(START_SECONDS):
            return ""
    return process.stdout.readline().decode()


def _closed(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port on 127.0.0.1 that nobody else is given, for a listener that comes and goes."""
    with socket.socket() as holder:
        # bound and not listening: whoever sets SO_REUSEADDR as well, as asyncio does, may listen there
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def twin_of(gateway: Gateway) -> Iterator[Gateway]:
    """A second gateway, one process, over the same database and engine."""
    with ExitStack() as stack:
        yield stack.enter_context(Gateway(gateway.place))


async def until_ready(url: str, ready: bool = True, seconds: float = START_SECONDS) -> None:
    """Waits until /readyz says so, or that it is not."""
    deadline = time.monotonic() + seconds
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{url}/readyz") as answer:
                said = await answer.text()
            if (answer.status == 200) is ready:
                return
            assert time.monotonic() < deadline, said
