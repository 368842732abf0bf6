"""What a tool is to a turn, and what every gateway-owned tool offers. Values and protocols only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator_svc.items import JsonObject

Parts = tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server as a request names it; `url` is None for one that the configuration names. Its credentials are never shown."""

    label: str
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its MCP server lists it."""

    name: str
    input_schema: JsonObject
    description: str = ""
    annotations: JsonObject | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether the server says that the tool changes nothing."""
        return bool((self.annotations or {}).get("readOnlyHint"))

    @property
    def is_idempotent(self) -> bool:
        """Whether the server says that a call changes no more when it is repeated."""
        return self.is_read_only or bool((self.annotations or {}).get("idempotentHint"))


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the engine may call. `flat` is its name there; `name` and `group` (namespace, server label) are the client's.

    A `repeatable` one does no harm when a call is run twice.
    """

    flat: str
    kind: str
    name: str
    group: str = ""
    declaration: JsonObject = field(default_factory=dict)
    settings: JsonObject = field(default_factory=dict)
    server: McpServer | None = None
    needs_approval: bool = False
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a gateway-owned tool, ready to run. `approval_request_id` is set when a client has approved exactly this call.

    A call with a `claim_id` is claimed under it before it is run.
    """

    call_id: str
    tool: Tool
    arguments: JsonObject
    approval_request_id: str = ""
    claim_id: str = ""


@dataclass(frozen=True, slots=True)
class Citation:
    """A source that an answer may cite."""

    url: str
    title: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to. `output` is for the model, text or parts (input_text, input_image); `public` are fields of the item shown."""

    output: str | Parts
    failed: bool = False
    public: JsonObject = field(default_factory=dict)
    citations: tuple[Citation, ...] = ()


class ToolFailed(Exception):
    """A call failed in a way that the model should know of; the text is for the model and the client, and names no secret."""

    def __init__(self, message: str, public: JsonObject | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.public = public or {}


class Handler(Protocol):
    """Runs the calls of one kind of tool. Deadline, output cap and the isolation of errors are the toolbox's, not the handler's."""

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of one call. Raises ToolFailed; whatever else it raises is masked and logged."""


class Lister(Protocol):
    """Lists the tools of MCP servers."""

    async def tools(self, server: McpServer) -> tuple[ListedTool, ...]:
        """All tools of one server. Raises ToolFailed."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a turn must know of a gateway-owned tool before anything runs (pure).

    `kinds` are the values of a request tool's `type` that it answers to. `declare` makes the engine's function declaration (name,
    description, parameters) from the request's tool and raises InvalidRequest with a `param` below the path it is given. Calls of a
    `repeatable` tool do no harm when they are run twice.
    """

    kinds: tuple[str, ...]
    declare: Callable[[JsonObject, str], JsonObject]
    repeatable: bool = False
