"""What a turn wants done. `machine` asks for it, `runner` does it."""

from msgspec import Struct

from orchestrator_svc.context.parent import Span
from orchestrator_svc.items import Item, JsonObject
from orchestrator_svc.tools.base import ToolCall
from orchestrator_svc.tools.table import McpTool


class StreamEvent(Struct, frozen=True):
    """One stream event of the Responses API, `data` being its JSON."""

    type: str
    sequence_number: int
    data: bytes


class Record(Struct, frozen=True):
    """What is stored of a turn, beside what is stored of it already. `resume_state` is for a turn that goes on.

    The first `left_out` items are in no checkpoint; `stands_alone`: nor is anything from before. `replaces` is what a compaction of this
    turn stands for in its conversation.
    """

    response_id: str
    round: int
    status: str
    items: tuple[Item, ...]
    input_count: int
    open_call_ids: tuple[str, ...]
    body: bytes
    carried: bytes = b""
    left_out: int = 0
    stands_alone: bool = False
    replaces: tuple[Span, ...] = ()
    resume_state: bytes = b""


class CallModel(Struct, frozen=True):
    """Start a model call. `input` is the elements of a JSON array, in pieces of one or several, not joined: they may be megabytes.

    `tools` are declarations, `choice` is the engine's tool_choice.

    `without` are fields of the request that are left out of this call, `model` is another model than the request's, if any.
    """

    round: int
    input: tuple[bytes, ...]
    tools: tuple[JsonObject, ...] = ()
    choice: object = None
    without: frozenset[str] = frozenset()
    model: str = ""


class ListTools(Struct, frozen=True):
    """Ask these MCP servers for their tools; each answer is a ToolsListed."""

    servers: tuple[McpTool, ...]


class RunTools(Struct, frozen=True):
    """Run these calls side by side; each result is a ToolFinished."""

    calls: tuple[ToolCall, ...]


class Emit(Struct, frozen=True):
    """Hand these events to the client."""

    events: tuple[StreamEvent, ...]


class Save(Struct, frozen=True):
    """Store the turn, or what a background turn has come to so far; ends in Saved or SaveFailed. The model is hung up on meanwhile."""

    record: Record


class Refuse(Struct, frozen=True):
    """End the turn with an error instead of a stream. Nothing has been sent and nothing is stored."""

    error: Exception


class Finish(Struct, frozen=True):
    """The turn is over. `continuation` is what a continuation needs of a turn that is not stored, where it was asked for."""

    continuation: bytes = b""


class Batch(Struct, frozen=True):
    """What is handed to the client at once. It has the fields of a `CreateResponseReply`: a caller in this process reads it as one."""

    events: tuple[StreamEvent, ...]
    continuation: bytes = b""

    def ByteSize(self) -> int:  # protobuf's name for it
        """How large the message would be, or a little less."""
        events = self.events
        size = len(events[0].data) if len(events) == 1 else sum([len(event.data) for event in events])
        return size + len(self.continuation)


Action = CallModel | ListTools | RunTools | Emit | Save | Refuse | Finish
