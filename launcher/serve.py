"""`turnkeep serve ROOM...`: any set of rooms in one process, over a database and an engine that others run."""

import asyncio

from launcher.living import live
from launcher.rooms import Opened, RoomSettings, open_rooms
from svckit import lifecycle, logs

READY = "Serving"


def run_serve(names: frozenset[str], settings: RoomSettings) -> None:
    """Serves until a signal asks for the end. Raises what the rooms raise while they open."""
    log = settings.history.log
    logs.configure(log.level, log.format)
    lifecycle.run(lambda stop: _serve(stop, names, settings))


async def _serve(stop: asyncio.Event, names: frozenset[str], settings: RoomSettings) -> None:
    await live(stop, open_rooms(names, settings), _announce)


def _announce(opened: Opened) -> None:
    print(READY, ", ".join(f"{room} at {address}" for room, address in opened.addresses.items()), flush=True)
