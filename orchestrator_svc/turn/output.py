"""The output of a turn, as a projection: model events go in, stream events and finished items come out.

This file alone knows the order of stream events. Its rules (the Responses wire):
- numbers rise by one over the whole turn, whatever the model calls were numbered like; an output index is given once and never again;
- an item is announced with the first thing that there is to show of it, so that an empty item never shows;
- an item is closed before the next one is announced, but not before: only then is it known whether a limit has cut it;
- a part is opened before its deltas and closed after them, and the deltas joined are the text that closes it.

It does no IO. While a batch of events is written a `_Pen` holds the working state; before and after there are only values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from orchestrator_svc.items import PREFIXES, Item, JsonObject, encode, make
from orchestrator_svc.turn.actions import StreamEvent
from orchestrator_svc.turn.events import AnnotationAdded, ItemFinished, ItemStarted, ModelEvent, PartDelta, PartKind
from svckit.ids import IdBlock


@dataclass(frozen=True, slots=True)
class _Part:
    """A part that has been opened; `source` is the engine's number for it, `index` ours."""

    kind: PartKind
    source: int
    index: int
    text: str
    delta_head: bytes
    logprobs: tuple[bytes, ...] = ()
    annotations: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class _OpenItem:
    """An item that is not closed; without an id it is not announced yet and `held` is its blank text or its arguments so far."""

    key: int
    type: str
    name: str = ""
    call_id: str = ""
    id: str = ""
    index: int = -1
    held: tuple[PartDelta, ...] = ()
    closed_parts: tuple[_Part, ...] = ()
    part: _Part | None = None
    final: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """All that a turn has sent so far. `reasoning` is the event name of raw reasoning, `provider` who made the items."""

    ids: IdBlock
    reasoning: str
    provider: str
    next_id: int
    sequence: int = 0
    announced: int = 0
    size: int = 0
    open: tuple[_OpenItem, ...] = ()
    closed: tuple[tuple[int, Item], ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        """The finished items in output order."""
        return tuple(item for _, item in sorted(self.closed, key=lambda pair: pair[0]))

    @property
    def ends_cut(self) -> bool:
        """Whether the model says that the last of the open items is incomplete."""
        last = _in_closing_order(self.open)[-1:]
        return bool(last) and (last[0].final or {}).get("status") == "incomplete"


Written = tuple[Output, tuple[StreamEvent, ...]]


def project(output: Output, events: Iterable[ModelEvent]) -> Written:
    """Writes what the model sent."""
    pen = _Pen(output)
    for _, run in groupby(events, key=_run_of):
        pen.write(list(run))
    return pen.lifted()


def close(output: Output, *, cut: bool) -> Written:
    """Closes every open item; with `cut` the last of them is incomplete."""
    pen = _Pen(output)
    pen.close_all("incomplete" if cut else "completed")
    return pen.lifted()


def abandon(output: Output) -> Written:
    """Closes every item that the model has not ended as incomplete."""
    pen = _Pen(output)
    pen.close_finished()
    pen.abandon_all()
    return pen.lifted()


def lifecycle(output: Output, type: str, response: bytes) -> Written:
    """Writes one event about the response as a whole."""
    data = b'{"type":%b,"response":%b,"sequence_number":%d}' % (encode(type), response, output.sequence)
    return replace(output, sequence=output.sequence + 1), (StreamEvent(type, output.sequence, data),)


def _run_of(event: ModelEvent) -> object:
    """Deltas of one part that follow one another are written together."""
    return (event.key, event.kind, event.part) if isinstance(event, PartDelta) else id(event)


class _Pen:
    """Writes one batch."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._sequence = output.sequence
        self._announced = output.announced
        self._size = output.size
        self._closed = list(output.closed)
        self._events: list[StreamEvent] = []
        self.open = {item.key: item for item in output.open}

    def lifted(self) -> Written:
        output = replace(
            self._output,
            sequence=self._sequence,
            announced=self._announced,
            size=self._size,
            open=tuple(self.open.values()),
            closed=tuple(self._closed),
        )
        return output, tuple(self._events)

    def write(self, run: Sequence[ModelEvent]) -> None:
        match run[0]:
            case PartDelta():
                self._deltas([event for event in run if isinstance(event, PartDelta)])
            case ItemStarted() as started:
                self._start(started)
            case AnnotationAdded() as added:
                self._annotate(added)
            case ItemFinished() as finished:
                self._finish(finished)

    def close_finished(self) -> None:
        self._close_each(_in_closing_order(item for item in self.open.values() if item.final is not None), "completed")

    def close_all(self, last_status: str) -> None:
        self._close_each(_in_closing_order(self.open.values()), last_status)
        self.open.clear()

    def abandon_all(self) -> None:
        for item in _in_closing_order(self.open.values()):
            self._close(item, "incomplete")
        self.open.clear()

    def _close_each(self, items: Sequence[_OpenItem], last_status: str) -> None:
        for item in items:
            self._close(item, last_status if item is items[-1] else "completed")

    def _close(self, item: _OpenItem, status: str) -> None:
        del self.open[item.key]
        if not item.id:
            item = self._given_a_place(item)
        if item.type == "function_call" and item.part is None:
            item = self._part_opened(item, PartDelta(item.key, PartKind.ARGUMENTS, 0, ""))
        item = self._part_closed(item)
        made = make(item.id, _body(item, status), self._output.provider)
        self._event("response.output_item.done", {"output_index": item.index, "item": msgspec.Raw(made.shown)})
        self._closed.append((item.index, made))

    def _start(self, started: ItemStarted) -> None:
        item = _OpenItem(started.key, started.type, started.name, started.call_id)
        self._keep(self._announced_now(item) if item.name else item)

    def _deltas(self, run: list[PartDelta]) -> None:
        first = run[0]
        item = self.open.get(first.key) or _OpenItem(first.key, _ITEM_OF[first.kind])
        if item.final is not None:
            return
        self._keep(self._shown(item, run))

    def _shown(self, item: _OpenItem, run: list[PartDelta]) -> _OpenItem:
        """The item with these deltas; held back while there is nothing to show yet."""
        if item.id:
            return self._streamed(item, run)
        text = "".join(delta.text for delta in run)
        if item.type == "function_call" or not text.strip():
            self._size += len(text)
            return replace(item, held=_held(item.held, run, text))
        return self._streamed(self._shown_from_the_start(item), run)

    def _shown_from_the_start(self, item: _OpenItem) -> _OpenItem:
        """The item announced, with what was held back of it."""
        held, item = item.held, self._announced_now(item)
        for delta in held:
            self._size -= len(delta.text)
            item = self._streamed(item, [delta])
        return item

    def _streamed(self, item: _OpenItem, run: list[PartDelta]) -> _OpenItem:
        item = self._part_opened(item, run[0])
        part = item.part
        assert part is not None
        name, tail = _names(part.kind, self._output.reasoning)[0], b"}"
        for delta in run:
            if part.kind is PartKind.TEXT:
                tail = b',"logprobs":%b}' % delta.logprobs
            data = b'%b%b,"sequence_number":%d%b' % (part.delta_head, encode(delta.text), self._sequence, tail)
            self._events.append(StreamEvent(name, self._sequence, data))
            self._sequence += 1
        text = "".join(delta.text for delta in run)
        self._size += len(text)
        logprobs = part.logprobs + tuple(delta.logprobs for delta in run if delta.logprobs != b"[]")
        return replace(item, part=replace(part, text=part.text + text, logprobs=logprobs))

    def _annotate(self, added: AnnotationAdded) -> None:
        item = self.open.get(added.key)
        if item is not None and item.part is not None and item.part.kind is PartKind.TEXT:
            self._keep(self._annotated(item, added.annotation))

    def _annotated(self, item: _OpenItem, annotation: JsonObject) -> _OpenItem:
        part = item.part
        assert part is not None
        place = _place(item, part) | {"annotation_index": len(part.annotations), "annotation": annotation}
        self._event("response.output_text.annotation.added", place)
        return replace(item, part=replace(part, annotations=(*part.annotations, annotation)))

    def _finish(self, finished: ItemFinished) -> None:
        """Shows what the engine's final item has and its deltas had not; what was shown already stays as it was shown."""
        item = self.open.get(finished.key) or _OpenItem(finished.key, str(finished.item["type"]))
        if item.final is not None or item.type != finished.item["type"]:
            return
        if item.type == "function_call" and not item.id:
            item = self._named(item, finished.item)
        for kind, source, part in _final_parts(finished.item):
            item = self._caught_up(item, kind, source, part)
        self._keep(replace(item, final=finished.item))

    def _named(self, item: _OpenItem, final: JsonObject) -> _OpenItem:
        name = item.name or _text(final, "name")
        if not name:
            return item
        item = replace(item, name=name, call_id=item.call_id or _text(final, "call_id"))
        return self._announced_now(item) if _text(final, "arguments") else self._shown_from_the_start(item)

    def _caught_up(self, item: _OpenItem, kind: PartKind, source: int, final: JsonObject) -> _OpenItem:
        if any(_is_at(part, kind, source) for part in item.closed_parts):
            return item
        shown = item.part.text if item.part is not None and _is_at(item.part, kind, source) else ""
        text = _text(final, _FIELD[kind])
        if len(text) > len(shown) and text.startswith(shown):
            item = replace(item, held=tuple(delta for delta in item.held if (delta.kind, delta.part) != (kind, source)))
            item = self._shown(item, [PartDelta(item.key, kind, source, text[len(shown) :])])
        if item.part is not None and _is_at(item.part, PartKind.TEXT, source):
            return self._all_annotated(item, final.get("annotations"), len(item.part.annotations))
        return item

    def _all_annotated(self, item: _OpenItem, annotations: object, known: int) -> _OpenItem:
        for annotation in annotations[known:] if isinstance(annotations, list) else ():
            if isinstance(annotation, dict):
                item = self._annotated(item, annotation)
        return item

    def _announced_now(self, item: _OpenItem) -> _OpenItem:
        self.close_finished()
        return self._given_a_place(item)

    def _given_a_place(self, item: _OpenItem) -> _OpenItem:
        output = self._output
        item = replace(
            item,
            id=output.ids.id(PREFIXES[item.type], output.next_id + self._announced),
            index=self._announced,
            call_id=self._distinct_call_id(item),
            held=(),
        )
        self._announced += 1
        self._event("response.output_item.added", {"output_index": item.index, "item": {"id": item.id} | _opening(item)})
        return item

    def _distinct_call_id(self, item: _OpenItem) -> str:
        if item.type != "function_call":
            return ""
        taken = {made.opens for _, made in self._closed} | {other.call_id for other in self.open.values() if other.id}
        if item.call_id and item.call_id not in taken:
            return item.call_id
        return self._output.ids.id("call", self._output.next_id + self._announced)

    def _part_opened(self, item: _OpenItem, delta: PartDelta) -> _OpenItem:
        if item.part is not None and _is_at(item.part, delta.kind, delta.part):
            return item
        item = self._part_closed(item)
        index = sum(_LIST_OF[part.kind] == _LIST_OF[delta.kind] for part in item.closed_parts)
        part = _Part(delta.kind, delta.part, index, "", _delta_head(item, delta.kind, index, self._output.reasoning))
        added = _PART_EVENTS[delta.kind]
        if added:
            self._event(f"{added}.added", _place(item, part) | {"part": _part_body(part)})
        return replace(item, part=part)

    def _part_closed(self, item: _OpenItem) -> _OpenItem:
        part = item.part
        if part is None:
            return item
        done = _place(item, part) | {_FIELD[part.kind]: part.text}
        if part.kind is PartKind.TEXT:
            done["logprobs"] = msgspec.Raw(_joined(part.logprobs))
        if part.kind is PartKind.ARGUMENTS:
            done["name"] = item.name
        self._event(_names(part.kind, self._output.reasoning)[1], done)
        added = _PART_EVENTS[part.kind]
        if added:
            self._event(f"{added}.done", _place(item, part) | {"part": _part_body(part)})
        return replace(item, part=None, closed_parts=(*item.closed_parts, part))

    def _keep(self, item: _OpenItem) -> None:
        self.open[item.key] = item

    def _event(self, type: str, fields: JsonObject) -> None:
        data = encode({"type": type} | fields | {"sequence_number": self._sequence})
        self._events.append(StreamEvent(type, self._sequence, data))
        self._sequence += 1


# The wire's names for the kinds of parts.

_ITEM_OF = {
    PartKind.TEXT: "message",
    PartKind.REFUSAL: "message",
    PartKind.REASONING: "reasoning",
    PartKind.SUMMARY: "reasoning",
    PartKind.ARGUMENTS: "function_call",
}
_LIST_OF = {
    PartKind.TEXT: "content",
    PartKind.REFUSAL: "content",
    PartKind.REASONING: "content",
    PartKind.SUMMARY: "summary",
    PartKind.ARGUMENTS: "arguments",
}
_FIELD = {
    PartKind.TEXT: "text",
    PartKind.REFUSAL: "refusal",
    PartKind.REASONING: "text",
    PartKind.SUMMARY: "text",
    PartKind.ARGUMENTS: "arguments",
}
_PART_EVENTS = {
    PartKind.TEXT: "response.content_part",
    PartKind.REFUSAL: "response.content_part",
    PartKind.REASONING: "response.content_part",
    PartKind.SUMMARY: "response.reasoning_summary_part",
    PartKind.ARGUMENTS: "",
}
_EVENTS = {
    PartKind.TEXT: "response.output_text",
    PartKind.REFUSAL: "response.refusal",
    PartKind.SUMMARY: "response.reasoning_summary_text",
    PartKind.ARGUMENTS: "response.function_call_arguments",
}
_INDEX_NAMES = {"content": "content_index", "summary": "summary_index"}


def _is_at(part: _Part, kind: PartKind, source: int) -> bool:
    return part.kind is kind and (part.source == source or kind is PartKind.ARGUMENTS)


def _held(held: tuple[PartDelta, ...], run: Sequence[PartDelta], text: str) -> tuple[PartDelta, ...]:
    """What is held back with one more run; all of one part is one delta."""
    first, logprobs = run[0], tuple(delta.logprobs for delta in run)
    if held and (held[-1].kind, held[-1].part) == (first.kind, first.part):
        *held_before, last = held
        return (*held_before, replace(last, text=last.text + text, logprobs=_joined((last.logprobs, *logprobs))))
    return (*held, replace(first, text=text, logprobs=_joined(logprobs)))


def _in_closing_order(items: Iterable[_OpenItem]) -> list[_OpenItem]:
    """Announced items by their index, then those that can still be announced; the rest has nothing to show."""
    items = list(items)
    announced = sorted((item for item in items if item.id), key=lambda item: item.index)
    return announced + [item for item in items if not item.id and _is_opaque(item)]


def _names(kind: PartKind, reasoning: str) -> tuple[str, str]:
    base = _EVENTS.get(kind, reasoning)
    return f"{base}.delta", f"{base}.done"


def _place(item: _OpenItem, part: _Part) -> JsonObject:
    place: JsonObject = {"item_id": item.id, "output_index": item.index}
    name = _INDEX_NAMES.get(_LIST_OF[part.kind])
    return place | {name: part.index} if name else place


def _delta_head(item: _OpenItem, kind: PartKind, index: int, reasoning: str) -> bytes:
    place = _place(item, _Part(kind, 0, index, "", b""))
    return encode({"type": _names(kind, reasoning)[0]} | place)[:-1] + b',"delta":'


def _part_body(part: _Part) -> JsonObject:
    body: JsonObject = {"type": part.kind.value, _FIELD[part.kind]: part.text}
    if part.kind is PartKind.TEXT:
        body |= {"annotations": list(part.annotations), "logprobs": msgspec.Raw(_joined(part.logprobs))}
    return body


def _joined(lists: tuple[bytes, ...]) -> bytes:
    """One JSON list of the elements of several."""
    return b"[" + b",".join(filter(None, (one.strip()[1:-1].strip() for one in lists))) + b"]"


def _opening(item: _OpenItem) -> JsonObject:
    """The item as it is announced, without its id."""
    if item.type == "message":
        return {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
    if item.type == "reasoning":
        return {"type": "reasoning", "summary": []}
    return {"type": "function_call", "status": "in_progress", "call_id": item.call_id, "name": item.name, "arguments": ""}


def _body(item: _OpenItem, status: str) -> JsonObject:
    """The item as it is closed, without its id; what else the engine said of it is carried."""
    body = _opening(item)
    if item.type != "reasoning" or status == "incomplete":
        body["status"] = status
    for part in item.closed_parts:
        if part.kind is PartKind.ARGUMENTS:
            body["arguments"] = part.text
        else:
            _list_in(body, _LIST_OF[part.kind]).append(_part_body(part))
    rest = {key: value for key, value in (item.final or {}).items() if key not in body and key not in _OURS and value is not None}
    return body | rest


_OURS = ("id", "status", "content", "summary")


def _list_in(body: JsonObject, key: str) -> list[JsonObject]:
    found = body.setdefault(key, [])
    assert isinstance(found, list)
    return found


def _is_opaque(item: _OpenItem) -> bool:
    """Reasoning without text that still carries something for its maker; everything else without text is not worth showing."""
    return item.type == "reasoning" and bool((item.final or {}).get("encrypted_content"))


def _final_parts(item: JsonObject) -> Iterable[tuple[PartKind, int, JsonObject]]:
    if item["type"] == "function_call":
        yield PartKind.ARGUMENTS, 0, item
    for name in ("summary", "content"):
        parts = item.get(name)
        for source, part in enumerate(parts if isinstance(parts, list) else ()):
            kind = _KINDS.get(str(part.get("type"))) if isinstance(part, dict) else None
            if kind is not None and _ITEM_OF[kind] == item["type"] and kind is not PartKind.ARGUMENTS:
                yield kind, source, part


_KINDS = {kind.value: kind for kind in PartKind}


def _text(item: JsonObject, key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""
