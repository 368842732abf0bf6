"""How the command's processes live: open, announce, wait for a signal, close in order.

A signal while things are still being opened gives them up.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

from svckit.memory import keep_what_is_here

T = TypeVar("T")


async def live(stop: asyncio.Event, opening: AbstractAsyncContextManager[T], announce: Callable[[T], None]) -> None:
    """Holds `opening` open from its start until `stop` is set."""
    opened = asyncio.Event()
    life = asyncio.create_task(_life(stop, opening, announce, opened))
    signal = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({life, signal}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.is_set() and stop.is_set():
            life.cancel()
        with suppress(asyncio.CancelledError):
            await life
    finally:
        signal.cancel()


async def _life(stop: asyncio.Event, opening: AbstractAsyncContextManager[T], announce: Callable[[T], None], opened: asyncio.Event) -> None:
    async with opening as value:
        opened.set()
        keep_what_is_here()
        announce(value)
        await stop.wait()
        print("Stopping: what runs may end first, for some seconds ...", file=sys.stderr, flush=True)
