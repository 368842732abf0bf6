"""Runs the `turnkeep` command as its users do: as a process, whose lines, exit status and children are looked at from outside."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 50

Finished = subprocess.CompletedProcess[str]


class Running:
    """A process that runs; its stdout is read line by line, its stderr is kept."""

    def __init__(self, process: subprocess.Popen[str], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr
        # a process that says nothing must not hold up the test for ever
        self._alarm = threading.Timer(WAIT_SECONDS, process.kill)
        self._alarm.daemon = True
        self._alarm.start()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def line_with(self, text: str) -> str:
        """The next line of stdout that has `text` in it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return line.rstrip("\n")
        raise AssertionError(f"ended without saying {text!r}: {self.stderr}")

    def url(self) -> str:
        """The address of a house that is up."""
        return self.line_with("Turnkeep is ready at").split()[-1]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal to the process group as a terminal or an init system does; gives the exit status."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        status = self.process.wait(WAIT_SECONDS)
        self._alarm.cancel()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class Turnkeep:
    """Starts `turnkeep ...` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._running: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for running in self._running:
            running.end()

    def start(self, *arguments: str | Path, environ: Mapping[str, str] | None = None) -> Running:
        """Starts the command and lets it run."""
        stderr = self.folder / f"stderr-{len(self._running)}"
        with stderr.open("w") as file:
            process = subprocess.Popen(
                command(*arguments),
                cwd=self.folder,
                env=environment(environ),
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        self._running.append(Running(process, stderr))
        return self._running[-1]

    def up(self, *arguments: str | Path, engine: str = "http://127.0.0.1:9/v1", environ: Mapping[str, str] | None = None) -> Running:
        """Starts `turnkeep up` on any free port, by default before an engine that does not answer."""
        return self.start("up", "--data", self.data, "--port", "0", "--engine", engine, *arguments, environ=environ)

    def run(self, *arguments: str | Path, environ: Mapping[str, str] | None = None) -> Finished:
        """Runs the command to its end."""
        return subprocess.run(
            command(*arguments),
            cwd=self.folder,
            env=environment(environ),
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "launcher.command", *map(str, arguments)]


def environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """Ours without settings that somebody has set for a Turnkeep of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    return {**kept, "PYTHONPATH": str(ROOT), **(more or {})}


def processes_about(text: str) -> set[int]:
    """The ids of processes that have `text` in their command or in their environment; zombies have neither."""
    return set(_matching(text.encode()))


def _matching(text: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_bytes() or text in (folder / "environ").read_bytes():
                yield int(folder.name)
        except OSError:
            continue
