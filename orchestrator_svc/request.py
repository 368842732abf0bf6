"""A request for a turn, as a value: what the turn branches on, what goes to the engine, and what the response echoes.

This file is pure. Ranges of sampling parameters are the edge's and the engine's business; here stands what a turn itself must understand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.items import Item, JsonObject, encode, read_input
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
_TOOL_CHOICES = ("none", "auto", "required")


class Parameters(msgspec.Struct, frozen=True):
    """The request fields that a turn interprets; all may be null."""

    instructions: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    text: JsonObject | None = None
    reasoning: JsonObject | None = None
    background: bool | None = None
    conversation: str | JsonObject | None = None
    context_management: list[JsonObject] | None = None
    prompt: JsonObject | None = None
    truncation: str | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn as it was asked for, checked."""

    owner: str
    model: str
    previous_response_id: str | None
    store: bool
    input: tuple[Item, ...]
    tool_names: frozenset[str]
    include: frozenset[str]
    max_output_tokens: int | None
    forwarded: JsonObject
    echo: JsonObject


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrived: the input items and the other fields are still JSON."""

    owner: str
    model: str
    previous_response_id: str | None
    store: bool
    input: tuple[bytes, ...]
    parameters: bytes


def read_request(asked: Asked, new_id: Callable[[str], str]) -> TurnRequest:
    """Checks a request and takes it apart; `new_id` makes an id with a prefix. Raises InvalidRequest and Unsupported, both with `param`."""
    given = _decoded(asked.parameters, JsonObject)
    known = _decoded(asked.parameters, Parameters)
    _refuse_unsupported(known)
    if not asked.model:
        raise InvalidRequest("A model is needed.", param="model")
    if not asked.input and asked.previous_response_id is None:
        raise InvalidRequest("An input is needed where there is no response to continue from.", param="input")
    tools = [_tool(tool, f"tools[{n}]") for n, tool in enumerate(known.tools or [])]
    names = _tool_names(tools)
    _check_tool_choice(known.tool_choice, names)
    return TurnRequest(
        owner=asked.owner,
        model=asked.model,
        previous_response_id=asked.previous_response_id,
        store=asked.store,
        input=read_input(asked.input, new_id),
        tool_names=names,
        include=frozenset(known.include or ()),
        max_output_tokens=known.max_output_tokens,
        forwarded=_forwarded(given, tools),
        echo=_echo(given),
    )


def engine_fields(request: TurnRequest, *, include: frozenset[str], drop: frozenset[str], add: Mapping[str, object]) -> bytes:
    """The request fields for one engine, as the bytes of a JSON object without braces; `include`, `drop` and `add` are the provider's."""
    fields: JsonObject = {"model": request.model} | request.forwarded
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


def _refuse_unsupported(known: Parameters) -> None:
    unsupported = {
        "background": known.background,
        "conversation": known.conversation,
        "context_management": known.context_management,
        "prompt": known.prompt,
        "truncation": known.truncation if known.truncation != "disabled" else None,
    }
    for name, value in unsupported.items():
        if value:
            raise Unsupported(what=f"The parameter '{name}' with this value", param=name)


def _tool(tool: JsonObject, path: str) -> JsonObject:
    kind = tool.get("type")
    if kind != "function":
        raise Unsupported(what=f"A tool of type '{str(kind)[:64]}'", param=f"{path}.type")
    name = tool.get("name")
    if not isinstance(name, str) or not _is_legal_name(name):
        raise InvalidRequest("A function's name has 1 to 64 letters, digits, underscores or dashes.", param=f"{path}.name")
    return {key: value for key, value in tool.items() if value is not None}


def _is_legal_name(name: str) -> bool:
    return 0 < len(name) <= 64 and name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()


def _tool_names(tools: list[JsonObject]) -> frozenset[str]:
    names = [str(tool["name"]) for tool in tools]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise InvalidRequest(f"Two tools have the name '{name}'.", param=f"tools[{n}].name")
    return frozenset(names)


def _check_tool_choice(choice: str | JsonObject | None, names: frozenset[str]) -> None:
    if choice is None or choice in _TOOL_CHOICES:
        return
    if isinstance(choice, str):
        raise InvalidRequest(f"Supported values are: {', '.join(map(repr, _TOOL_CHOICES))}, or an object.", param="tool_choice")
    if choice.get("type") != "function":
        raise Unsupported(what=f"A tool choice of type '{str(choice.get('type'))[:64]}'", param="tool_choice.type")
    if choice.get("name") not in names:
        raise InvalidRequest("The tool that is chosen is not among the tools.", param="tool_choice.name")


def _forwarded(given: JsonObject, tools: list[JsonObject]) -> JsonObject:
    fields = {key: value for key, value in given.items() if key not in NEVER_FORWARDED and value is not None}
    return fields | ({"tools": tools} if tools else {})


def _echo(given: JsonObject) -> JsonObject:
    echo = {key: default if given.get(key) is None else given[key] for key, default in ECHO_DEFAULTS.items()}
    echo["tools"] = [_echoed_tool(tool) for tool in _objects(given.get("tools"))]
    echo["text"] = _echoed_text(_object(given.get("text")))
    echo["reasoning"] = {"effort": None, "summary": None} | _object(given.get("reasoning"))
    echo["service_tier"] = "default" if echo["service_tier"] == "auto" else echo["service_tier"]
    return echo | {key: given[key] for key in _ECHOED_IF_GIVEN if given.get(key) is not None}


def _echoed_tool(tool: JsonObject) -> JsonObject:
    return {"description": None, "parameters": None, "strict": None} | tool


def _echoed_text(text: JsonObject) -> JsonObject:
    form = _object(text.get("format")) or {"type": "text"}
    if form.get("type") == "json_schema":
        form = {"description": None, "strict": False} | form
    return text | {"format": form}


def _objects(value: object) -> list[JsonObject]:
    return value if isinstance(value, list) else []


def _object(value: object) -> JsonObject:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else {}
