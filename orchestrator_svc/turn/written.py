"""What a turn has written so far, as values: its open items, its finished ones, and how an item looks at each stage. Pure.

How it came to be written, and in which order, is `output`'s business.
"""

from collections.abc import Callable, Container, Iterable

from msgspec import Struct, field

from orchestrator_svc.items import Item, JsonObject
from orchestrator_svc.tools.base import Citation, ListedTool, Tool
from orchestrator_svc.tools.table import ToolTable
from orchestrator_svc.turn import parts, shapes
from orchestrator_svc.turn.actions import StreamEvent
from orchestrator_svc.turn.events import PartDelta
from orchestrator_svc.turn.parts import Part
from orchestrator_svc.turn.shapes import Shape
from svckit.ids import IdBlock


class OpenItem(Struct, frozen=True):
    """An item that is not closed. Without an id it is not announced yet; `held` is what is not shown of it: blank text, or arguments.

    `type` is the engine's; for a call, `name` is the engine's too, and `tool` and `shape` say what it is to the client.
    """

    key: int
    type: str
    name: str = ""
    call_id: str = ""
    tool: Tool | None = None
    shape: Shape | None = None
    approval_request_id: str = ""
    id: str = ""
    order: int = -1
    index: int = -1
    held: tuple[PartDelta, ...] = ()
    closed_parts: tuple[Part, ...] = ()
    part: Part | None = None
    final: JsonObject | None = None

    @property
    def shows_deltas(self) -> bool:
        """Whether more of it is shown as it comes."""
        return bool(self.id) and self.final is None and (self.shape is None or bool(self.shape.arguments))

    @property
    def arguments(self) -> str:
        """The argument string of a call, as far as it has come."""
        shown = self.part or (self.closed_parts[-1] if self.closed_parts else None)
        if shown is not None and self.shape is not shapes.CUSTOM_CALL:
            return shown.text
        return "".join(delta.text for delta in self.held)


class MadeCall(Struct, frozen=True):
    """A call that the model has made and the gateway is to answer; `tool` is None when it may not be made."""

    call_id: str
    name: str
    tool: Tool | None
    arguments: str


class Output(Struct, frozen=True):
    """All that a turn has sent so far. `reasoning` is the event name of raw reasoning, `provider` who made the items."""

    ids: IdBlock
    reasoning: str
    provider: str
    next_id: int
    tools: ToolTable = field(default_factory=ToolTable)
    include: frozenset[str] = frozenset()
    seal: Callable[[bytes], str] | None = None
    sequence: int = 0
    announced: int = 0
    ordered: int = 0
    size: int = 0
    open: tuple[OpenItem, ...] = ()
    running: tuple[OpenItem, ...] = ()
    closed: tuple[tuple[int, Item], ...] = ()
    call_ids: frozenset[str] = frozenset()
    given_call_ids: Container[str] = frozenset()
    citations: tuple[Citation, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        """The finished items in order, those that only the model sees among them."""
        return tuple(item for _, item in sorted(self.closed, key=lambda pair: pair[0]))

    def items_from(self, order: int) -> tuple[Item, ...]:
        """The finished items from one place in the order on."""
        return tuple(item for place, item in sorted(self.closed, key=lambda pair: pair[0]) if place >= order)

    @property
    def ends_cut(self) -> bool:
        """Whether the model says that the last of the open items is incomplete."""
        last = in_closing_order(self.open)[-1:]
        return bool(last) and (last[0].final or {}).get("status") == "incomplete"

    @property
    def calls(self) -> tuple[MadeCall, ...]:
        """The calls that wait for their results, in the order in which they were made."""
        waiting = sorted(self.running, key=lambda item: item.order)
        return tuple(MadeCall(item.call_id, item.name, item.tool, item.arguments) for item in waiting)


Written = tuple[Output, tuple[StreamEvent, ...]]


def in_closing_order(items: Iterable[OpenItem]) -> list[OpenItem]:
    """Announced items by their index, then those that can still be announced; the rest has nothing to show."""
    items = list(items)
    announced = sorted((item for item in items if item.id), key=lambda item: item.index)
    return announced + [item for item in items if not item.id and (item.name or is_opaque(item))]


def is_opaque(item: OpenItem) -> bool:
    """Reasoning without text that still carries something for its maker; everything else without text is not worth showing."""
    return item.type == "reasoning" and bool((item.final or {}).get("encrypted_content"))


# How an item looks.


def opening_of(item: OpenItem) -> JsonObject:
    """The item as it is announced, without its id."""
    if item.shape is not None:
        return shapes.opening(item.shape, item.tool, item.call_id, item.arguments, item.approval_request_id)
    if item.type == "message":
        return {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
    return {"type": "reasoning", "summary": []}


def place_of(item: OpenItem, part: Part) -> JsonObject:
    place: JsonObject = {"item_id": item.id, "output_index": item.index}
    name = parts.INDEX_NAME.get(parts.LIST_OF[part.kind])
    return place | {name: part.index} if name else place


def body_of(item: OpenItem, status: str) -> JsonObject:
    """A message or reasoning as it is closed, without its id."""
    body: JsonObject = {"type": "reasoning", "summary": []}
    if item.type == "message":
        body = {"type": "message", "status": status, "role": "assistant", "content": []}
    elif status == "incomplete":
        body["status"] = status
    for part in item.closed_parts:
        found = body.setdefault(parts.LIST_OF[part.kind], [])
        assert isinstance(found, list)
        found.append(parts.body_of(part))
    return body | _rest(item, body)


def _rest(item: OpenItem, body: JsonObject) -> JsonObject:
    """What else the engine said of an item of its own kind is carried."""
    if item.shape not in (None, shapes.FUNCTION_CALL):
        return {}
    return {key: value for key, value in (item.final or {}).items() if key not in body and key not in _OURS and value is not None}


_OURS = ("id", "status", "content", "summary", "arguments", "call_id", "name", "namespace")


def call_body_of(item: OpenItem, status: str) -> JsonObject:
    """A call as it is closed, without its id."""
    assert item.shape is not None
    body = opening_of(item)
    if "status" in body:
        body["status"] = status
    if item.shape is not shapes.WEB_SEARCH_CALL:
        body[item.shape.field] = shapes.shown_arguments(item.shape, item.arguments)
    return body | _rest(item, body)


def listed_of(tool: ListedTool) -> JsonObject:
    listed: JsonObject = {"name": tool.name, "input_schema": tool.input_schema}
    if tool.description:
        listed["description"] = tool.description
    if tool.annotations:
        listed["annotations"] = tool.annotations
    return listed
