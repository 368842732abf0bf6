"""The body of POST /v1/responses: what kind of request it is, and its checked form for the orchestrator.

Only the fields that the edge knows are looked into; everything travels on as the bytes that the client wrote. What an input item or a tool
means is the orchestrator's business.
"""

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from http_edge.errors import InvalidRequest, PreviousResponseNotFound, Unsupported, printable
from svckit import json_text
from svckit.ids import tree_key_of
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseRequest

STATEFUL = ("previous_response_id", "conversation", "context_management", "background")
UNSUPPORTED = ("background", "conversation", "context_management", "prompt")
# What an engine takes as it is; every other kind of tool or item is for the gateway to translate, run or resolve.
PLAIN_TOOLS = frozenset({"function"})
PLAIN_ITEMS = frozenset({None, "message", "reasoning", "function_call", "function_call_output"})

Fields = dict[str, Raw]
T = TypeVar("T")

# Fields with a place of their own in CreateResponseRequest, and those that say how HTTP answers.
_NOT_PARAMETERS = frozenset(["model", "previous_response_id", "store", "input", "stream", "stream_options"])
_NOTHING = (b"null", b"false", b"[]")
_MISSING_FIELD = re.compile(r"Object missing required field `([^`]*)`")
_ANY_KEY = "[...]"

Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Word = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
Model = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class Text(Struct, frozen=True, tag="text"):
    """Plain text."""


class JsonObject(Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct, frozen=True, tag="json_schema"):
    """JSON by a schema."""

    name: Name
    schema: dict[str, Raw]
    strict: bool | None = None
    description: str | None = None


class TextOptions(Struct, frozen=True):
    """`text`."""

    format: Text | JsonObject | JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Struct, frozen=True):
    """`reasoning`; which efforts there are is the model's business."""

    effort: Word | None = None
    summary: Word | None = None


class StreamOptions(Struct, frozen=True):
    """`stream_options`."""

    include_obfuscation: bool | None = None


class Typed(Struct, frozen=True):
    """A tool, or a tool choice that is an object: only its type is of interest here."""

    type: str


class PerhapsTyped(Struct, frozen=True):
    """An input item; a message may do without a type."""

    type: str | None = None


class Known(Struct, frozen=True):
    """The fields that the edge checks; null is the same as absent."""

    model: Model | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    instructions: str | None = None
    include: list[Includable] | None = None
    metadata: Metadata | None = None
    tools: list[Typed] | None = None
    tool_choice: Literal["none", "auto", "required"] | Typed | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: Word | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A stateful request, checked: what the orchestrator is asked, and how the client wants the answer."""

    message: CreateResponseRequest
    stream: bool


def read_fields(body: bytes) -> Fields:
    """The top-level fields of a body, each as the client wrote it. Raises InvalidRequest."""
    try:
        body.decode("utf-8")
        return json_text.decode(body, Fields)
    except msgspec.ValidationError as exc:
        raise InvalidRequest("The body of the request must be a JSON object.") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest("The body of the request is not valid JSON.") from exc
    except RecursionError as exc:
        raise InvalidRequest("The body of the request is nested too deeply.") from exc


def is_stateless(fields: Fields) -> bool:
    """Needs the request nothing that the gateway keeps or runs? Then the engine gets it byte for byte, and judges it alone."""
    return (
        bytes(fields.get("store", b"")) == b"false"
        and all(_is_nothing(fields, name) for name in STATEFUL)
        and (_is_nothing(fields, "tools") or _only_of(PLAIN_TOOLS, fields["tools"]))
        and (_is_text(fields) or _only_of(PLAIN_ITEMS, fields["input"]))
    )


def read_turn(fields: Fields, owner: str) -> AskedTurn:
    """A stateful request in checked form. Raises InvalidRequest, Unsupported and PreviousResponseNotFound, all with `param`."""
    known = _convert(msgspec.json.encode({name: raw for name, raw in fields.items() if name != "input"}), Known)
    _refuse_unsupported(fields)
    _check_previous(known.previous_response_id)
    if known.model is None:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    if known.stream_options is not None and not known.stream:
        raise InvalidRequest("stream_options is only allowed with stream: true.", param="stream_options")
    items = _input_items(fields.get("input"))
    if not items and known.previous_response_id is None:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input")
    message = CreateResponseRequest(
        owner=owner,
        model=known.model,
        previous_response_id=known.previous_response_id or "",
        store=known.store is not False,
        input=items,
        parameters=msgspec.json.encode({name: raw for name, raw in fields.items() if name not in _NOT_PARAMETERS}),
    )
    return AskedTurn(message, stream=known.stream is True)


def _is_nothing(fields: Fields, name: str) -> bool:
    return bytes(fields.get(name, b"null")) in _NOTHING


def _is_text(fields: Fields) -> bool:
    return bytes(fields.get("input", b'""')).startswith(b'"')


def _only_of(types: Set[str | None], given: Raw) -> bool:
    """Whether this is a list of objects with none but these types."""
    try:
        return all(one.type in types for one in msgspec.json.decode(given, type=list[PerhapsTyped]))
    except msgspec.ValidationError:
        return False


def _refuse_unsupported(fields: Fields) -> None:
    for name in UNSUPPORTED:
        if not _is_nothing(fields, name):
            raise Unsupported(what=f"The parameter '{name}'", param=name)


def _check_previous(response_id: str | None) -> None:
    # An id that this gateway cannot have given out is simply one that does not exist.
    if response_id is not None and not is_response_id(response_id):
        raise PreviousResponseNotFound(response_id=printable(response_id))


def is_response_id(text: str) -> bool:
    """Has `text` the form of a response's id?"""
    return text.startswith("resp_") and tree_key_of(text) is not None


def _input_items(raw: Raw | None) -> list[bytes]:
    """The items of `input`, each as the client wrote it; a string is one message of the user."""
    source = bytes(raw or b"null")
    if source in (b"null", b'""'):
        return []
    if source.startswith(b'"'):
        return [b'{"type":"message","role":"user","content":' + source + b"}"]
    if not source.startswith(b"["):
        raise InvalidRequest("Expected a string or a list of input items.", param="input")
    items = [bytes(item) for item in msgspec.json.decode(source, type=list[Raw])]
    for position, item in enumerate(items):
        if not item.startswith(b"{"):
            raise InvalidRequest("An input item must be an object.", param=f"input[{position}]")
    return items


def _convert(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as exc:
        problem, param = _problem_and_param(exc)
        raise InvalidRequest(problem, param=param) from exc


def _problem_and_param(exc: msgspec.ValidationError) -> tuple[str, str | None]:
    """msgspec's words, with its path `$.input[0].role` as OpenAI writes one: `input[0].role`."""
    problem, _, place = str(exc).partition(" - at `")
    path = place.rpartition("$")[2].rstrip("`").removeprefix(".")
    missing = _MISSING_FIELD.match(problem)
    if missing:
        path = f"{path}.{missing[1]}".removeprefix(".")
    return problem, path.replace(_ANY_KEY, "") or None
