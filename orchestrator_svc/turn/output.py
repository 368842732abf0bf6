"""The output of a turn, as a projection: model events and tool results go in, stream events and finished items come out.

This file alone knows the order of stream events. Its rules (the Responses wire):
- numbers rise by one over the whole turn, whatever the model calls were numbered like; an output index is given once and never again;
- an item is announced with the first thing that there is to show of it, so that an empty item never shows;
- an item that the model has ended is closed before the next one is announced, but not before: only then is it known whether a limit has cut
  it; the call of a gateway-owned tool stays open until the tool has run;
- a part is opened before its deltas and closed after them, and the deltas joined are the text that closes it.

It does no IO. While a batch of events is written a `_Pen` holds the working state; before and after there are only values.
"""

import dataclasses
from collections.abc import Sequence
from itertools import groupby
from typing import cast

import msgspec
from msgspec.structs import replace

from orchestrator_svc.context.rendering import NOTHING, call_and_output
from orchestrator_svc.items import (
    MODEL_ONLY,
    PREFIXES,
    Item,
    JsonObject,
    encode,
    make,
    make_called,
    make_model_only,
    make_standing_for,
    out_of_context,
)
from orchestrator_svc.tools.base import ListedTool, ToolCall, ToolResult
from orchestrator_svc.turn import parts, shapes
from orchestrator_svc.turn.actions import StreamEvent
from orchestrator_svc.turn.citations import citations_in
from orchestrator_svc.turn.events import ITEM_OF, AnnotationAdded, ItemFinished, ItemStarted, ModelEvent, PartDelta, PartKind
from orchestrator_svc.turn.parts import Part, text_in
from orchestrator_svc.turn.written import (
    OpenItem,
    Output,
    Written,
    body_of,
    call_body_of,
    in_closing_order,
    listed_of,
    opening_of,
    place_of,
)


def project(output: Output, events: Sequence[ModelEvent]) -> Written:
    """Writes what the model sent."""
    pen = _Pen(output)
    for _, run in groupby(events, key=_run_of):
        pen.write(list(run))
    return pen.lifted()


def close(output: Output, *, cut: bool) -> Written:
    """Closes what the model has said; with `cut` the last item is incomplete. Calls of the gateway's tools go on to `calls`."""
    pen = _Pen(output)
    pen.close_all("incomplete" if cut else "completed")
    return pen.lifted()


def abandon(output: Output) -> Written:
    """Closes every item that has not ended as incomplete, calls that still run among them."""
    pen = _Pen(output)
    pen.close_finished()
    pen.abandon_all()
    for item in list(pen.running.values()):
        pen.abandon_call(item)
    return pen.lifted()


def begin_call(output: Output, call: ToolCall, arguments: str) -> Written:
    """Announces a call that a client has approved, with the arguments as they were approved; its result is then awaited."""
    pen = _Pen(output)
    pen.begin_call(call, arguments)
    return pen.lifted()


def finish_call(output: Output, call_id: str, result: ToolResult) -> Written:
    """Closes a call with its result."""
    pen = _Pen(output)
    pen.finish_call(pen.running[call_id], result)
    return pen.lifted()


def show_listing(output: Output, label: str, listed: Sequence[ListedTool], error: str | None) -> Written:
    """Writes the listing of one MCP server, or why there is none."""
    pen = _Pen(output)
    pen.show_listing(label, listed, error)
    return pen.lifted()


def left_out(output: Output, behind: int) -> Output:
    """The same output, but nothing continues from its items behind the first `behind`, and the model sees nothing of them."""
    closed = sorted(output.closed, key=lambda pair: pair[0])
    dropped = [(order, out_of_context(item)) for order, item in closed[behind:]]
    return replace(output, closed=(*closed[:behind], *dropped))


def show_compaction(output: Output, blob: str, window: bytes) -> Written:
    """Writes a compaction: clients see the blob, the model sees the window."""
    pen = _Pen(output)
    pen.show_compaction(blob, window)
    return pen.lifted()


def lifecycle(output: Output, type: str, response: bytes) -> Written:
    """Writes one event about the response as a whole."""
    data = b'{"type":%b,"response":%b,"sequence_number":%d}' % (encode(type), response, output.sequence)
    return replace(output, sequence=output.sequence + 1), (StreamEvent(type, output.sequence, data),)


def more_text(output: Output, events: Sequence[ModelEvent]) -> Written | None:
    """The same as a pen would write for more text of the one open part, or None where that is not all that the model sent.

    Nearly every read holds nothing else, so it takes the short way.
    """
    if len(output.open) != 1 or not events:
        return None
    (item,) = output.open
    part, key = item.part, item.key
    if part is None or item.final is not None:  # an item with an open part is announced, and shows its deltas until it ends
        return None
    kind, source, is_call = part.kind, part.source, part.kind is PartKind.ARGUMENTS
    for event in events:
        if not isinstance(event, PartDelta) or event.key != key or event.kind is not kind or (event.part != source and not is_call):
            return None
    longer, stream = parts.extended(part, cast("Sequence[PartDelta]", events), output.sequence)
    size = output.size + len(longer.text) - len(part.text)
    return replace(output, sequence=output.sequence + len(stream), size=size, open=(replace(item, part=longer),)), stream


def _run_of(event: ModelEvent) -> object:
    """Deltas of one part that follow one another are written together."""
    return (event.key, event.kind, event.part) if isinstance(event, PartDelta) else id(event)


class _Pen:
    """Writes one batch."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._sequence = output.sequence
        self._announced = output.announced
        self._ordered = output.ordered
        self._size = output.size
        self._closed = list(output.closed)
        self._call_ids = output.call_ids
        self._citations = output.citations
        self._events: list[StreamEvent] = []
        self.open = {item.key: item for item in output.open}
        self.running = {item.call_id: item for item in output.running}

    def lifted(self) -> Written:
        output = replace(
            self._output,
            sequence=self._sequence,
            announced=self._announced,
            ordered=self._ordered,
            size=self._size,
            open=tuple(self.open.values()),
            running=tuple(self.running.values()),
            closed=tuple(self._closed),
            call_ids=self._call_ids,
            citations=self._citations,
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

    # What the model says.

    def _start(self, started: ItemStarted) -> None:
        item = OpenItem(started.key, started.type)
        self._keep(self._named(item, started.name, started.call_id) if started.type == "function_call" else item)

    def _named(self, item: OpenItem, name: str, call_id: str) -> OpenItem:
        """The call, now that its name is known; it is announced, unless it is shown as a whole."""
        if not name:
            return replace(item, call_id=item.call_id or call_id)
        tool = self._output.tools.find(name)
        item = replace(item, name=name, call_id=item.call_id or call_id, tool=tool, shape=shapes.shape_of(tool))
        if item.shape is None or item.shape.whole:
            return item
        return self._shown_from_the_start(item)

    def _deltas(self, run: list[PartDelta]) -> None:
        first = run[0]
        item = self.open.get(first.key) or OpenItem(first.key, ITEM_OF[first.kind])
        if item.final is None:
            self._keep(self._shown(item, run))

    def _shown(self, item: OpenItem, run: list[PartDelta]) -> OpenItem:
        """The item with these deltas; held back while there is nothing to show yet, or while its kind shows nothing of them."""
        if item.shows_deltas:
            return self._streamed(item, run)
        text = "".join(delta.text for delta in run)
        if item.type == "function_call" or not text.strip():
            self._size += len(text)
            return replace(item, held=_held(item.held, run, text))
        return self._streamed(self._shown_from_the_start(item), run)

    def _shown_from_the_start(self, item: OpenItem) -> OpenItem:
        """The item announced, with what was held back of it."""
        held, item = item.held, replace(self._announce(item), held=())
        for delta in held:
            self._size -= len(delta.text)
            item = self._shown(item, [delta])
        return item

    def _streamed(self, item: OpenItem, run: list[PartDelta]) -> OpenItem:
        item = self._part_opened(item, run[0])
        part = item.part
        assert part is not None
        longer, stream = parts.extended(part, run, self._sequence)
        self._events += stream
        self._sequence += len(stream)
        self._size += len(longer.text) - len(part.text)
        return replace(item, part=longer)

    def _annotate(self, added: AnnotationAdded) -> None:
        item = self.open.get(added.key)
        if item is not None and item.part is not None and item.part.kind is PartKind.TEXT:
            self._keep(self._annotated(item, item.part, added.annotation))

    def _annotated(self, item: OpenItem, part: Part, annotation: JsonObject) -> OpenItem:
        place = place_of(item, part) | {"annotation_index": len(part.annotations), "annotation": annotation}
        self._event("response.output_text.annotation.added", place)
        return replace(item, part=replace(part, annotations=(*part.annotations, annotation)))

    def _finish(self, finished: ItemFinished) -> None:
        """Shows what the engine's final item has and its deltas had not; what was shown already stays as it was shown."""
        item = self.open.get(finished.key) or OpenItem(finished.key, str(finished.item["type"]))
        if item.final is not None or item.type != finished.item["type"]:
            return
        if item.type == "function_call" and not item.name:
            item = self._named(item, text_in(finished.item, "name"), text_in(finished.item, "call_id"))
        for kind, source, text, part in parts.final_parts(finished.item):
            item = self._caught_up(item, kind, source, text)
            if item.part is not None and _is_at(item.part, PartKind.TEXT, source):
                item = self._all_annotated(item, part.get("annotations"))
        self._keep(replace(item, final=finished.item))

    def _caught_up(self, item: OpenItem, kind: PartKind, source: int, text: str) -> OpenItem:
        if any(_is_at(part, kind, source) for part in item.closed_parts):
            return item
        shown = item.part.text if item.part is not None and _is_at(item.part, kind, source) else ""
        if len(text) <= len(shown) or not text.startswith(shown):
            return item
        item = replace(item, held=tuple(delta for delta in item.held if (delta.kind, delta.part) != (kind, source)))
        return self._shown(item, [PartDelta(item.key, kind, source, text[len(shown) :])])

    def _all_annotated(self, item: OpenItem, annotations: object) -> OpenItem:
        for annotation in annotations if isinstance(annotations, list) else ():
            part = item.part
            if part is not None and isinstance(annotation, dict) and annotation not in part.annotations:
                item = self._annotated(item, part, annotation)
        return item

    # Announcing and closing.

    def _announce(self, item: OpenItem) -> OpenItem:
        self.close_finished()
        return self._placed(item)

    def _placed(self, item: OpenItem) -> OpenItem:
        item = replace(self._ordered_now(item), index=self._announced)
        self._announced += 1
        self._event("response.output_item.added", {"output_index": item.index, "item": {"id": item.id} | opening_of(item)})
        if item.shape is not None and item.shape.started:
            self._event(item.shape.started, {"item_id": item.id, "output_index": item.index})
        return item

    def _ordered_now(self, item: OpenItem) -> OpenItem:
        """The item with its place in the order of all items, its id, and a call id that no other call has."""
        kind = (item.shape.type or MODEL_ONLY) if item.shape is not None else item.type
        output, order = self._output, self._ordered
        self._ordered += 1
        call_id = item.call_id
        if item.type == "function_call":
            is_taken = call_id in self._call_ids or call_id in output.given_call_ids
            call_id = call_id if call_id and not is_taken else output.ids.id("call", output.next_id + order)
            self._call_ids |= {call_id}
        return replace(item, id=output.ids.id(PREFIXES[kind], output.next_id + order), order=order, call_id=call_id)

    def close_finished(self) -> None:
        self._close_each(in_closing_order(item for item in self.open.values() if item.final is not None), "completed")

    def close_all(self, last_status: str) -> None:
        self._close_each(in_closing_order(self.open.values()), last_status)
        self.open.clear()

    def abandon_all(self) -> None:
        for item in in_closing_order(self.open.values()):
            self._close(item, "incomplete")
        self.open.clear()

    def _close_each(self, items: Sequence[OpenItem], last_status: str) -> None:
        for item in items:
            self._close(item, last_status if item is items[-1] else "completed")

    def _close(self, item: OpenItem, status: str) -> None:
        del self.open[item.key]
        if item.type == "function_call":
            self._close_call(item, status)
        else:
            item = self._part_closed(item if item.id else self._placed(item))
            self._done(item, self._sealed(make(item.id, body_of(item, status), self._output.provider)))

    def _sealed(self, made: Item) -> Item:
        """Plain reasoning with a blob that a client can send back in its place, where it asks for that."""
        seal = self._output.seal
        if made.type != "reasoning" or seal is None or not made.rendered or made.origin:
            return made
        body = msgspec.json.decode(made.body, type=JsonObject)
        if body.get("encrypted_content"):
            return made
        return dataclasses.replace(made, body=encode(body | {"encrypted_content": seal(made.rendered)}), prompt=made.rendered)

    def _close_call(self, item: OpenItem, status: str) -> None:
        """A client's call is closed; the gateway's own is kept for its result, unless it was cut."""
        shape = item.shape
        if shape is None or (status == "incomplete" and shape in (shapes.UNDECLARED, shapes.APPROVAL_REQUEST)):
            return
        if shape is shapes.APPROVAL_REQUEST and shapes.parsed(item.arguments) is None:
            # nobody can approve what cannot be run: the model is told
            shape = shapes.UNDECLARED
        item = self._call_shown(replace(item, shape=shape))
        if not shape.runs:
            self._done(item, make(item.id, call_body_of(item, status)))
        elif status == "incomplete":
            self.abandon_call(item)
        else:
            self._await_result(item)

    def _call_shown(self, item: OpenItem) -> OpenItem:
        """The call with all of its arguments shown, as far as its kind shows them."""
        if item.shape is None or item.shape is shapes.UNDECLARED:
            return self._ordered_now(item)
        if not item.id:
            item = self._placed(item)
        if item.shape is shapes.CUSTOM_CALL:
            item = self._streamed(item, [PartDelta(item.key, PartKind.ARGUMENTS, 0, shapes.custom_input(item.arguments))])
        elif item.shape is not None and item.shape.arguments and item.part is None:
            item = self._part_opened(item, PartDelta(item.key, PartKind.ARGUMENTS, 0, ""))
        return self._part_closed(item)

    def _part_opened(self, item: OpenItem, delta: PartDelta) -> OpenItem:
        if item.part is not None and _is_at(item.part, delta.kind, delta.part):
            return item
        item = self._part_closed(item)
        index = sum(parts.LIST_OF[part.kind] == parts.LIST_OF[delta.kind] for part in item.closed_parts)
        part = Part(delta.kind, delta.part, index, "", f"{self._event_name(item, delta.kind)}.delta", b"")
        part = replace(part, delta_head=encode({"type": part.delta_event} | place_of(item, part))[:-1] + b',"delta":')
        added = parts.PART_EVENTS[delta.kind]
        if added:
            self._event(f"{added}.added", place_of(item, part) | {"part": parts.body_of(part)})
        return replace(item, part=part)

    def _part_closed(self, item: OpenItem) -> OpenItem:
        if item.part is None:
            return item
        if item.part.kind is PartKind.TEXT:
            item = self._all_annotated(item, citations_in(item.part.text, self._citations))
        part = item.part
        assert part is not None
        done = place_of(item, part) | {parts.field_of(part.kind, item.shape): part.text}
        if part.kind is PartKind.TEXT:
            done["logprobs"] = parts.logprobs_of(part)
        if item.shape is shapes.FUNCTION_CALL and item.tool is not None:
            done["name"] = item.tool.name
        self._event(f"{self._event_name(item, part.kind)}.done", done)
        added = parts.PART_EVENTS[part.kind]
        if added:
            self._event(f"{added}.done", place_of(item, part) | {"part": parts.body_of(part)})
        return replace(item, part=None, closed_parts=(*item.closed_parts, part))

    # Calls of the gateway's own tools.

    def begin_call(self, call: ToolCall, arguments: str) -> None:
        item = OpenItem(-1, "function_call", call.tool.flat, call.call_id, call.tool, shapes.MCP_CALL, call.approval_request_id)
        item = self._announce(item)
        item = self._streamed(item, [PartDelta(-1, PartKind.ARGUMENTS, 0, arguments)])
        self._await_result(self._part_closed(item))

    def _await_result(self, item: OpenItem) -> None:
        if item.shape is not None and item.shape.running:
            self._event(item.shape.running, {"item_id": item.id, "output_index": item.index})
        self.running[item.call_id] = item

    def finish_call(self, item: OpenItem, result: ToolResult) -> None:
        del self.running[item.call_id]
        self._citations += tuple(one for one in result.citations if one not in self._citations)
        pair = call_and_output(item.call_id, item.name, item.arguments, result.output)
        if item.shape is None or item.shape is shapes.UNDECLARED:
            self._closed.append((item.order, make_model_only(item.id, pair)))
            return
        event = item.shape.failed if result.failed else item.shape.succeeded
        if event:
            self._event(event, {"item_id": item.id, "output_index": item.index})
        body = call_body_of(item, "failed" if result.failed else "completed") | self._public(item, result)
        self._done(item, make_called(item.id, body, pair))

    def abandon_call(self, item: OpenItem) -> None:
        """A call that was cut, or that was still running when the turn ended: the model sees nothing of it."""
        self.running.pop(item.call_id, None)
        if item.shape is None or item.shape is shapes.UNDECLARED:
            return
        body = call_body_of(item, "incomplete") | self._public(item, ToolResult("", failed=True))
        self._done(item, make_called(item.id, body, NOTHING))

    def show_listing(self, label: str, listed: Sequence[ListedTool], error: str | None) -> None:
        item = replace(self._ordered_now(OpenItem(-1, "mcp_list_tools")), index=self._announced)
        self._announced += 1
        place: JsonObject = {"item_id": item.id, "output_index": item.index}
        body: JsonObject = {"type": "mcp_list_tools", "server_label": label, "tools": []}
        self._event("response.output_item.added", {"output_index": item.index, "item": {"id": item.id} | body})
        self._event("response.mcp_list_tools.in_progress", place)
        self._event("response.mcp_list_tools.failed" if error else "response.mcp_list_tools.completed", place)
        body["tools"] = [listed_of(tool) for tool in listed]
        self._done(item, make(item.id, body | ({"error": error} if error else {})))

    def show_compaction(self, blob: str, window: bytes) -> None:
        item = replace(self._ordered_now(OpenItem(key=-1, type="compaction")), index=self._announced)
        self._announced += 1
        place: JsonObject = {"item_id": item.id, "output_index": item.index}
        body: JsonObject = {"type": "compaction", "encrypted_content": blob}
        self._event("response.output_item.added", {"output_index": item.index, "item": {"id": item.id} | body | {"encrypted_content": ""}})
        self._event("response.compaction.compacting", place)
        self._done(item, make_standing_for(item.id, body, window))

    def _public(self, item: OpenItem, result: ToolResult) -> JsonObject:
        public = dict(result.public)
        if item.shape is not shapes.WEB_SEARCH_CALL:
            return shapes.told(result) | public
        query = (shapes.parsed(item.arguments) or {}).get("query")
        action = public.get("action", {"type": "search", "query": query if isinstance(query, str) else ""})
        if isinstance(action, dict) and "web_search_call.action.sources" not in self._output.include:
            action = {key: value for key, value in action.items() if key != "sources"}
        return public | {"action": action}

    def _event_name(self, item: OpenItem, kind: PartKind) -> str:
        return parts.event_of(kind, item.shape, self._output.reasoning)

    def _keep(self, item: OpenItem) -> None:
        self.open[item.key] = item

    def _done(self, item: OpenItem, made: Item) -> None:
        self._event("response.output_item.done", {"output_index": item.index, "item": msgspec.Raw(made.shown)})
        self._closed.append((item.order, made))

    def _event(self, type: str, fields: JsonObject) -> None:
        data = encode({"type": type} | fields | {"sequence_number": self._sequence})
        self._events.append(StreamEvent(type, self._sequence, data))
        self._sequence += 1


def _is_at(part: Part, kind: PartKind, source: int) -> bool:
    return part.kind is kind and (part.source == source or kind is PartKind.ARGUMENTS)


def _held(held: tuple[PartDelta, ...], run: Sequence[PartDelta], text: str) -> tuple[PartDelta, ...]:
    """What is held back with one more run; all of one part is one delta."""
    first, logprobs = run[0], tuple(delta.logprobs for delta in run)
    if held and (held[-1].kind, held[-1].part) == (first.kind, first.part):
        *held_before, last = held
        return (*held_before, replace(last, text=last.text + text, logprobs=parts.joined((last.logprobs, *logprobs))))
    return (*held, replace(first, text=text, logprobs=parts.joined(logprobs)))
