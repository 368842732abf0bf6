"""When history is swept: at intervals, batch by batch, until there is nothing left to do. What is swept is the store's business."""

import asyncio
import random

from history_svc.stores import Stores
from svckit.errors import ServiceError
from svckit.logs import get_logger

log = get_logger(__name__)


async def keep_sweeping(stores: Stores, interval: float) -> None:
    """Sweeps for ever; the pauses are spread, so that many processes do not come at once."""
    while True:
        await asyncio.sleep(interval * random.uniform(0.75, 1.25))
        try:
            await sweep(stores)
        except ServiceError as error:
            log.warning("a sweep failed and comes again", reason=error.reason)


async def sweep(stores: Stores) -> None:
    """Deletes what has expired, then the items that nothing names any more."""
    turns, events = stores.turns, stores.events
    for batch in (turns.expire_responses, turns.expire_keys, turns.expire_claims, events.sweep, turns.sweep_tree):
        while await batch():
            pass
