"""A stored response as the stream that it could have come as: for a repeated request whose first has ended. Pure.

What was one delta or many then is one delta now. A cancelled response has no terminal event, as its own stream had none.
"""

from collections.abc import Iterator
from itertools import chain

import msgspec
from msgspec import UNSET, Raw, UnsetType

from turnkeep.orchestrator.v1.orchestrator_pb2 import StreamEvent

_TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete", "failed": "response.failed"}
_NOT_YET: dict[str, object] = {"output": [], "usage": None, "error": None, "incomplete_details": None, "completed_at": None}

Body = dict[str, object]


class _Stored(msgspec.Struct):
    status: str
    output: list[Raw] = []


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    refusal: str = ""
    logprobs: Raw | UnsetType = UNSET


class _Item(msgspec.Struct):
    type: str
    id: str = ""
    content: Raw = Raw(b"[]")
    arguments: str = ""


def events_of(response: bytes) -> list[StreamEvent]:
    """The events of a response object, numbered from 0."""
    stored = msgspec.json.decode(response, type=_Stored)
    bodies = chain(_beginning(response), *(_item(place, item) for place, item in enumerate(stored.output)), _end(stored, response))
    return [_event(number, body) for number, body in enumerate(bodies)]


def _beginning(response: bytes) -> Iterator[Body]:
    known = msgspec.json.decode(response, type=dict[str, Raw])
    begun = known | {name: value for name, value in _NOT_YET.items() if name in known} | {"status": "in_progress"}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}


def _end(stored: _Stored, response: bytes) -> Iterator[Body]:
    if stored.status in _TERMINAL:
        yield {"type": _TERMINAL[stored.status], "response": Raw(response)}


def _item(place: int, raw: Raw) -> Iterator[Body]:
    """One item: announced, its text as a delta where it has text, and done."""
    item = msgspec.json.decode(raw, type=_Item)
    at: Body = {"item_id": item.id, "output_index": place}
    yield {"type": "response.output_item.added", "output_index": place, "item": _announced(item, raw)}
    if item.type == "message":
        for index, part in enumerate(msgspec.json.decode(item.content, type=list[Raw])):
            yield from _part(at | {"content_index": index}, part)
    elif item.type == "function_call":
        yield {"type": "response.function_call_arguments.delta", **at, "delta": item.arguments}
        yield {"type": "response.function_call_arguments.done", **at, "arguments": item.arguments}
    yield {"type": "response.output_item.done", "output_index": place, "item": raw}


def _announced(item: _Item, raw: Raw) -> Body | Raw:
    members: Body = dict(msgspec.json.decode(raw, type=dict[str, Raw]))
    if item.type == "message":
        return members | {"status": "in_progress", "content": []}
    if item.type == "function_call":
        return members | {"status": "in_progress", "arguments": ""}
    return raw


def _part(at: Body, raw: Raw) -> Iterator[Body]:
    part = msgspec.json.decode(raw, type=_Part)
    members: Body = dict(msgspec.json.decode(raw, type=dict[str, Raw]))
    key, text = ("refusal", part.refusal) if part.type == "refusal" else ("text", part.text)
    logprobs: Body = {} if key == "refusal" else {"logprobs": [] if part.logprobs is UNSET else part.logprobs}
    event = "response.refusal" if key == "refusal" else "response.output_text"
    yield {"type": "response.content_part.added", **at, "part": members | {key: ""}}
    yield {"type": f"{event}.delta", **at, "delta": text, **logprobs}
    yield {"type": f"{event}.done", **at, key: text, **logprobs}
    yield {"type": "response.content_part.done", **at, "part": raw}


def _event(number: int, body: Body) -> StreamEvent:
    data = msgspec.json.encode(body | {"sequence_number": number})
    return StreamEvent(type=str(body["type"]), sequence_number=number, data=data)
