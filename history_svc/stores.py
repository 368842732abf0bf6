"""All stores of one database over the same three pools, as a value. What each of them does stands in its own file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from history_svc.bell import Bell
from history_svc.conversations import Conversations
from history_svc.event_log import EventLog
from history_svc.pools import open_pools
from history_svc.settings import HistorySettings
from history_svc.store import Store
from history_svc.turn_queue import TurnQueue


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a history service."""

    turns: Store
    conversations: Conversations
    queue: TurnQueue
    events: EventLog


@asynccontextmanager
async def open_stores(settings: HistorySettings) -> AsyncIterator[Stores]:
    """Opens pools and bell for the block; a database that does not answer yet is no error here."""
    async with open_pools(settings) as pools, Bell(pools.background, settings.listen_url or settings.database_url).opened() as bell:
        yield Stores(
            Store(pools, settings, bell),
            Conversations(pools, settings),
            TurnQueue(pools, settings, bell),
            EventLog(pools, settings, bell),
        )
