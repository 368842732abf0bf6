"""The bodies of requests about turns: what kind of request it is, and its checked form for the orchestrator.

Only the fields that the edge knows are looked into; everything travels on as the bytes that the client wrote. What an input item or a tool
means is the orchestrator's business.
"""

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from http_edge.errors import ConversationNotFound, InvalidRequest, PreviousResponseNotFound, Unsupported, printable
from http_edge.parameters import ConversationReference, Known
from svckit import json_text
from svckit.ids import tree_key_of
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseRequest

STATEFUL = ("previous_response_id", "conversation", "context_management", "background")
UNSUPPORTED = ("prompt",)
# What an engine takes as it is; every other kind of tool or item is for the gateway to translate, run or resolve.
PLAIN_TOOLS = frozenset({"function"})
PLAIN_ITEMS = frozenset({None, "message", "reasoning", "function_call", "function_call_output"})
# Reasoning that its client can send back: open engines do not offer it, the gateway does.
SEALED = b'"reasoning.encrypted_content"'

Fields = dict[str, Raw]
T = TypeVar("T")

# Fields with a place of their own in CreateResponseRequest, and those that say how HTTP answers.
_NOT_PARAMETERS = frozenset(["model", "previous_response_id", "store", "input", "stream", "stream_options"])
_NOTHING = (b"null", b"false", b"[]")
_ODD_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `([^`]*)`")
_ANY_KEY = "[...]"


class PerhapsTyped(Struct, frozen=True):
    """An input item; a message may do without a type."""

    type: str | None = None


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A stateful request, checked: what the orchestrator is asked, and how the client wants the answer."""

    message: CreateResponseRequest
    stream: bool = False
    background: bool = False
    padded: bool = False


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
        and SEALED not in bytes(fields.get("include", b""))
    )


def read_turn(fields: Fields, owner: str) -> AskedTurn:
    """A stateful request in checked form. Raises errors of INVALID_ARGUMENT and NOT_FOUND, all with `param`."""
    known = _checked(fields)
    if known.stream_options is not None and not known.stream:
        raise InvalidRequest("stream_options is only allowed with stream: true.", param="stream_options")
    if known.background and known.store is False:
        raise InvalidRequest("background: true needs store: true.", param="background")
    return AskedTurn(
        _turn(fields, known, owner), stream=known.stream is True, background=known.background is True, padded=_is_padded(known)
    )


def read_socket_turn(fields: Fields, owner: str, *, prewarm: bool) -> AskedTurn:
    """The same for a WebSocket, which always streams and never runs in the background. What only prepares a turn needs no input."""
    known = _checked(fields)
    if known.background:
        raise Unsupported(what="The parameter 'background' over a WebSocket", param="background")
    message = _turn(fields, known, owner, needs_input=not prewarm)
    message.prewarm = prewarm
    message.keep_continuation = not message.store
    return AskedTurn(message, stream=True, padded=_is_padded(known))


def read_measured_turn(fields: Fields, owner: str) -> CreateResponseRequest:
    """A turn of which only the input tokens are wanted; nothing of it is required."""
    return _message(fields, _checked(fields), owner)


def read_compaction(fields: Fields, owner: str) -> CreateResponseRequest:
    """A context to compact; nothing of it is stored."""
    known = _checked(fields)
    if known.conversation is not None:
        raise Unsupported(what="The parameter 'conversation' of a compaction", param="conversation")
    message = _turn(fields, known, owner)
    message.store = False
    return message


def is_response_id(text: str) -> bool:
    """Has `text` the form of a response's id?"""
    return text.startswith("resp_") and tree_key_of(text) is not None


def is_conversation_id(text: str) -> bool:
    """Has `text` the form of a conversation's id?"""
    return text.startswith("conv_") and tree_key_of(text) is not None


def items_of(raw: Raw | None, param: str) -> list[bytes]:
    """The items of a list, each as the client wrote it."""
    source = bytes(raw or b"null")
    if source == b"null":
        return []
    if not source.startswith(b"["):
        raise InvalidRequest("Expected a list of items.", param=param)
    items = [bytes(item) for item in msgspec.json.decode(source, type=list[Raw])]
    for position, item in enumerate(items):
        if not item.startswith(b"{"):
            raise InvalidRequest("An item must be an object.", param=f"{param}[{position}]")
    return items


def convert(fields: Fields, kind: type[T]) -> T:
    """The fields that `kind` has, checked. Raises InvalidRequest with `param`."""
    try:
        return msgspec.json.decode(msgspec.json.encode(fields), type=kind)
    except msgspec.ValidationError as exc:
        problem, param = _problem_and_param(exc)
        raise InvalidRequest(problem, param=param) from exc


def _checked(fields: Fields) -> Known:
    known = convert({name: raw for name, raw in fields.items() if name != "input"}, Known)
    for name in UNSUPPORTED:
        if not _is_nothing(fields, name):
            raise Unsupported(what=f"The parameter '{name}'", param=name)
    if known.previous_response_id is not None and known.conversation is not None:
        raise InvalidRequest("'previous_response_id' and 'conversation' exclude each other.", param="conversation")
    return known


def _turn(fields: Fields, known: Known, owner: str, *, needs_input: bool = True) -> CreateResponseRequest:
    """A turn that is whole: with a model, and with something to go on from."""
    if known.model is None:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    message = _message(fields, known, owner)
    if needs_input and not (message.input or message.previous_response_id or message.conversation_id):
        raise InvalidRequest("Missing required parameter: 'input'.", param="input")
    return message


def _message(fields: Fields, known: Known, owner: str) -> CreateResponseRequest:
    return CreateResponseRequest(
        owner=owner,
        model=known.model or "",
        previous_response_id=_previous(known.previous_response_id),
        conversation_id=_conversation(known.conversation),
        store=known.store is not False,
        input=_input_items(fields.get("input")),
        parameters=msgspec.json.encode({name: raw for name, raw in fields.items() if name not in _NOT_PARAMETERS}),
    )


def _is_padded(known: Known) -> bool:
    return known.stream_options is not None and known.stream_options.include_obfuscation is True


def _previous(response_id: str | None) -> str:
    # An id that this gateway cannot have given out is simply one that does not exist.
    if response_id is not None and not is_response_id(response_id):
        raise PreviousResponseNotFound(response_id=printable(response_id))
    return response_id or ""


def _conversation(given: str | ConversationReference | None) -> str:
    conversation_id = given.id if isinstance(given, ConversationReference) else given
    if conversation_id is not None and not is_conversation_id(conversation_id):
        raise ConversationNotFound(conversation_id=printable(conversation_id))
    return conversation_id or ""


def _input_items(raw: Raw | None) -> list[bytes]:
    """The items of `input`, each as the client wrote it; a string is one message of the user."""
    source = bytes(raw or b"null")
    if source[:1] not in (b'"', b"[", b"n"):
        raise InvalidRequest("Expected a string or a list of input items.", param="input")
    if source[:1] != b'"':
        return items_of(raw, "input")
    return [b'{"type":"message","role":"user","content":' + source + b"}"] if source != b'""' else []


def _is_nothing(fields: Fields, name: str) -> bool:
    given = fields.get(name)
    return given is None or bytes(given) in _NOTHING


def _is_text(fields: Fields) -> bool:
    return bytes(fields.get("input", b'""')).startswith(b'"')


def _only_of(types: Set[str | None], given: Raw) -> bool:
    """Whether this is a list of objects with none but these types."""
    try:
        return all(one.type in types for one in msgspec.json.decode(given, type=list[PerhapsTyped]))
    except msgspec.ValidationError:
        return False


def _problem_and_param(exc: msgspec.ValidationError) -> tuple[str, str | None]:
    """msgspec's words, with its path `$.input[0].role` as OpenAI writes one: `input[0].role`."""
    problem, _, place = str(exc).partition(" - at `")
    path = place.rpartition("$")[2].rstrip("`").removeprefix(".")
    odd = _ODD_FIELD.match(problem)
    if odd:
        path = f"{path}.{odd[1]}".removeprefix(".")
    return problem, path.replace(_ANY_KEY, "") or None
