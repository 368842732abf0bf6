"""A stored response as the stream that it could have come as: for a repeated request whose first has ended. Pure.

What was one delta or many then is one delta now. A cancelled response has no terminal event, as its own stream had none.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec
from msgspec import Raw

from turnkeep.orchestrator.v1.orchestrator_pb2 import StreamEvent

_TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete", "failed": "response.failed"}

# What a response and an item do not have yet when they are announced: values for what they always have, None for what they have only later.
_NEW_RESPONSE: dict[str, object] = {"output": [], "usage": None, "error": None, "incomplete_details": None, "completed_at": None}
_NEW_ITEM: dict[str, dict[str, object]] = {
    "message": {"status": "in_progress", "content": []},
    "reasoning": {"summary": [], "content": None, "encrypted_content": None},
    "function_call": {"status": "in_progress", "arguments": ""},
    "custom_tool_call": {"status": "in_progress", "input": ""},
    "web_search_call": {"status": "in_progress", "action": None},
    "mcp_list_tools": {"tools": [], "error": None},
    "mcp_call": {"status": "in_progress", "arguments": "", "output": None, "error": None},
}
# The string that an item's deltas make.
_STRINGS = {"function_call": "arguments", "custom_tool_call": "input", "mcp_call": "arguments"}
# The steps of what the gateway does itself, between the first and the last.
_STEPS: dict[str, tuple[str, ...]] = {"web_search_call": ("searching",), "mcp_list_tools": (), "mcp_call": ()}
# The events of a part's text, and the key that the text has in the part, by the part's type.
_TEXTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
    "summary_text": ("response.reasoning_summary_text", "text"),
}

Body = dict[str, object]
Members = Mapping[str, Raw]


class _Stored(msgspec.Struct):
    status: str
    output: list[dict[str, Raw]] = []


def events_of(response: bytes) -> list[StreamEvent]:
    """The events of a response object, numbered from 0."""
    stored = msgspec.json.decode(response, type=_Stored)
    bodies = chain(_beginning(response), *(_item(place, item) for place, item in enumerate(stored.output)), _end(stored, response))
    return [_event(number, body) for number, body in enumerate(bodies)]


def end_of(response: bytes, number: int) -> list[StreamEvent]:
    """The terminal event of a response object, if its status has one."""
    return [_event(number, body) for body in _end(msgspec.json.decode(response, type=_Stored), response)]


def _beginning(response: bytes) -> Iterator[Body]:
    known = msgspec.json.decode(response, type=dict[str, Raw])
    begun = known | {name: value for name, value in _NEW_RESPONSE.items() if name in known} | {"status": "in_progress"}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}


def _end(stored: _Stored, response: bytes) -> Iterator[Body]:
    if stored.status in _TERMINAL:
        yield {"type": _TERMINAL[stored.status], "response": Raw(response)}


def _item(place: int, item: Members) -> Iterator[Body]:
    """One item: announced, made as its kind is made, and done."""
    kind = _text(item, "type")
    at: Body = {"item_id": _text(item, "id"), "output_index": place}
    yield {"type": "response.output_item.added", "output_index": place, "item": _announced(kind, item)}
    first, *later = _steps(kind, item)
    yield from _told(kind, first, at)
    for index, part in enumerate(_parts(kind, item, "summary")):
        yield from _part("response.reasoning_summary_part", at | {"summary_index": index}, part)
    for index, part in enumerate(_parts(kind, item, "content")):
        yield from _part("response.content_part", at | {"content_index": index}, part)
    if kind in _STRINGS:
        yield from _string(f"response.{kind}_{_STRINGS[kind]}", at, _STRINGS[kind], item)
    for step in later:
        yield from _told(kind, step, at)
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


def _announced(kind: str, item: Members) -> Body:
    new = _NEW_ITEM.get(kind, {})
    return {name: new.get(name, value) for name, value in item.items() if new.get(name, value) is not None}


def _steps(kind: str, item: Members) -> tuple[str, ...]:
    """The steps of an item; an empty one where its kind has none."""
    if kind not in _STEPS:
        return ("",)
    status = _text(item, "status") or ("failed" if _is_there(item, "error") else "completed")
    if status == "completed":
        return ("in_progress", *_STEPS[kind], status)
    return ("in_progress", status) if status == "failed" and kind != "web_search_call" else ("in_progress",)


def _told(kind: str, step: str, at: Body) -> Iterator[Body]:
    if step:
        yield {"type": f"response.{kind}.{step}", **at}


def _parts(kind: str, item: Members, name: str) -> list[dict[str, Raw]]:
    if kind not in ("message", "reasoning") or not _is_there(item, name):
        return []
    parts = msgspec.json.decode(item[name], type=list[dict[str, Raw]])
    return parts if all(_text(part, "type") in _TEXTS for part in parts) else []


def _part(event: str, at: Body, part: Members) -> Iterator[Body]:
    made_by, key = _TEXTS[_text(part, "type")]
    text = _text(part, key)
    logprobs: Body = {"logprobs": part.get("logprobs", [])} if made_by == "response.output_text" else {}
    yield {"type": f"{event}.added", **at, "part": {**part, key: "", **({"annotations": []} if "annotations" in part else {})}}
    if text:
        yield {"type": f"{made_by}.delta", **at, "delta": text, **logprobs}
    yield from _annotations(at, part)
    yield {"type": f"{made_by}.done", **at, key: text, **logprobs}
    yield {"type": f"{event}.done", **at, "part": part}


def _annotations(at: Body, part: Members) -> Iterator[Body]:
    for index, annotation in enumerate(msgspec.json.decode(part["annotations"], type=list[Raw]) if "annotations" in part else ()):
        yield {"type": "response.output_text.annotation.added", **at, "annotation_index": index, "annotation": annotation}


def _string(event: str, at: Body, key: str, item: Members) -> Iterator[Body]:
    made = _text(item, key)
    if made:
        yield {"type": f"{event}.delta", **at, "delta": made}
    yield {"type": f"{event}.done", **at, key: made}


def _text(members: Members, name: str) -> str:
    return msgspec.json.decode(members[name], type=str) if _is_there(members, name) else ""


def _is_there(members: Members, name: str) -> bool:
    return bytes(members.get(name, b"null")) != b"null"


def _event(number: int, body: Body) -> StreamEvent:
    data = msgspec.json.encode(body | {"sequence_number": number})
    return StreamEvent(type=str(body["type"]), sequence_number=number, data=data)
