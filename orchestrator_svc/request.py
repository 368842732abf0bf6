"""A request for a turn, as a value: what the turn branches on, what goes to the engine, and what the response echoes.

This file is pure. Ranges of sampling parameters are the edge's and the engine's business; here stands what a turn itself must understand.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from orchestrator_svc.context.compaction import DEFAULT_PROMPT
from orchestrator_svc.context.sealing import Seals
from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.input_items import read_input
from orchestrator_svc.items import Item, JsonObject, encode
from orchestrator_svc.tools.base import Spec
from orchestrator_svc.tools.table import ToolTable, read_tools
from svckit import json_text

T = TypeVar("T")

# What the gateway handles itself, or what would make an engine refuse the request.
NEVER_FORWARDED = frozenset(
    {
        "store",
        "background",
        "previous_response_id",
        "conversation",
        "context_management",
        "client_metadata",
        "metadata",
        "safety_identifier",
        "service_tier",
        "truncation",
        "max_tool_calls",
        "prompt",
        "stream",
        "stream_options",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "include",
        "tools",
        "tool_choice",
        "model",
        "input",
    }
)

# The keys that a Response object always has, with what stands there when the request does not say (the wire's required keys).
ECHO_DEFAULTS: JsonObject = {
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": None, "summary": None},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}
_ECHOED_IF_GIVEN = ("user", "prompt_cache_retention")


class Parameters(msgspec.Struct, frozen=True):
    """The request fields that a turn interprets; all may be null."""

    instructions: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    text: JsonObject | None = None
    reasoning: JsonObject | None = None
    context_management: list[JsonObject] | None = None
    prompt: JsonObject | None = None
    truncation: str | None = None
    background: bool | None = None


class CompactionRules(msgspec.Struct, frozen=True):
    """How a turn's context is kept small; sizes are in tokens, 0 where there is none.

    Over `threshold` it is compacted, keeping messages up to `keep_share` of it, and again only once it has grown by `growth`. `only`: the
    turn does nothing else. `truncate`: the oldest turns are left out of a context larger than `context_window`. `model` is empty for the
    turn's own.
    """

    seals: Seals
    threshold: int = 0
    keep_share: float = 0.5
    growth: float = 0.25
    only: bool = False
    truncate: bool = False
    context_window: int = 0
    prompt: str = DEFAULT_PROMPT
    model: str = ""


class TurnRequest(msgspec.Struct, frozen=True):
    """One turn as it was asked for, checked; `compaction` says how its context is kept small."""

    owner: str
    model: str
    previous_response_id: str | None
    conversation_id: str | None
    store: bool
    prewarm: bool
    keep_continuation: bool
    background: bool
    input: tuple[Item, ...]
    tools: ToolTable
    tool_choice: object
    include: frozenset[str]
    max_output_tokens: int | None
    max_tool_calls: int | None
    forwarded: JsonObject
    echo: JsonObject
    compaction: CompactionRules

    @property
    def approval_ids(self) -> tuple[str, ...]:
        """The approval requests that the input answers."""
        answers = [item for item in self.input if item.type == "mcp_approval_response"]
        return tuple(msgspec.json.decode(item.body, type=_Answer).approval_request_id for item in answers)


@dataclass(frozen=True, slots=True)
class ToolKinds:
    """The tools that this gateway runs: by kind, and the MCP servers that its configuration names."""

    specs: Mapping[str, Spec]
    servers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrived: the input items and the other fields are still JSON."""

    owner: str
    model: str
    previous_response_id: str | None
    store: bool
    input: tuple[bytes, ...]
    parameters: bytes
    conversation_id: str | None = None
    continuation: bytes = b""
    keep_continuation: bool = False
    response_id: str = ""
    prewarm: bool = False
    background: bool = False
    compact_only: bool = False

    @property
    def continues(self) -> bool:
        """Whether there is something that the turn continues from."""
        return self.previous_response_id is not None or self.conversation_id is not None


class _Answer(msgspec.Struct):
    approval_request_id: str


def read_request(asked: Asked, kinds: ToolKinds, rules: CompactionRules, new_id: Callable[[str], str]) -> TurnRequest:
    """Checks a request and takes it apart; `rules` are the configuration's, `new_id` makes an id with a prefix.

    Raises InvalidRequest and Unsupported, both with `param`.
    """
    given = _decoded(asked.parameters, JsonObject)
    known = _decoded(asked.parameters, Parameters)
    _refuse_unsupported(known)
    _check_background(known, asked)
    if not asked.model and not asked.prewarm:
        raise InvalidRequest("A model is needed.", param="model")
    if asked.previous_response_id is not None and asked.conversation_id is not None:
        raise InvalidRequest("previous_response_id and conversation exclude each other.", param="previous_response_id")
    if not asked.input and not asked.continues and not asked.prewarm:
        raise InvalidRequest("An input is needed where there is no response to continue from.", param="input")
    return TurnRequest(
        owner=asked.owner,
        model=asked.model,
        previous_response_id=asked.previous_response_id,
        conversation_id=asked.conversation_id,
        store=asked.store,
        prewarm=asked.prewarm,
        keep_continuation=asked.keep_continuation,
        background=asked.background,
        input=read_input(asked.input, new_id),
        tools=read_tools(known.tools or (), kinds.specs, kinds.servers),
        tool_choice=known.tool_choice,
        include=frozenset(known.include or ()),
        max_output_tokens=known.max_output_tokens,
        max_tool_calls=known.max_tool_calls,
        forwarded={key: value for key, value in given.items() if key not in NEVER_FORWARDED and value is not None},
        echo=_echo(given),
        compaction=_compaction(known, asked, rules),
    )


def read_hindered(asked: Asked, rules: CompactionRules, new_id: Callable[[str], str]) -> TurnRequest:
    """What is to be told of a request that was accepted and is not run: without tools, nothing in it depends on the configuration."""
    given = _decoded(asked.parameters, JsonObject)
    bare = {name: value for name, value in given.items() if name not in ("tools", "tool_choice")}
    request = read_request(dataclasses.replace(asked, parameters=encode(bare)), ToolKinds({}), rules, new_id)
    return replace(request, echo=_echo(given))


def engine_fields(
    request: TurnRequest,
    tools: Sequence[JsonObject],
    choice: object,
    *,
    include: frozenset[str],
    drop: frozenset[str],
    add: Mapping[str, object],
    model: str = "",
) -> bytes:
    """The fields of one model call, as the bytes of a JSON object without braces; `include`, `drop` and `add` are the provider's."""
    fields: JsonObject = {"model": model or request.model} | request.forwarded
    if tools:
        fields["tools"] = tools
    if choice is not None:
        fields["tool_choice"] = choice
    wanted = sorted(request.include & include)
    if wanted:
        fields["include"] = wanted
    fields |= {"store": False, "stream": True} | dict(add)
    return encode({key: value for key, value in fields.items() if key not in drop})[1:-1]


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return json_text.decode(data or b"{}", kind)
    except msgspec.ValidationError as exc:
        problem, _, path = str(exc).partition(" - at `$")
        raise InvalidRequest(problem, param=path.strip("`.") or None) from exc
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidRequest("The parameters are not JSON.") from exc


def _compaction(known: Parameters, asked: Asked, rules: CompactionRules) -> CompactionRules:
    rules = replace(rules, truncate=known.truncation == "auto", only=asked.compact_only)
    for position, one in enumerate(known.context_management or ()):
        path, threshold = f"context_management[{position}]", one.get("compact_threshold")
        if one.get("type") != "compaction":
            raise Unsupported(what=f"Context management of type '{str(one.get('type'))[:64]}'", param=f"{path}.type")
        if threshold is not None and (not isinstance(threshold, int) or isinstance(threshold, bool) or threshold < 1):
            raise InvalidRequest("A compact_threshold is a number of tokens.", param=f"{path}.compact_threshold")
        rules = replace(rules, threshold=threshold or rules.threshold)
    return rules


def _check_background(known: Parameters, asked: Asked) -> None:
    """A turn that waits is stored with its request, and a credential is stored nowhere."""
    if not asked.background:
        if known.background:
            raise InvalidRequest("A background turn is started, not streamed.", param="background")
        return
    if not asked.store:
        raise InvalidRequest("A background turn needs store: true.", param="store")
    for position, tool in enumerate(known.tools or ()):
        for secret in ("authorization", "headers"):
            if tool.get("type") == "mcp" and tool.get(secret):
                told = f"A background turn cannot keep the '{secret}' of a tool; name the server and its credentials in the configuration."
                raise InvalidRequest(told, param=f"tools[{position}].{secret}")


def _refuse_unsupported(known: Parameters) -> None:
    if known.prompt:
        raise Unsupported(what="The parameter 'prompt' with this value", param="prompt")


def _echo(given: JsonObject) -> JsonObject:
    echo = {key: default if given.get(key) is None else given[key] for key, default in ECHO_DEFAULTS.items()}
    echo["tools"] = [_echoed_tool(tool) for tool in _objects(given.get("tools"))]
    echo["text"] = _echoed_text(_object(given.get("text")))
    echo["reasoning"] = {"effort": None, "summary": None} | _object(given.get("reasoning"))
    echo["service_tier"] = "default" if echo["service_tier"] == "auto" else echo["service_tier"]
    return echo | {key: given[key] for key in _ECHOED_IF_GIVEN if given.get(key) is not None}


def _echoed_tool(tool: JsonObject) -> JsonObject:
    """The tool as it was given, without its secrets."""
    if tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": None} | tool
    if tool.get("type") != "mcp":
        return tool
    shown = {key: value for key, value in tool.items() if key not in ("authorization", "headers")}
    return shown | ({"server_url": _without_secrets(tool["server_url"])} if tool.get("server_url") else {})


def _without_secrets(url: object) -> str:
    """A server's address without the user, password and query that people hide keys in."""
    scheme, _, rest = str(url).partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _echoed_text(text: JsonObject) -> JsonObject:
    form = _object(text.get("format")) or {"type": "text"}
    if form.get("type") == "json_schema":
        form = {"description": None, "strict": False} | form
    return text | {"format": form}


def _objects(value: object) -> list[JsonObject]:
    return value if isinstance(value, list) else []


def _object(value: object) -> JsonObject:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else {}
