"""The store of history: each method is one transaction, or reads what no transaction changes. Values in, values out; no protos, no SQL.

An id that belongs to another owner is treated like one that is not there.
"""

from collections.abc import Sequence
from typing import TypeAlias

from prometheus_client import Counter, Histogram
from psycopg.errors import UniqueViolation
from psycopg.rows import TupleRow

from history_svc.errors import (
    ClaimNotFound,
    ContextTooLarge,
    HistoryIncomplete,
    InvalidRequest,
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
    Item,
    Page,
    PageRequest,
    Piece,
    Saved,
    Span,
    Spans,
    StoredResponse,
    Turn,
    count_of,
    gathered,
    part_of,
    places_behind,
    places_of,
    spans_of,
    taken_apart,
)
from history_svc.pools import Connection, Pools
from history_svc.settings import HistorySettings
from history_svc.statements import STATEMENTS
from svckit.errors import ServiceError
from svckit.ids import tree_key_of
from svckit.logs import get_logger

Values: TypeAlias = dict[str, object]

HEAD_COLUMNS = 8  # of a loaded context, before those of its items
SAME_RESPONSE = "response_pkey"  # the constraint that the later one of two equal commits runs into

LOAD_SECONDS = Histogram("turnkeep_history_load_seconds", "Seconds to load a context from the database.")
COMMIT_SECONDS = Histogram("turnkeep_history_commit_seconds", "Seconds to commit a turn to the database.")
INCOMPLETE = Counter("turnkeep_history_incomplete_total", "Reads refused because stored items are missing.")

log = get_logger(__name__)


class Store:
    """Items, responses and checkpoints in one database."""

    def __init__(self, pools: Pools, settings: HistorySettings) -> None:
        self._pools = pools
        self._context_limit = settings.context_limit_bytes
        self._tree_max_items = settings.tree_max_items
        self._keep_seconds = settings.retention_seconds or None
        self._longest_turn_seconds = settings.longest_turn_seconds
        self._sweep_batch = settings.sweep_batch

    async def load_context(self, owner: str, response_id: str) -> Context:
        """The whole context that a continuation of a response starts from."""
        key = _key(owner, response_id, PreviousResponseNotFound)
        values = {**key, "limit": self._context_limit, "large": MESSAGE_BYTES}
        with LOAD_SECONDS.time():
            rows = await self._pools.read.run(lambda connection: _rows(connection, "load_context", values))
        if not rows:
            raise PreviousResponseNotFound(response_id=response_id)
        return self._context(response_id, rows)

    def _context(self, response_id: str, rows: Sequence[TupleRow]) -> Context:
        status, model, parent_id, open_calls, firsts, ends, next_seq, carried = rows[0][:HEAD_COLUMNS]
        checkpoint = spans_of(firsts, ends)
        parts = [row[HEAD_COLUMNS:] for row in rows if row[HEAD_COLUMNS] is not None]  # the one row of an empty checkpoint has no items
        size = parts[-1][2] if parts else 0
        if size > self._context_limit:
            raise ContextTooLarge(response_id=response_id, limit=self._context_limit)
        _check_complete(response_id, checkpoint, sum(part[0] for part in parts))
        tokens = sum(part[1] for part in parts)
        head = Head(status, model, parent_id, tuple(open_calls), checkpoint, tokens, next_seq > self._tree_max_items, carried)
        return Context(head, gathered(_pieces(parts)), size)

    async def commit_turn(self, turn: Turn) -> Saved:
        """Saves a turn, all of it or nothing. The same turn once more changes nothing."""
        values = self._values(turn)
        with COMMIT_SECONDS.time():
            outcome, firsts, ends = await self._pools.commit.run(lambda connection: _committed(connection, values))
        if outcome in _REFUSALS:
            raise _REFUSALS[outcome](response_id=turn.response_id)
        return Saved(spans_of(firsts, ends), outcome == "repeated")

    def _values(self, turn: Turn) -> Values:
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
            "base_firsts": [span.first for span in turn.base],
            "base_ends": [span.end for span in turn.base],
            "base_tree_key": turn.base_tree_key,
            "item_ids": turn.items.ids,
            "types": turn.items.types,
            "origins": turn.items.origins,
            "bodies": turn.items.bodies,
            "prompts": turn.items.prompts,
            "item_tokens": turn.items.tokens,
            "inputs": turn.inputs,
            "status": turn.status,
            "model": turn.model,
            "open_calls": turn.open_calls,
            "body": turn.body,
            "carried": turn.carried,
            "created_at": turn.created_at,
            "completed_at": turn.completed_at,
            "keep_seconds": self._keep_seconds,
        }

    async def response(self, owner: str, response_id: str) -> StoredResponse:
        """A response with its output items."""
        key = _key(owner, response_id, ResponseNotFound)

        async def read(connection: Connection) -> StoredResponse:
            status, body, _, output = await _head(connection, key)
            return StoredResponse(status, body, [item for item in await _items(connection, key, output) if item.body])

        return await self._pools.read.run(read)

    async def input_page(self, owner: str, response_id: str, page: PageRequest) -> Page:
        """One page of all that a response was given."""
        key = _key(owner, response_id, ResponseNotFound)

        async def read(connection: Connection) -> Page:
            _, _, given, _ = await _head(connection, key)
            after = await _places_of_item(connection, key, given, page.after)
            walk = places_behind(count_of(given), after, page.descending)
            shown = await _shown(connection, key, given, walk, page.limit + 1)  # one more tells whether there is a next page
            return Page(shown[: page.limit], len(shown) > page.limit)

        return await self._pools.read.run(read)

    async def delete_response(self, owner: str, response_id: str) -> None:
        """Deletes a response; its items stay until a sweep finds that nothing names them."""
        key = _key(owner, response_id, ResponseNotFound)
        deleted = await self._pools.commit.run(lambda connection: _rows(connection, "delete_response", key), repeatable=False)
        if not deleted:
            raise ResponseNotFound(response_id=response_id)

    async def find_items(self, owner: str, item_ids: Sequence[str]) -> list[FoundItem]:
        """The newest item with each of some ids; those that are not there are left out."""
        wanted = [(tree_key, item_id) for item_id in dict.fromkeys(item_ids) if (tree_key := tree_key_of(item_id)) is not None]
        values: Values = {
            "owner": owner,
            "tree_keys": [tree_key for tree_key, _ in wanted],
            "item_ids": [item_id for _, item_id in wanted],
            "limit": self._context_limit,
        }
        rows = await self._pools.read.run(lambda connection: _rows(connection, "find_items", values)) if wanted else []
        if rows and rows[-1][6] > self._context_limit:
            raise ItemsTooLarge(limit=self._context_limit)
        return [FoundItem(*row[:6]) for row in rows]

    async def claim_call(self, owner: str, claim_id: str, response_id: str) -> ClaimState:
        """Claims a call that may run once; says what came of the claim that was first."""
        key = _claim_key(owner, claim_id, response_id)
        rows = await self._pools.commit.run(lambda connection: _rows(connection, "claim_call", key))
        if not rows:
            raise ClaimNotFound(claim_id=claim_id, response_id=response_id)
        return ClaimState(*rows[0])

    async def settle_claim(self, owner: str, claim_id: str, response_id: str, outcome: bytes) -> None:
        """Records what became of a claimed call; a second outcome changes nothing."""
        values = {**_claim_key(owner, claim_id, response_id), "outcome": outcome}
        if not await self._pools.commit.run(lambda connection: _rows(connection, "settle_claim", values)):
            raise ClaimNotFound(claim_id=claim_id, response_id=response_id)

    async def expire_responses(self) -> bool:
        """Deletes a batch of the responses whose time is over; says whether there may be more."""
        values: Values = {"limit": self._sweep_batch}
        expired = await self._pools.background.run(lambda connection: _rows(connection, "expire_responses", values))
        return len(expired) == self._sweep_batch

    async def sweep_tree(self) -> bool:
        """Deletes a batch of the unused items of one tree; says whether there was a tree to sweep."""
        return await self._pools.background.run(self._swept)

    async def _swept(self, connection: Connection) -> bool:
        async with connection.transaction():
            dirty = await _rows(connection, "lock_dirty_tree", {"wait_seconds": self._longest_turn_seconds})
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
            return bool(await self._pools.background.run(lambda connection: _rows(connection, "probe", {})))
        except ServiceError:
            return False


_REFUSALS: dict[str, type[ServiceError]] = {
    "conflict": ResponseConflict,
    "stale": LeaseLost,
    "not_found": TreeNotFound,
}


def _key(owner: str, response_id: str, missing: type[ServiceError]) -> Values:
    """What leads to a response's row. An id without a tree key is one of a response that is not there."""
    tree_key = tree_key_of(response_id)
    if tree_key is None:
        raise missing(response_id=response_id)
    return {"tree_key": tree_key, "owner": owner, "response_id": response_id}


def _claim_key(owner: str, claim_id: str, response_id: str) -> Values:
    """What leads to a claim's row."""
    tree_key = tree_key_of(claim_id)
    if tree_key is None:
        raise ClaimNotFound(claim_id=claim_id, response_id=response_id)
    return {"tree_key": tree_key, "owner": owner, "claim_id": claim_id, "response_id": response_id}


async def _rows(connection: Connection, name: str, values: Values) -> list[TupleRow]:
    """The rows of a statement, read in binary: bytes come as they are instead of as twice as many hex digits."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(STATEMENTS[name], values)
        return await cursor.fetchall()


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
        return (await _rows(connection, "commit_turn", values))[0]
    except UniqueViolation as exc:
        if exc.diag.constraint_name != SAME_RESPONSE:
            raise
        return (await _rows(connection, "commit_turn", values))[0]  # the other one is visible now


async def _head(connection: Connection, key: Values) -> tuple[str, bytes, Spans, Spans]:
    """Status, body, input and output of a response."""
    rows = await _rows(connection, "response", key)
    if not rows:
        raise ResponseNotFound(response_id=key["response_id"])
    status, body, input_firsts, input_ends, output_firsts, output_ends = rows[0]
    return status, body, spans_of(input_firsts, input_ends), spans_of(output_firsts, output_ends)


async def _items(connection: Connection, key: Values, spans: Spans) -> list[Item]:
    if not spans:
        return []
    firsts, ends = zip(*spans, strict=True)
    rows = await _rows(connection, "items", {**key, "firsts": list(firsts), "ends": list(ends)})
    _check_complete(str(key["response_id"]), spans, len(rows))
    return [Item(*row) for row in rows]


async def _shown(connection: Connection, key: Values, spans: Spans, walk: range, wanted: int) -> list[Item]:
    """The first items of a walk over a list that the API shows."""
    shown: list[Item] = []
    while walk and len(shown) < wanted:
        part, walk = walk[:wanted], walk[wanted:]
        items = await _items(connection, key, part_of(spans, min(part), max(part) + 1))
        shown += [item for item in (items if part.step > 0 else reversed(items)) if item.body]
    return shown[:wanted]


async def _places_of_item(connection: Connection, key: Values, spans: Spans, item_id: str) -> list[int]:
    """Where an item stands in a list; no places for no id. Raises InvalidRequest for an id that the list does not have."""
    if not item_id:
        return []
    rows = await _rows(connection, "item_numbers", {**key, "item_id": item_id})
    places = places_of(spans, [seq for (seq,) in rows])
    if not places:
        raise InvalidRequest(why="no item of this list has the id that the page should start behind", param="after")
    return places


def _check_complete(response_id: str, spans: Sequence[Span], found: int) -> None:
    """A list that is shorter than what it should be is never given to anybody."""
    expected = count_of(spans)
    if found != expected:
        INCOMPLETE.inc()
        log.error("stored items are missing", response_id=response_id, expected=expected, found=found)
        raise HistoryIncomplete(response_id=response_id, found=found, expected=expected)
