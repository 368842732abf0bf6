"""The store of responses, their items, claims and idempotency keys: each method is one transaction, or reads what no transaction changes.

Values in, values out; no protos, no SQL. An id that belongs to another owner is treated like one that is not there. Conversations, turns
that wait, and event logs have stores of their own.
"""

from collections.abc import Sequence
from contextlib import aclosing

from prometheus_client import Histogram
from psycopg.errors import NoDataFound
from psycopg.rows import TupleRow

from history_svc.bell import Bell
from history_svc.columns import Texts
from history_svc.errors import (
    ClaimNotFound,
    ContextTooLarge,
    ConversationNotFound,
    IdempotencyMismatch,
    ItemsTooLarge,
    LeaseLost,
    PreviousResponseNotFound,
    ResponseConflict,
    ResponseNotFound,
    TreeNotFound,
)
from history_svc.model import (
    MESSAGE_BYTES,
    ClaimState,
    Context,
    FoundItem,
    Head,
    KeyClaim,
    Page,
    PageRequest,
    Piece,
    Saved,
    StoredResponse,
    Turn,
    columns_of,
    gathered,
    spans_of,
    taken_apart,
)
from history_svc.pools import Connection, Pools
from history_svc.reading import Values, check_complete, items, key_of, page_of, rows, streamed, written
from history_svc.settings import HistorySettings
from history_svc.statements import STATEMENTS
from svckit.errors import ServiceError
from svckit.ids import tree_key_of

HEAD_COLUMNS = 9  # of a loaded context, before those of its items
_BYTES = HEAD_COLUMNS + 2

LOAD_SECONDS = Histogram("turnkeep_history_load_seconds", "Seconds to load a context from the database.")
COMMIT_SECONDS = Histogram("turnkeep_history_commit_seconds", "Seconds to commit a turn to the database.")


class Store:
    """Items, responses and checkpoints in one database."""

    def __init__(self, pools: Pools, settings: HistorySettings, bell: Bell) -> None:
        self._pools = pools
        self._bell = bell
        self._context_limit = settings.context_limit_bytes
        self._tree_max_items = settings.tree_max_items
        self._keep_seconds = settings.retention_seconds or None
        self._longest_turn_seconds = settings.longest_turn_seconds
        self._sweep_batch = settings.sweep_batch

    async def load_context(self, owner: str, response_id: str) -> Context:
        """The whole context that a continuation of a response starts from."""
        key = key_of(owner, "response_id", response_id, PreviousResponseNotFound)
        return await self._loaded({**key, "conversation_id": ""}, PreviousResponseNotFound(id=response_id))

    async def load_conversation(self, owner: str, conversation_id: str) -> Context:
        """The whole context that the next turn of a conversation starts from."""
        key = key_of(owner, "conversation_id", conversation_id, ConversationNotFound)
        return await self._loaded({**key, "response_id": ""}, ConversationNotFound(id=conversation_id))

    async def _loaded(self, key: Values, missing: ServiceError) -> Context:
        values = {**key, "limit": self._context_limit, "large": MESSAGE_BYTES}
        with LOAD_SECONDS.time():
            found, size = await self._pools.read.run(lambda connection: _within_limit(connection, values, self._context_limit))
        if not found:
            raise missing
        if size > self._context_limit:
            raise ContextTooLarge(id=key["response_id"] or key["conversation_id"], limit=self._context_limit, param=missing.param)
        return self._context(key, found, size)

    def _context(self, key: Values, found: Sequence[TupleRow], size: int) -> Context:
        status, model, parent_id, open_calls, firsts, ends, next_seq, carried, resume_state = found[0][:HEAD_COLUMNS]
        checkpoint = spans_of(firsts, ends)
        parts = [row[HEAD_COLUMNS:] for row in found if row[HEAD_COLUMNS] is not None]  # the one row of an empty checkpoint has no items
        check_complete(key, checkpoint, sum(part[0] for part in parts))
        tokens = sum(part[1] for part in parts)
        tree_full = next_seq > self._tree_max_items
        head = Head(status, model, parent_id, tuple(open_calls), checkpoint, tokens, tree_full, carried, resume_state)
        return Context(head, gathered(_pieces(parts)), size)

    async def commit_turn(self, turn: Turn) -> Saved:
        """Saves a turn, all of it or nothing. The same turn once more changes nothing."""
        values = self._values(turn)
        with COMMIT_SECONDS.time():
            outcome, firsts, ends = await self._pools.commit.run(lambda connection: _committed(connection, values))
        if outcome in _REFUSALS:
            raise _REFUSALS[outcome](id=turn.response_id)
        if turn.must_hold:
            self._bell.ring(turn.response_id)  # the turn may have ended, and with it its events
        return Saved(spans_of(firsts, ends), outcome == "repeated")

    def _values(self, turn: Turn) -> Values:
        base_firsts, base_ends = columns_of(turn.base)
        removed_firsts, removed_ends = columns_of(turn.head_removed)
        return {
            "tree_key": turn.tree_key,
            "owner": turn.owner,
            "response_id": turn.response_id,
            "round": turn.round,
            "fencing_token": turn.fencing_token,
            "must_hold": turn.must_hold,
            "content_hash": turn.content_hash,
            "parent_id": turn.parent_id,
            "conversation_id": turn.conversation_id,
            "base_firsts": base_firsts,
            "base_ends": base_ends,
            "base_tree_key": turn.base_tree_key,
            **turn.items.columns(),
            "inputs": turn.inputs,
            "status": turn.status,
            "model": turn.model,
            "open_calls": Texts(turn.open_calls),
            "closed_calls": Texts(turn.closed_calls),
            "body": turn.body,
            "carried": turn.carried,
            "resume_state": turn.resume_state,
            "unlisted": turn.unlisted,
            "removed_firsts": removed_firsts,
            "removed_ends": removed_ends,
            "created_at": turn.created_at,
            "completed_at": turn.completed_at,
            "keep_seconds": self._longest_turn_seconds if turn.unlisted else self._keep_seconds,  # no save comes again later than that
        }

    async def response(self, owner: str, response_id: str) -> StoredResponse:
        """A response with its output items."""
        key = key_of(owner, "response_id", response_id, ResponseNotFound)
        return await self._pools.read.run(lambda connection: read_response(connection, key))

    async def input_page(self, owner: str, response_id: str, page: PageRequest) -> Page:
        """One page of all that a response was given."""
        key = key_of(owner, "response_id", response_id, ResponseNotFound)

        async def read(connection: Connection) -> Page:
            _, _, input_firsts, input_ends, *_ = await _head(connection, key)
            return await page_of(connection, key, spans_of(input_firsts, input_ends), page)

        return await self._pools.read.run(read)

    async def delete_response(self, owner: str, response_id: str) -> None:
        """Deletes a response; its items stay until a sweep finds that nothing names them."""
        key = key_of(owner, "response_id", response_id, ResponseNotFound)
        deleted = await self._pools.commit.run(lambda connection: rows(connection, "delete_response", key), repeatable=False)
        if not deleted:
            raise ResponseNotFound(id=response_id)
        self._bell.wake(response_id)

    async def find_items(self, owner: str, item_ids: Sequence[str]) -> list[FoundItem]:
        """The newest item with each of some ids; those that are not there are left out."""
        wanted = [(tree_key, item_id) for item_id in dict.fromkeys(item_ids) if (tree_key := tree_key_of(item_id)) is not None]
        values: Values = {
            "owner": owner,
            "tree_keys": [tree_key for tree_key, _ in wanted],
            "item_ids": [item_id for _, item_id in wanted],
            "limit": self._context_limit,
        }
        found = await self._pools.read.run(lambda connection: rows(connection, "find_items", values)) if wanted else []
        if found and found[-1][7] > self._context_limit:
            raise ItemsTooLarge(limit=self._context_limit)
        return [FoundItem(*row[:7]) for row in found]

    async def claim_call(self, owner: str, claim_id: str, response_id: str) -> ClaimState:
        """Claims a call that may run once; says what came of the claim that was first."""
        key = _place_of_claim(owner, claim_id, response_id)
        claimed = await self._pools.commit.run(lambda connection: rows(connection, "claim_call", key))
        if not claimed:
            raise ClaimNotFound(claim_id=claim_id, response_id=response_id)
        return ClaimState(*claimed[0])

    async def settle_claim(self, owner: str, claim_id: str, response_id: str, outcome: bytes) -> None:
        """Records what became of a claimed call; a second outcome changes nothing."""
        values = {**_place_of_claim(owner, claim_id, response_id), "outcome": outcome}
        if not await self._pools.commit.run(lambda connection: rows(connection, "settle_claim", values)):
            raise ClaimNotFound(claim_id=claim_id, response_id=response_id)

    async def claim_key(self, claim: KeyClaim) -> str:
        """The response that an idempotency key stands for: the caller's own if it is the first."""
        values = claim._asdict()
        response_id, request_hash = (await self._pools.commit.run(lambda connection: rows(connection, "claim_key", values)))[0]
        if request_hash != claim.request_hash:
            raise IdempotencyMismatch(key=claim.key)
        return str(response_id)

    async def expire_responses(self) -> bool:
        """Deletes a batch of the responses whose time is over; says whether there may be more."""
        return await self._expire("expire_responses")

    async def expire_keys(self) -> bool:
        """Forgets a batch of the idempotency keys whose time is over; says whether there may be more."""
        return await self._expire("expire_keys")

    async def expire_claims(self) -> bool:
        """Forgets a batch of the claims of rounds that are not run again; says whether there may be more."""
        return await self._expire("expire_claims")

    async def _expire(self, statement: str) -> bool:
        values: Values = {"limit": self._sweep_batch, "wait_seconds": self._longest_turn_seconds}
        expired = await self._pools.background.run(lambda connection: rows(connection, statement, values))
        return len(expired) == self._sweep_batch

    async def sweep_tree(self) -> bool:
        """Deletes a batch of the unused items of one tree; says whether there was a tree to sweep."""
        return await self._pools.background.run(self._swept)

    async def _swept(self, connection: Connection) -> bool:
        async with connection.transaction():
            dirty = await rows(connection, "lock_dirty_tree", {"wait_seconds": self._longest_turn_seconds})
            if not dirty:
                return False
            key: Values = dict(zip(("tree_key", "owner"), dirty[0], strict=True))
            deleted = await connection.execute(STATEMENTS["sweep_items"], {**key, "limit": self._sweep_batch})
            if deleted.rowcount < self._sweep_batch:
                await connection.execute(STATEMENTS["clean_tree"], key)
                await connection.execute(STATEMENTS["drop_empty_tree"], key)
            return True

    async def is_alive(self) -> bool:
        """Does the database answer?"""
        try:
            return bool(await self._pools.background.run(lambda connection: rows(connection, "probe", {})))
        except ServiceError:
            return False


async def read_response(connection: Connection, key: Values) -> StoredResponse:
    """A response with its output items. Raises ResponseNotFound."""
    status, body, _, _, output_firsts, output_ends = await _head(connection, key)
    output = await items(connection, key, spans_of(output_firsts, output_ends))
    return StoredResponse(status, body, [item for item in output if item.body])


_REFUSALS: dict[str, type[ServiceError]] = {
    "conflict": ResponseConflict,
    "stale": LeaseLost,
    "not_found": TreeNotFound,
}


def _place_of_claim(owner: str, claim_id: str, response_id: str) -> Values:
    """What leads to a claim's row."""
    tree_key = tree_key_of(claim_id)
    if tree_key is None:
        raise ClaimNotFound(claim_id=claim_id, response_id=response_id)
    return {"tree_key": tree_key, "owner": owner, "claim_id": claim_id, "response_id": response_id}


async def _within_limit(connection: Connection, values: Values, limit: int) -> tuple[list[TupleRow], int]:
    """The rows of a context, and what its prompts come to in bytes; what lies past the limit is counted and not kept."""
    found: list[TupleRow] = []
    size = 0
    async with aclosing(streamed(connection, "load_context", values)) as arriving:
        async for row in arriving:
            size += row[_BYTES] or 0  # the one row of an empty checkpoint has none
            if size <= limit or not found:
                found.append(row)
    return found, size


def _pieces(parts: Sequence[TupleRow]) -> list[Piece]:
    pieces: list[Piece] = []
    for _, _, _, prompts, lengths, origins in parts:
        if lengths is not None:
            pieces += taken_apart(prompts or b"", lengths, origins)
        elif prompts:
            pieces.append(Piece(prompts, ""))
    return pieces


async def _committed(connection: Connection, values: Values) -> TupleRow:
    try:
        return await written(connection, "commit_turn", values)
    except NoDataFound as exc:
        raise TreeNotFound(id=values["response_id"]) from exc


async def _head(connection: Connection, key: Values) -> TupleRow:
    """Status, body, and the two columns each of input and output of a response."""
    found = await rows(connection, "response", key)
    if not found:
        raise ResponseNotFound(id=key["response_id"])
    return found[0]
