"""Conversations, as far as their items must be understood: those that a client puts in are read like any input.

Running turns in a conversation is the desk's business; everything else about conversations is the history service's.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator_svc.context.pairing import still_open
from orchestrator_svc.context.sealing import Seals
from orchestrator_svc.context.unsealing import unsealed
from orchestrator_svc.errors import ConversationNotFound, InvalidRequest, Unsupported
from orchestrator_svc.history import History
from orchestrator_svc.input_items import read_input
from orchestrator_svc.items import Item
from svckit.ids import IdBlock, new_block, new_tree_key, tree_key_of

MAX_ITEMS = 20


@dataclass(frozen=True, slots=True)
class Created:
    """A conversation that was made; `created_at` is in seconds since 1970."""

    id: str
    created_at: int


class Conversations:
    """Puts items into conversations."""

    def __init__(self, history: History, seals: Seals) -> None:
        self._history = history
        self._seals = seals

    async def create(self, owner: str, metadata: bytes, items: Sequence[bytes]) -> Created:
        """Makes a conversation with its first items. Raises InvalidRequest, Unsupported, HistoryUnavailable."""
        block = new_block(new_tree_key())
        read = self._read(owner, block, items)
        created = Created(block.id("conv"), int(time.time()))
        await self._history.create_conversation(owner, created.id, metadata, read, still_open((), read, "items"), created.created_at)
        return created

    async def add(self, owner: str, conversation_id: str, items: Sequence[bytes]) -> tuple[Item, ...]:
        """Appends items, and gives them with their ids. Raises like `create`, and ConversationNotFound and RemoteError."""
        tree_key = tree_key_of(conversation_id)
        if tree_key is None:
            raise ConversationNotFound(conversation_id=conversation_id[:64])
        read = self._read(owner, new_block(tree_key), items)
        head, _ = await self._history.load_conversation(owner, conversation_id)
        left_open = set(still_open(head.open_call_ids, read, "items"))
        opened = tuple(call_id for call_id in left_open if call_id not in head.open_call_ids)
        closed = tuple(call_id for call_id in head.open_call_ids if call_id not in left_open)
        await self._history.add_items(owner, conversation_id, read, opened, closed)
        return read

    def _read(self, owner: str, block: IdBlock, items: Sequence[bytes]) -> tuple[Item, ...]:
        if len(items) > MAX_ITEMS:
            raise InvalidRequest(f"At most {MAX_ITEMS} items can be added at a time.", param="items")
        offsets = iter(range(1, MAX_ITEMS + 1))
        read = read_input(items, lambda prefix: block.id(prefix, next(offsets)), "items")
        for position, item in enumerate(read):
            if item.type in _OF_TURNS:
                raise Unsupported(what=f"An item of type '{item.type}' in a conversation", param=f"items[{position}].type")
        return tuple(unsealed(item, self._seals, owner, f"items[{position}]") for position, item in enumerate(read))


# What says something about a turn and is nothing in itself.
_OF_TURNS = ("item_reference", "compaction_trigger")
