"""A service as a process of its own: settings from a file and the environment, a metrics listener, and the room until a signal comes."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from svckit import lifecycle, logs
from svckit.memory import keep_what_is_here
from svckit.settings import LogSettings, SettingsError, environment, load
from svckit.telemetry import open_metrics_listener

BAD_SETTINGS = 2

T = TypeVar("T", bound=msgspec.Struct)


class Room(Protocol):
    """What a room's `open_...` yields."""

    @property
    def address(self) -> str | None:
        """Where it is reached, or None when it listens nowhere."""


def serve_alone(
    name: str,
    kind: type[T],
    open_room: Callable[[T], AbstractAsyncContextManager[Room]],
    log_of: Callable[[T], LogSettings],
    metrics_listen: Callable[[T], str] = lambda settings: "",
) -> int:
    """Runs one room until SIGTERM or SIGINT; gives the exit status: 0, or 2 for settings that do not fit."""
    parser = argparse.ArgumentParser(prog=name, description=f"Runs {name} alone, on the settings of a file and the environment.")
    parser.add_argument("--config", type=Path, help="the settings file, turnkeep.toml")
    arguments = parser.parse_args()
    try:
        settings = load(kind, file=arguments.config, environ=environment())
        logs.configure(log_of(settings).level, log_of(settings).format)
        lifecycle.run(lambda stop: _serve(name, open_room(settings), metrics_listen(settings), stop))
    except SettingsError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_SETTINGS
    return 0


async def _serve(name: str, opening: AbstractAsyncContextManager[Room], metrics_listen: str, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        if metrics_listen:
            await stack.enter_async_context(open_metrics_listener(metrics_listen))
        room = await stack.enter_async_context(opening)
        keep_what_is_here()
        print(f"{name} serves at {room.address}", flush=True)
        await stop.wait()
