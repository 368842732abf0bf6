"""The events of one turn as they go out, and the end that is made up for a turn which broke off.

Pure: what is written when, and how it is framed on a WebSocket, is others' business.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec
from aiohttp import web
from msgspec import Raw

from http_edge.errors import error_object
from http_edge.obfuscation import obfuscated
from svckit.errors import ServiceError
from turnkeep.orchestrator.v1.orchestrator_pb2 import StreamEvent

FAILED = "response.failed"
TERMINAL = frozenset(["response.completed", "response.incomplete", FAILED])
ITEM_DONE = "response.output_item.done"
_DELTA = ".delta"


class Event(Protocol):
    """A stream event, live or from a log."""

    @property
    def type(self) -> str: ...
    @property
    def sequence_number(self) -> int: ...
    @property
    def data(self) -> bytes: ...


class Tape:
    """Gives events as they go out, and remembers as much of them as a made-up end needs. `padded`: with obfuscation in the deltas.

    `ended`: the terminal event has gone by.
    """

    def __init__(self, *, padded: bool = False) -> None:
        self._padded = padded
        self._first: Event | None = None
        self._last: Event | None = None
        self._items: list[bytes] = []
        self.ended = False

    @property
    def begun(self) -> bool:
        """Has any event gone by?"""
        return self._last is not None

    @property
    def has_failed(self) -> bool:
        """Did the turn end in `response.failed`?"""
        return self._last is not None and self._last.type == FAILED

    def played(self, event: Event) -> bytes:
        """The event's data as it goes out."""
        kind, data = event.type, event.data
        self._last = event
        if kind.endswith(_DELTA):
            return obfuscated(data) if self._padded else data
        if kind == ITEM_DONE:
            self._items.append(data)
        self.ended = kind in TERMINAL
        if self._first is None:
            self._first = event
        return data

    def framed(self, events: Iterable[Event]) -> bytes:
        """The events as server-sent events, as one piece of bytes."""
        return b"".join([b"event: %b\ndata: %b\n\n" % (event.type.encode(), self.played(event)) for event in events])

    def failed(self, error: ServiceError) -> StreamEvent:
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
        return StreamEvent(type=FAILED, sequence_number=number, data=data)


TAPE = web.RequestKey("tape", Tape)


class _Lifecycle(msgspec.Struct):
    response: Raw


class _ItemDone(msgspec.Struct):
    output_index: int
    item: Raw


def response_in(event: Event) -> bytes:
    """The response object of a lifecycle event."""
    return bytes(msgspec.json.decode(event.data, type=_Lifecycle).response)


def _response_of(event: Event) -> bytes:
    try:
        return response_in(event)
    except msgspec.ValidationError:
        return b"{}"
