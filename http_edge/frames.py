"""What goes over a WebSocket: frames of the client read, frames of ours written. Pure.

A client sends `response.create` with the fields of a create request and, if it likes, a `stream_id`, which names its lane and comes back
in every frame about this response.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from http_edge.errors import InvalidRequest, Unsupported, error_object, headers_of, http_status, printable
from http_edge.render import extended
from http_edge.requests import AskedTurn, Fields, convert, read_fields, read_socket_turn
from svckit.errors import ServiceError

CREATE = "response.create"
_ENVELOPE = frozenset({"type", "stream_id", "generate"})

_NO_LANE = msgspec.Raw(b"null")

LaneName = Annotated[str, Meta(min_length=1, max_length=128)]


@dataclass(frozen=True, slots=True)
class CreateFrame:
    """A turn that is asked for; `size` is that of the frame in bytes."""

    asked: AskedTurn
    lane: str | None
    size: int


class _Envelope(msgspec.Struct):
    type: str
    stream_id: LaneName | None = None
    generate: bool | None = None


def read_create(fields: Fields, owner: str, size: int) -> CreateFrame:
    """A frame in checked form. Raises ServiceError with `param`."""
    envelope = convert({name: raw for name, raw in fields.items() if name in _ENVELOPE}, _Envelope)
    if envelope.type != CREATE:
        raise Unsupported(what=f"The frame '{printable(envelope.type)}'", param="type")
    turn = {name: raw for name, raw in fields.items() if name not in _ENVELOPE}
    return CreateFrame(read_socket_turn(turn, owner, prewarm=envelope.generate is False), envelope.stream_id, size)


def fields_of(data: object) -> Fields:
    """The fields of a message. Raises InvalidRequest."""
    if not isinstance(data, bytes):
        raise InvalidRequest("A frame must be text.")
    return read_fields(data)


def lane_of(fields: Fields) -> str | None:
    """The lane that a frame names, also where the frame is not valid otherwise."""
    try:
        return msgspec.json.decode(fields.get("stream_id", _NO_LANE), type=LaneName | None)
    except msgspec.ValidationError:
        return None


def event_frame(data: bytes, lane: str | None) -> bytes:
    """An event of a response."""
    return data if lane is None else extended(data, b'"stream_id":' + msgspec.json.encode(lane))


def error_frame(error: ServiceError, lane: str | None) -> bytes:
    """What went wrong with one request, or with the connection."""
    told: dict[str, object] = {**error_object(error)}
    headers = headers_of(error)
    if headers:
        told["headers"] = headers
    frame: dict[str, object] = {"type": "error", "status": int(http_status(error)), "error": told}
    return msgspec.json.encode(frame if lane is None else frame | {"stream_id": lane})
