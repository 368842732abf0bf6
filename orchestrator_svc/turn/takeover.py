"""Taking over: what another process has shown of a turn since the turn was last saved, read from its log. Pure.

Viewers have seen those events, so their numbers, indexes and ids are not given out again, and what they announced stays in the output. The
items that are still open in the log come back open; `machine` closes them when the turn begins here.
"""

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from orchestrator_svc.items import Item, JsonObject, encode
from orchestrator_svc.tools.base import Tool
from orchestrator_svc.turn import shapes
from orchestrator_svc.turn.actions import StreamEvent
from orchestrator_svc.turn.events import PartKind
from orchestrator_svc.turn.parts import Part, text_in
from orchestrator_svc.turn.state import Phase, Turn
from orchestrator_svc.turn.written import OpenItem, Output
from svckit.ids import block_of


def behind_log(turn: Turn, logged: Iterable[StreamEvent]) -> Turn:
    """The turn behind all that is logged of it and that it does not know of itself. An empty log leaves it as it is."""
    reader = _Reader(turn.output)
    for event in logged:
        reader.read(event)
    if reader.output is turn.output:
        return turn
    return replace(turn, output=reader.lifted(), phase=Phase.STREAMING)


class _Reader:
    def __init__(self, output: Output) -> None:
        self.output = output
        self._open: dict[str, OpenItem] = {}
        self._closed: list[tuple[int, Item]] = []

    def lifted(self) -> Output:
        """The output with what was read."""
        running = [item for item in self._open.values() if _runs(item)]
        still_open = [item for item in self._open.values() if not _runs(item)]
        return replace(
            self.output,
            closed=(*self.output.closed, *self._closed),
            open=tuple(still_open),
            running=tuple(running),
        )

    def read(self, event: StreamEvent) -> None:
        fields = msgspec.json.decode(event.data, type=JsonObject)
        self.output = replace(self.output, sequence=max(self.output.sequence, event.sequence_number + 1))
        handler = _HANDLERS.get(event.type) or _HANDLERS.get(event.type.rpartition(".")[2])
        if handler is not None:
            handler(self, fields)

    def added(self, fields: JsonObject) -> None:
        item, index = _object(fields["item"]), _number(fields["output_index"])
        order = self._order_of(str(item["id"]))
        output = self.output
        opened = self._open[str(item["id"])] = _opened(item, index, order)
        self.output = replace(
            output,
            announced=max(output.announced, index + 1),
            ordered=max(output.ordered, order + 1),
            call_ids=output.call_ids | {opened.call_id} if opened.call_id else output.call_ids,
        )

    def _order_of(self, item_id: str) -> int:
        block = block_of(item_id)
        assert block is not None
        return block.unique - self.output.ids.unique - self.output.next_id

    def part_added(self, fields: JsonObject) -> None:
        part = _object(fields["part"])
        kind, index = PartKind(part["type"]), _number(fields.get("content_index", fields.get("summary_index")))
        self._with_part(fields, Part(kind, index, index, "", "", b""))

    def delta(self, fields: JsonObject) -> None:
        part = self._part_of(fields) or Part(PartKind.ARGUMENTS, 0, 0, "", "", b"")
        logprobs = (encode(fields["logprobs"]),) if fields.get("logprobs") else ()
        self._with_part(fields, replace(part, text=part.text + text_in(fields, "delta"), logprobs=part.logprobs + logprobs))

    def annotated(self, fields: JsonObject) -> None:
        part = self._part_of(fields)
        if part is not None:
            self._with_part(fields, replace(part, annotations=(*part.annotations, _object(fields["annotation"]))))

    def part_closed(self, fields: JsonObject) -> None:
        item, part = self._open.get(str(fields["item_id"])), self._part_of(fields)
        if item is not None and part is not None:
            self._open[item.id] = replace(item, part=None, closed_parts=(*item.closed_parts, part))

    def arguments_closed(self, fields: JsonObject) -> None:
        """The done event of a call's arguments is the end of its one part; texts have an event of their own for that."""
        part = self._part_of(fields)
        if part is not None and part.kind is PartKind.ARGUMENTS:
            self.part_closed(fields)

    def closed(self, fields: JsonObject) -> None:
        shown = _object(fields["item"])
        item = self._open.pop(str(shown["id"]))
        body = encode({key: value for key, value in shown.items() if key != "id"})
        self._closed.append((item.order, Item(item.id, str(shown["type"]), body, b"", 0)))

    def _part_of(self, fields: JsonObject) -> Part | None:
        item = self._open.get(str(fields.get("item_id")))
        return item.part if item is not None else None

    def _with_part(self, fields: JsonObject, part: Part) -> None:
        item = self._open.get(str(fields["item_id"]))
        if item is not None:
            self._open[item.id] = replace(item, part=part)


_HANDLERS: dict[str, Callable[[_Reader, JsonObject], None]] = {
    "response.output_item.added": _Reader.added,
    "response.output_item.done": _Reader.closed,
    "response.content_part.added": _Reader.part_added,
    "response.content_part.done": _Reader.part_closed,
    "response.reasoning_summary_part.added": _Reader.part_added,
    "response.reasoning_summary_part.done": _Reader.part_closed,
    "response.output_text.annotation.added": _Reader.annotated,
    "delta": _Reader.delta,
    "done": _Reader.arguments_closed,
}


def _opened(item: JsonObject, index: int, order: int) -> OpenItem:
    """An announced item. What only its kind of call knows is taken from the item, as the tools of the turn may not be listed yet."""
    kind, id = str(item["type"]), str(item["id"])
    opened = OpenItem(-1 - index, kind, id=id, order=order, index=index)
    shape = _SHAPES.get(kind)
    if shape is None:
        return opened
    name = text_in(item, "name") or kind
    group = text_in(item, "namespace") or text_in(item, "server_label")
    tool = Tool(name, kind, name, group)
    approval = text_in(item, "approval_request_id")
    call_id = text_in(item, "call_id") or id
    return replace(opened, type="function_call", name=name, call_id=call_id, tool=tool, shape=shape, approval_request_id=approval)


def _runs(item: OpenItem) -> bool:
    """Whether it is a call of the gateway's own, with all of its arguments."""
    shape = item.shape
    return shape is not None and shape.runs and item.part is None and bool(item.closed_parts or not shape.arguments)


_SHAPES = {
    shape.type: shape
    for shape in (shapes.FUNCTION_CALL, shapes.CUSTOM_CALL, shapes.TOOL_SEARCH_CALL, shapes.WEB_SEARCH_CALL, shapes.MCP_CALL)
}


def _object(value: object) -> JsonObject:
    assert isinstance(value, dict)
    return value


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
