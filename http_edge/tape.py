"""The events of one turn as bytes of a stream, and the end that is made up for a turn which broke off.

Pure: what is written when is `sse.py`.
"""

from collections.abc import Iterable

import msgspec
from aiohttp import web
from msgspec import Raw

from http_edge.errors import error_object
from svckit.errors import ServiceError
from turnkeep.orchestrator.v1.orchestrator_pb2 import StreamEvent

FAILED = "response.failed"
TERMINAL = frozenset(["response.completed", "response.incomplete", FAILED])
ITEM_DONE = "response.output_item.done"


class Tape:
    """Frames events, and remembers as much of them as a made-up end needs."""

    def __init__(self) -> None:
        self._first: StreamEvent | None = None
        self._last: StreamEvent | None = None
        self._items: list[bytes] = []

    @property
    def ended(self) -> bool:
        """Has the terminal event gone by?"""
        return self._last is not None and self._last.type in TERMINAL

    def framed(self, events: Iterable[StreamEvent]) -> bytes:
        """The events as one piece of bytes."""
        parts: list[bytes] = []
        for event in events:
            kind, data = event.type, event.data
            parts += (b"event: ", kind.encode(), b"\ndata: ", data, b"\n\n")
            if kind == ITEM_DONE:
                self._items.append(data)
            self._last = event
            if self._first is None:
                self._first = event
        return b"".join(parts)

    def failed(self, error: ServiceError) -> bytes:
        """`response.failed` with the items so far, for a turn that broke off."""
        told = error_object(error)
        number = 0 if self._last is None else self._last.sequence_number + 1
        known = {} if self._first is None else msgspec.json.decode(_response_of(self._first), type=dict[str, Raw])
        done = sorted((msgspec.json.decode(data, type=_ItemDone) for data in self._items), key=lambda event: event.output_index)
        response = known | {
            "status": "failed",
            "error": {"code": told["code"], "message": told["message"]},
            "output": [event.item for event in done],
        }
        data = msgspec.json.encode({"type": FAILED, "sequence_number": number, "response": response})
        return self.framed([StreamEvent(type=FAILED, sequence_number=number, data=data)])


TAPE = web.RequestKey("tape", Tape)


class _Lifecycle(msgspec.Struct):
    response: Raw


class _ItemDone(msgspec.Struct):
    output_index: int
    item: Raw


def response_in(event: StreamEvent) -> bytes:
    """The response object of a lifecycle event."""
    return bytes(msgspec.json.decode(event.data, type=_Lifecycle).response)


def _response_of(event: StreamEvent) -> bytes:
    try:
        return response_in(event)
    except msgspec.ValidationError:
        return b"{}"
