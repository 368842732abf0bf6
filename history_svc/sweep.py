"""When history is swept: at intervals, batch by batch, until there is nothing left to do. What is swept is the store's business."""

import asyncio
import random

from history_svc.store import Store
from svckit.errors import ServiceError
from svckit.logs import get_logger

log = get_logger(__name__)


async def keep_sweeping(store: Store, interval: float) -> None:
    """Sweeps for ever; the pauses are spread, so that many processes do not come at once."""
    while True:
        await asyncio.sleep(interval * random.uniform(0.75, 1.25))
        try:
            await sweep(store)
        except ServiceError as error:
            log.warning("a sweep failed and comes again", reason=error.reason)


async def sweep(store: Store) -> None:
    """Deletes expired responses, then the items that nothing names any more."""
    while await store.expire_responses():
        pass
    while await store.sweep_tree():
        pass
