"""Parts: the text that an item streams, and what the wire calls its events. Pure.

A message streams text or refusals, reasoning streams raw text or summaries, a call streams its argument string. Which events a call's
arguments have depends on how the call is shown (`shapes`).
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orchestrator_svc.items import JsonObject, encode
from orchestrator_svc.turn.actions import StreamEvent
from orchestrator_svc.turn.events import ITEM_OF, PartDelta, PartKind
from orchestrator_svc.turn.shapes import Shape


class Part(Struct, frozen=True):
    """A part that has been opened; `source` is the engine's number for it, `index` ours.

    `delta_event` is the type of the events that extend it, `delta_head` the start of their data.
    """

    kind: PartKind
    source: int
    index: int
    text: str
    delta_event: str
    delta_head: bytes
    logprobs: tuple[bytes, ...] = ()
    annotations: tuple[JsonObject, ...] = ()


LIST_OF = {
    PartKind.TEXT: "content",
    PartKind.REFUSAL: "content",
    PartKind.REASONING: "content",
    PartKind.SUMMARY: "summary",
    PartKind.ARGUMENTS: "",
}
INDEX_NAME = {"content": "content_index", "summary": "summary_index"}
PART_EVENTS = {
    PartKind.TEXT: "response.content_part",
    PartKind.REFUSAL: "response.content_part",
    PartKind.REASONING: "response.content_part",
    PartKind.SUMMARY: "response.reasoning_summary_part",
    PartKind.ARGUMENTS: "",
}
_FIELDS = {PartKind.REFUSAL: "refusal"}
_EVENTS = {
    PartKind.TEXT: "response.output_text",
    PartKind.REFUSAL: "response.refusal",
    PartKind.SUMMARY: "response.reasoning_summary_text",
}


def field_of(kind: PartKind, shape: Shape | None) -> str:
    """The key under which the whole text of a part stands."""
    return shape.field if shape is not None else _FIELDS.get(kind, "text")


def event_of(kind: PartKind, shape: Shape | None, reasoning: str) -> str:
    """The base name of a part's delta and done events; `reasoning` is that of raw reasoning."""
    return shape.arguments if shape is not None else _EVENTS.get(kind, reasoning)


def extended(part: Part, run: Sequence[PartDelta], sequence: int) -> tuple[Part, tuple[StreamEvent, ...]]:
    """The part with more text, and the events that say so, numbered from `sequence`."""
    head, kind, has_logprobs = part.delta_head, part.delta_event, part.kind is PartKind.TEXT
    stream: list[StreamEvent] = []
    text, logprobs = part.text, [*part.logprobs]
    for number, delta in enumerate(run, start=sequence):
        if has_logprobs:
            data = b'%b%b,"sequence_number":%d,"logprobs":%b}' % (head, encode(delta.text), number, delta.logprobs)
        else:
            data = b'%b%b,"sequence_number":%d}' % (head, encode(delta.text), number)
        stream.append(StreamEvent(kind, number, data))
        text += delta.text
        if delta.logprobs != b"[]":
            logprobs.append(delta.logprobs)
    return replace(part, text=text, logprobs=tuple(logprobs)), tuple(stream)


def body_of(part: Part) -> JsonObject:
    """A content or summary part as it stands in its item."""
    body: JsonObject = {"type": part.kind.value, field_of(part.kind, None): part.text}
    if part.kind is PartKind.TEXT:
        body |= {"annotations": list(part.annotations), "logprobs": logprobs_of(part)}
    return body


def logprobs_of(part: Part) -> msgspec.Raw:
    """All log probabilities of a part, as one JSON list."""
    return msgspec.Raw(joined(part.logprobs))


def joined(lists: tuple[bytes, ...]) -> bytes:
    """One JSON list of the elements of several."""
    return b"[" + b",".join(filter(None, (one.strip()[1:-1].strip() for one in lists))) + b"]"


def final_parts(item: JsonObject) -> list[tuple[PartKind, int, str, JsonObject]]:
    """The parts of an engine's final item: kind, number, whole text, and the part itself."""
    if item["type"] == "function_call":
        return [(PartKind.ARGUMENTS, 0, text_in(item, "arguments"), item)]
    found: list[tuple[PartKind, int, str, JsonObject]] = []
    for name in ("summary", "content"):
        given = item.get(name)
        for source, part in enumerate(given if isinstance(given, list) else ()):
            kind = _KINDS.get(str(part.get("type"))) if isinstance(part, dict) else None
            if kind is not None and ITEM_OF[kind] == item["type"] and kind is not PartKind.ARGUMENTS:
                found.append((kind, source, text_in(part, field_of(kind, None)), part))
    return found


_KINDS = {kind.value: kind for kind in PartKind}


def text_in(item: JsonObject, key: str) -> str:
    """The string under `key`, empty where there is none."""
    value = item.get(key)
    return value if isinstance(value, str) else ""
