"""What a turn wants done. `machine` asks for it, `runner` does it."""

from dataclasses import dataclass

from orchestrator_svc.items import Item, JsonObject
from orchestrator_svc.tools.base import ToolCall
from orchestrator_svc.tools.table import McpTool


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One stream event of the Responses API, `data` being its JSON."""

    type: str
    sequence_number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """What is stored of a turn."""

    response_id: str
    round: int
    status: str
    items: tuple[Item, ...]
    input_count: int
    open_call_ids: tuple[str, ...]
    body: bytes
    carried: bytes = b""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Start a model call. `input` is the elements of a JSON array, `tools` are declarations, `choice` is the engine's tool_choice."""

    round: int
    input: bytes
    tools: tuple[JsonObject, ...] = ()
    choice: object = None


@dataclass(frozen=True, slots=True)
class ListTools:
    """Ask these MCP servers for their tools; each answer is a ToolsListed."""

    servers: tuple[McpTool, ...]


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls side by side; each result is a ToolFinished."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand these events to the client."""

    events: tuple[StreamEvent, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Store the turn; ends in Saved or SaveFailed. The model call, if one runs, is over."""

    record: Record


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the turn with an error instead of a stream. Nothing has been sent and nothing is stored."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Finish:
    """The turn is over."""


Action = CallModel | ListTools | RunTools | Emit | Save | Refuse | Finish
