"""The log of stream events of background responses: appended in batches by whoever runs the turn, read by any number of viewers anywhere.

Viewers are given what is stored and nothing else, so none of them is ever ahead of the log.
"""

import asyncio
from collections.abc import AsyncGenerator

from history_svc.bell import DEAF_SECONDS, HEARING_SECONDS, Bell
from history_svc.errors import EventsGone, LeaseLost, ResponseNotFound, WatchTimeout
from history_svc.model import LogPart, NewEvents, events_behind
from history_svc.pools import Pools
from history_svc.reading import Values, key_of, rows
from history_svc.settings import HistorySettings

PART_BYTES = 256 * 1024  # what one viewer holds of a log at most, but for a single batch that is larger
READERS = 2  # connections that viewers use at a time, however many of them wake at once
LAST_EVENT_SECONDS = 5.0  # how long after the end of a turn its last event may still come


class EventLog:
    """The event logs of one database."""

    def __init__(self, pools: Pools, settings: HistorySettings, bell: Bell) -> None:
        self._pools = pools
        self._bell = bell
        self._reading = asyncio.Semaphore(READERS)
        self._keep_seconds = settings.event_log_seconds
        self._longest_turn_seconds = settings.longest_turn_seconds
        self._sweep_batch = settings.sweep_batch

    async def append(self, owner: str, response_id: str, token: int, new: NewEvents) -> None:
        """Appends events to the log of a turn whose lease the caller has; those that are there already are passed over."""
        values: Values = {
            **key_of(owner, "response_id", response_id, LeaseLost),
            "token": token,
            "first_number": new.first_number,
            "types": new.types,
            "events": new.events,
            "ended": new.ended,
        }
        ((may,),) = await self._pools.commit.run(lambda connection: rows(connection, "append_events", values))
        if not may:
            raise LeaseLost(id=response_id)
        self._bell.ring(response_id)

    async def watch(self, owner: str, response_id: str, after: int, *, only_logged: bool = False) -> AsyncGenerator[LogPart, None]:
        """The events behind a number, as they are stored, until the last one of the turn; or those only that are stored already.

        The last part has no events where the turn's last ones were lost.
        """
        key = key_of(owner, "response_id", response_id, ResponseNotFound)
        now = asyncio.get_running_loop().time
        quiet_until = now() + self._longest_turn_seconds
        with self._bell.heard(response_id) as ear:
            while True:
                ear.forget()
                part = await self._part(key, after)
                if part.events:
                    after = part.events[-1].number
                    yield part
                    quiet_until = now() + self._longest_turn_seconds
                elif part.ended or only_logged:
                    if part.lost_behind is not None and after <= part.lost_behind and not only_logged:
                        yield part
                    return
                elif now() >= quiet_until:
                    raise WatchTimeout(id=response_id)
                else:
                    await ear.wait(DEAF_SECONDS if part.turn_ended else HEARING_SECONDS)

    async def _part(self, key: Values, after: int) -> LogPart:
        values: Values = {
            **key,
            "after": after,
            "keep_seconds": self._keep_seconds,
            "last_event_seconds": LAST_EVENT_SECONDS,
            "limit": PART_BYTES,
        }
        async with self._reading:
            found = await self._pools.read.run(lambda connection: rows(connection, "events_behind", values))
        if not found:
            raise ResponseNotFound(id=key["response_id"])
        is_kept, closed, is_over, turn_ended, last_number = found[0][:5]
        if not is_kept:
            raise EventsGone(id=key["response_id"])
        batches = [row[5:] for row in found if row[5] is not None]
        events = [event for first, types, data in batches for event in events_behind(first, types, data, after)]
        return LogPart(events, closed or is_over, turn_ended, last_number if is_over and not closed else None)

    async def sweep(self) -> bool:
        """Deletes a batch of the events of a log whose time is over; says whether there was one."""
        values: Values = {"keep_seconds": self._keep_seconds, "limit": self._sweep_batch}
        return bool(await self._pools.background.run(lambda connection: rows(connection, "sweep_events", values)))
