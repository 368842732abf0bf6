"""The lease of a conversation: one turn at a time, kept alive while the turn runs.

It is taken before the conversation is loaded. The commit of the turn gives it back; a turn that ends without one gives it back here. A turn
whose lease has passed on is not stopped: its fencing token tells the store that it is late.
"""

import asyncio
import uuid
from collections.abc import Coroutine

from orchestrator_svc.errors import HistoryUnavailable
from orchestrator_svc.history import History
from orchestrator_svc.turn.events import Saved, SaveFailed
from svckit.errors import RemoteError
from svckit.logs import get_logger

LIFETIME_SECONDS = 30.0

Saving = Coroutine[object, object, Saved | SaveFailed]

log = get_logger(__name__)


class Lease:
    """A lease that is held; `token` is its fencing token."""

    def __init__(self, history: History, owner: str, conversation_id: str, token: int) -> None:
        self._history = history
        self._owner = owner
        self._conversation_id = conversation_id
        self._renewing = asyncio.create_task(_renewed(history, owner, conversation_id, token))
        self.token = token
        self.is_spent = False

    async def release(self) -> None:
        """Gives the lease back, unless a commit has."""
        self._renewing.cancel()
        if not self.is_spent:
            self.is_spent = True
            await self._history.release(self._owner, self._conversation_id, self.token)

    def spent_on(self, saving: Saving) -> Saving:
        """The turn's commit, which gives the lease back; one that fails has not. The lease counts as spent from now on."""
        self.is_spent = True
        return self._committed(saving)

    async def _committed(self, saving: Saving) -> Saved | SaveFailed:
        saved = await saving
        if isinstance(saved, SaveFailed):
            self.is_spent = False
            await self.release()
        return saved


async def take_lease(history: History, owner: str, conversation_id: str) -> Lease:
    """Takes the lease of a conversation. Raises ConversationNotFound, RemoteError (conversation_locked) and HistoryUnavailable."""
    token = await history.acquire(owner, conversation_id, uuid.uuid4().hex, LIFETIME_SECONDS)
    return Lease(history, owner, conversation_id, token)


async def _renewed(history: History, owner: str, conversation_id: str, token: int) -> None:
    """Renews a lease until it is lost."""
    while True:
        await asyncio.sleep(LIFETIME_SECONDS / 3)
        try:
            await history.renew(owner, conversation_id, token, LIFETIME_SECONDS)
        except HistoryUnavailable:
            continue
        except RemoteError as error:
            log.warning("a turn has lost its conversation", reason=error.reason, conversation_id=conversation_id)
            return
