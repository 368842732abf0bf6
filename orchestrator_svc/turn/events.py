"""What can happen to a turn. The first half is the neutral vocabulary that every provider's wire is translated into.

`key` names an item within one model call: a number the translator gives out, whatever the engine calls the item.
`part` is the number of a content part or summary part within its item.
"""

from enum import Enum

from msgspec import Struct

from orchestrator_svc.context.parent import Span
from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ListedTool, ToolResult
from orchestrator_svc.tools.table import McpTool
from svckit.errors import ServiceError


class PartKind(Enum):
    """The kinds of text that an item streams. A call's argument string is the one part of its item."""

    TEXT = "output_text"
    REFUSAL = "refusal"
    REASONING = "reasoning_text"
    SUMMARY = "summary_text"
    ARGUMENTS = "arguments"


# The type of the item that each kind of text belongs to.
ITEM_OF = {
    PartKind.TEXT: "message",
    PartKind.REFUSAL: "message",
    PartKind.REASONING: "reasoning",
    PartKind.SUMMARY: "reasoning",
    PartKind.ARGUMENTS: "function_call",
}


class ItemStarted(Struct, frozen=True):
    """The model begins an item; `type` is message, reasoning or function_call."""

    key: int
    type: str
    name: str = ""
    call_id: str = ""


class PartDelta(Struct, frozen=True):
    """More text of one part; `logprobs` is the JSON list that belongs to it."""

    key: int
    kind: PartKind
    part: int
    text: str
    logprobs: bytes = b"[]"


class AnnotationAdded(Struct, frozen=True):
    """A citation within a text part."""

    key: int
    part: int
    annotation: JsonObject


class ItemFinished(Struct, frozen=True):
    """The model has ended an item; `item` is the engine's own final version of it."""

    key: int
    item: JsonObject


class Usage(Struct, frozen=True):
    """Tokens, summed over the model calls of a turn."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


class ModelFinished(Struct, frozen=True):
    """The model call ended as it should; `cut` says why it was cut short (max_output_tokens, content_filter) or is None."""

    cut: str | None
    usage: Usage | None


class ModelFailed(Struct, frozen=True):
    """The model call failed. `code` and `message` are for the client; `refusal` is the error to refuse the whole request with, should
    nothing have been sent yet."""

    code: str
    message: str
    refusal: ServiceError


ModelEvent = ItemStarted | PartDelta | AnnotationAdded | ItemFinished | ModelFinished | ModelFailed


class GracePassed(Struct, frozen=True):
    """The engine has not answered within the grace; the client now gets its first bytes."""


class ModelSent(Struct, frozen=True):
    """The engine answered: what one network read held, perhaps nothing that matters. `at` is now, in seconds since 1970."""

    events: tuple[ModelEvent, ...]
    at: int


class ToolsListed(Struct, frozen=True):
    """An MCP server has listed its tools, or could not; `error` says why."""

    server: McpTool
    listed: tuple[ListedTool, ...] = ()
    error: str | None = None


class ToolFinished(Struct, frozen=True):
    """A call of a gateway-owned tool has its result."""

    call_id: str
    result: ToolResult


class Saved(Struct, frozen=True):
    """The turn is stored; `checkpoint` is what it has come to, for its next save if it goes on."""

    checkpoint: tuple[Span, ...] = ()


class SaveFailed(Struct, frozen=True):
    """The turn is not stored, or nobody knows whether it is. `is_passing`: the same save may succeed later."""

    code: str
    message: str
    is_passing: bool = False


class Cancelled(Struct, frozen=True):
    """The client has left, or has asked for the end of a background turn."""


class Stopped(Struct, frozen=True):
    """The turn may not go on: the service shuts down, or the turn's deadline has passed."""

    code: str
    message: str
    refusal: ServiceError


class Begun(Struct, frozen=True):
    """The turn starts; `hindrance` is why one that was queued cannot be run after all."""

    hindrance: Stopped | None = None


TurnEvent = Begun | GracePassed | ModelSent | ToolsListed | ToolFinished | Saved | SaveFailed | Cancelled | Stopped
