"""What WebSocket connections keep of responses that are not stored, so that the same connection can continue from them.

Bounded per connection in number and bytes, and over all connections of the process in bytes; what was used least recently goes first.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from http_edge.metrics import RETAINED_BYTES
from http_edge.settings import EdgeSettings


class Retained:
    """All that is kept in this process."""

    def __init__(self, settings: EdgeSettings) -> None:
        self._limit = settings.websocket_total_retained_bytes
        self._per_connection = settings.websocket_retained_bytes
        self._count = settings.websocket_retained_responses
        self._kept: OrderedDict[tuple[Shelf, str], int] = OrderedDict()
        self._bytes = 0

    @contextmanager
    def shelf(self) -> Iterator["Shelf"]:
        """The place of one connection, emptied when it closes."""
        shelf = Shelf(self, self._count, self._per_connection)
        try:
            yield shelf
        finally:
            shelf.clear()

    def note(self, shelf: "Shelf", response_id: str, size: int) -> None:
        """So much is kept from now on, and was used just now."""
        self._kept[shelf, response_id] = size
        self._count_bytes(size)
        while self._bytes > self._limit:
            oldest, oldest_id = next(iter(self._kept))
            oldest.drop(oldest_id)

    def used(self, shelf: "Shelf", response_id: str) -> None:
        """It was used just now."""
        self._kept.move_to_end((shelf, response_id))

    def forget(self, shelf: "Shelf", response_id: str) -> None:
        """It is not kept any more."""
        self._count_bytes(-self._kept.pop((shelf, response_id)))

    def _count_bytes(self, more: int) -> None:
        self._bytes += more
        RETAINED_BYTES.inc(more)


RETAINED = web.AppKey("retained", Retained)


class Shelf:
    """What one connection keeps: continuations by response id, the least recently used first."""

    def __init__(self, retained: Retained, count: int, limit: int) -> None:
        self._retained = retained
        self._count = count
        self._limit = limit
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def put(self, response_id: str, continuation: bytes) -> None:
        """Keeps what a response is continued from. What is larger than all that may be kept is not kept."""
        self.drop(response_id)
        if len(continuation) > self._limit:
            return
        self._kept[response_id] = continuation
        self._bytes += len(continuation)
        while len(self._kept) > self._count or self._bytes > self._limit:
            self.drop(next(iter(self._kept)))
        self._retained.note(self, response_id, len(continuation))

    def get(self, response_id: str) -> bytes | None:
        """What was kept of a response."""
        continuation = self._kept.get(response_id)
        if continuation is not None:
            self._kept.move_to_end(response_id)
            self._retained.used(self, response_id)
        return continuation

    def drop(self, response_id: str) -> None:
        """Keeps this response no longer."""
        continuation = self._kept.pop(response_id, None)
        if continuation is not None:
            self._bytes -= len(continuation)
            self._retained.forget(self, response_id)

    def clear(self) -> None:
        """Keeps nothing any more."""
        for response_id in list(self._kept):
            self.drop(response_id)
