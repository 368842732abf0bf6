"""Running statements, for every store of this room: by name, once more for the later of two equal writes, and ranges as pages."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias, cast

from prometheus_client import Counter
from psycopg.errors import UniqueViolation
from psycopg.rows import TupleRow

from history_svc.errors import HistoryIncomplete, InvalidRequest
from history_svc.model import Item, Page, PageRequest, Span, Spans, count_of, part_of, places_behind, places_of
from history_svc.pools import Connection
from history_svc.statements import STATEMENTS
from svckit.errors import ServiceError
from svckit.ids import tree_key_of
from svckit.logs import get_logger

Values: TypeAlias = dict[str, object]

SAME_ROW = ("response_pkey", "conversation_pkey")  # the constraints that the later one of two equal writes runs into

INCOMPLETE = Counter("turnkeep_history_incomplete_total", "Reads refused because stored items are missing.")

log = get_logger(__name__)


def key_of(owner: str, kind: str, id: str, missing: type[ServiceError]) -> Values:
    """What leads to the row of a `kind` of id. An id without a tree key is one of something that is not there."""
    tree_key = tree_key_of(id)
    if tree_key is None:
        raise missing(id=id)
    return {"tree_key": tree_key, "owner": owner, kind: id}


async def rows(connection: Connection, name: str, values: Values) -> list[TupleRow]:
    """The rows of a statement, read in binary: bytes come as they are instead of as twice as many hex digits."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(STATEMENTS[name], values)
        return await cursor.fetchall()


async def streamed(connection: Connection, name: str, values: Values) -> AsyncGenerator[TupleRow, None]:
    """The rows of a statement with large rows: each is taken over while the server makes the next, and not all of them at the end."""
    async with connection.cursor() as cursor:
        stream = cast("AsyncGenerator[TupleRow, None]", cursor.stream(STATEMENTS[name], values, binary=True))
        async with aclosing(stream) as arriving:
            async for row in arriving:
                yield row


async def written(connection: Connection, name: str, values: Values) -> TupleRow:
    """The one row of a statement that writes; run once more when its twin came first, which it then sees."""
    try:
        return (await rows(connection, name, values))[0]
    except UniqueViolation as exc:
        if exc.diag.constraint_name not in SAME_ROW:
            raise
        return (await rows(connection, name, values))[0]


async def items(connection: Connection, key: Values, spans: Spans) -> list[Item]:
    """The items of a list of ranges, with those that the API does not show."""
    if not spans:
        return []
    firsts, ends = zip(*spans, strict=True)
    found = await rows(connection, "items", {**key, "firsts": list(firsts), "ends": list(ends)})
    check_complete(key, spans, len(found))
    return [Item(*row) for row in found]


async def page_of(connection: Connection, key: Values, spans: Spans, wanted: PageRequest) -> Page:
    """One page of a list of ranges as the API shows it. Raises InvalidRequest."""
    after = await _places_of_item(connection, key, spans, wanted.after)
    walk = places_behind(count_of(spans), after, wanted.descending)
    shown = await _shown(connection, key, spans, walk, wanted.limit + 1)  # one more tells whether there is a next page
    return Page(shown[: wanted.limit], len(shown) > wanted.limit)


async def _shown(connection: Connection, key: Values, spans: Spans, walk: range, wanted: int) -> list[Item]:
    """The first items of a walk over a list that the API shows."""
    shown: list[Item] = []
    while walk and len(shown) < wanted:
        part, walk = walk[:wanted], walk[wanted:]
        found = await items(connection, key, part_of(spans, min(part), max(part) + 1))
        shown += [item for item in (found if part.step > 0 else reversed(found)) if item.body]
    return shown[:wanted]


async def _places_of_item(connection: Connection, key: Values, spans: Spans, item_id: str) -> list[int]:
    """Where an item stands in a list; no places for no id. Raises InvalidRequest for an id that the list does not have."""
    if not item_id:
        return []
    numbers = await rows(connection, "item_numbers", {**key, "item_id": item_id})
    places = places_of(spans, [seq for (seq,) in numbers])
    if not places:
        raise InvalidRequest(why="no item of this list has the id that the page should start behind", param="after")
    return places


def check_complete(key: Values, spans: Sequence[Span], found: int) -> None:
    """A list that is shorter than what it should be is never given to anybody."""
    expected = count_of(spans)
    if found != expected:
        INCOMPLETE.inc()
        id = key.get("response_id") or key.get("conversation_id")
        log.error("stored items are missing", id=id, expected=expected, found=found)
        raise HistoryIncomplete(id=id, found=found, expected=expected)
