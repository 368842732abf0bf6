"""The store of conversations and their leases: each method is one transaction, or reads what no transaction changes.

A conversation's head and list change by deltas only: what is appended and what is taken out, never a value that was read before.
"""

import math

from psycopg.errors import NoDataFound

from history_svc.errors import (
    ConversationConflict,
    ConversationFull,
    ConversationLocked,
    ConversationNotFound,
    HistoryOverloaded,
    ItemNotFound,
    LeaseLost,
)
from history_svc.model import (
    Additions,
    Conversation,
    Item,
    NewConversation,
    Page,
    PageRequest,
    Removal,
    StoredConversation,
    StoredItem,
    call_id_of,
    columns_of,
    is_output,
    newest_shown,
    other_half,
    part_of,
    places_of,
    spans_of,
    spellings_of,
)
from history_svc.pools import Connection, Pools
from history_svc.reading import Values, key_of, page_of, rows, written
from history_svc.settings import HistorySettings
from svckit.errors import ServiceError

ATTEMPTS = 5  # to take an item out of a conversation that others are changing
LONGEST_RETRY_SECONDS = 5  # a turn mostly ends sooner than its lease


class Conversations:
    """Conversations in one database."""

    def __init__(self, pools: Pools, settings: HistorySettings) -> None:
        self._pools = pools
        self._tree_max_items = settings.tree_max_items

    async def create(self, new: NewConversation) -> Conversation:
        """Makes a conversation; one that is there already is given as it is."""
        values: Values = {
            "tree_key": new.tree_key,
            "owner": new.owner,
            "conversation_id": new.id,
            "metadata": new.metadata,
            "open_calls": new.open_calls,
            "created_at": new.created_at,
            **new.items.columns(),
        }
        (outcome,) = await self._pools.commit.run(lambda connection: written(connection, "create_conversation", values))
        if outcome == "conflict":
            raise ConversationConflict(id=new.id)
        return await self.get(new.owner, new.id)

    async def get(self, owner: str, conversation_id: str) -> Conversation:
        """A conversation."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)
        return (await self._pools.read.run(lambda connection: _stored(connection, key))).conversation

    async def update(self, owner: str, conversation_id: str, metadata: bytes) -> Conversation:
        """Replaces the metadata of a conversation."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)
        values = {**key, "metadata": metadata}
        updated = await self._pools.commit.run(lambda connection: rows(connection, "update_conversation", values))
        if not updated:
            raise ConversationNotFound(id=conversation_id)
        return Conversation(conversation_id, *updated[0])

    async def delete(self, owner: str, conversation_id: str) -> None:
        """Deletes a conversation; its items stay until a sweep finds that nothing names them."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)
        deleted = await self._pools.commit.run(lambda connection: rows(connection, "delete_conversation", key), repeatable=False)
        if not deleted:
            raise ConversationNotFound(id=conversation_id)

    async def add_items(self, owner: str, conversation_id: str, additions: Additions) -> None:
        """Appends items to a conversation that no turn works on."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)
        values: Values = {
            **key,
            "opened_calls": additions.opened_calls,
            "closed_calls": additions.closed_calls,
            "tree_max_items": self._tree_max_items,
            **additions.items.columns(),
        }

        async def add(connection: Connection) -> None:
            try:
                ((outcome,),) = await rows(connection, "add_conversation_items", values)
            except NoDataFound as exc:
                raise ConversationNotFound(id=conversation_id) from exc
            if outcome != "added":
                raise await _refusal(connection, outcome, key)

        await self._pools.commit.run(add, repeatable=False)

    async def page(self, owner: str, conversation_id: str, page: PageRequest) -> Page:
        """One page of a conversation's items."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)

        async def read(connection: Connection) -> Page:
            return await page_of(connection, key, (await _stored(connection, key)).listed, page)

        return await self._pools.read.run(read)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> Item:
        """The newest item of a conversation with an id."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)

        async def read(connection: Connection) -> Item:
            found = await _item(connection, key, await _stored(connection, key), item_id)
            return Item(found.id, found.type, found.body)

        return await self._pools.read.run(read)

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Conversation:
        """Takes an item out of a conversation, and the other half of its call and output out of the prompt."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)

        async def remove(connection: Connection) -> Conversation:
            for _ in range(ATTEMPTS):
                stored = await _stored(connection, key)
                removal = await _removal(connection, key, stored, item_id)
                ((outcome,),) = await rows(connection, "remove_conversation_items", {**key, **removal._asdict()})
                if outcome == "removed":
                    return stored.conversation
                if outcome != "changed":
                    raise await _refusal(connection, outcome, key)
            raise HistoryOverloaded()

        return await self._pools.commit.run(remove, repeatable=False)

    async def acquire_lease(self, owner: str, conversation_id: str, holder: str, seconds: float) -> int:
        """Takes the lease of a conversation for one turn; gives the fencing token."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)
        values = {**key, "holder": holder, "lifetime": seconds}

        async def acquire(connection: Connection) -> int:
            taken = await rows(connection, "acquire_lease", values)
            if not taken:
                raise await _refusal(connection, "locked", key)
            return int(taken[0][0])

        return await self._pools.commit.run(acquire)

    async def renew_lease(self, owner: str, conversation_id: str, token: int, seconds: float) -> None:
        """Prolongs a lease."""
        key = key_of(owner, "conversation_id", conversation_id, LeaseLost)
        values = {**key, "token": token, "lifetime": seconds}
        if not await self._pools.commit.run(lambda connection: rows(connection, "renew_lease", values)):
            raise LeaseLost(id=conversation_id)

    async def release_lease(self, owner: str, conversation_id: str, token: int) -> None:
        """Gives a lease back; one that has passed on is left alone."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)
        await self._pools.commit.run(lambda connection: rows(connection, "release_lease", {**key, "token": token}))


async def _stored(connection: Connection, key: Values) -> StoredConversation:
    """A conversation with its list and its head. Raises ConversationNotFound."""
    found = await rows(connection, "conversation", key)
    if not found:
        raise ConversationNotFound(id=key["conversation_id"])
    created_at, metadata, revision, listed_firsts, listed_ends, head_firsts, head_ends = found[0]
    conversation = Conversation(str(key["conversation_id"]), created_at, metadata)
    return StoredConversation(conversation, revision, spans_of(listed_firsts, listed_ends), spans_of(head_firsts, head_ends))


async def _item(connection: Connection, key: Values, stored: StoredConversation, item_id: str) -> StoredItem:
    """The newest item with an id that a conversation lists. Raises ItemNotFound."""
    found = [StoredItem(*row) for row in await rows(connection, "items_by_id", {**key, "item_id": item_id})]
    item = newest_shown(found, stored.listed)
    if item is None:
        raise ItemNotFound(id=item_id)
    return item


async def _removal(connection: Connection, key: Values, stored: StoredConversation, item_id: str) -> Removal:
    """What must go, and from where, when an item is taken out."""
    item = await _item(connection, key, stored, item_id)
    call_id = call_id_of(item.body)
    half = await _other_half(connection, key, stored, item, call_id) if call_id else None
    closed = [call_id] if call_id and not is_output(item.type) else []
    return Removal(stored.revision, [item.number], [item.number] if half is None else [item.number, half], closed)


async def _other_half(connection: Connection, key: Values, stored: StoredConversation, item: StoredItem, call_id: str) -> int | None:
    """The number of the item in the head that is the output of a call, or the call of an output."""
    places = places_of(stored.head, [item.number])
    if not places:
        return None
    around = part_of(stored.head, 0, places[0]) if is_output(item.type) else part_of(stored.head, places[0] + 1, stored.length)
    firsts, ends = columns_of(around)
    spelling, other_spelling = spellings_of(call_id)
    values: Values = {
        **key,
        "firsts": firsts,
        "ends": ends,
        "types": r"%\_call" if is_output(item.type) else r"%\_output",
        "spelling": spelling,
        "other_spelling": other_spelling,
    }
    candidates = [(seq, content) for seq, content in await rows(connection, "halves", values)]
    return other_half(candidates, call_id, last=is_output(item.type))


async def _refusal(connection: Connection, outcome: str, key: Values) -> ServiceError:
    """Why a conversation does not take a change or a turn."""
    left = await rows(connection, "lease_left", key)
    if outcome == "not_found" or not left:
        return ConversationNotFound(id=key["conversation_id"])
    if outcome == "full":
        return ConversationFull(id=key["conversation_id"])
    seconds = min(max(math.ceil(left[0][0]), 1), LONGEST_RETRY_SECONDS)
    return ConversationLocked(id=key["conversation_id"], headers={"retry-after": str(seconds)})
