"""Items: what clients and engines write, turned into what is stored and what a model sees.

Every item has two forms. Its `body` is the item as the API shows it, without its id. Its `prompt` is the neutral prompt form, the only
shape that all engines accept without loss; None means that the body is the prompt, empty means that the model sees nothing.
This file is pure: ids come in as values.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from orchestrator_svc.errors import InvalidRequest, Unsupported
from svckit import json_text

JsonObject = dict[str, object]

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}

MAX_ID_CHARS = 128
_TOKENS_PER_ITEM = 12
_TOKENS_PER_PART = 7
_TOKENS_PER_IMAGE = 1024
_BYTES_PER_TOKEN = 4

_LEGAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ILLEGAL_CHARS = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS = 10
_NAME_CHARS = 64 - _HASH_CHARS - 1

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Item:
    """One item, ready to be stored, shown and rendered."""

    id: str
    type: str
    body: bytes
    prompt: bytes | None
    tokens: int
    origin: str = ""
    opens: str | None = None
    closes: str | None = None

    @property
    def rendered(self) -> bytes:
        """The neutral prompt form: zero or more JSON array elements."""
        return self.body if self.prompt is None else self.prompt

    @property
    def shown(self) -> bytes:
        """The item as the API shows it, its id included."""
        return b'{"id":' + encode(self.id) + b"," + self.body[1:]


def make(id: str, body: JsonObject, provider: str = "") -> Item:
    """The item whose body is `body`; `provider` made it, or nobody that we know (a client). Opaque content goes back to its maker only."""
    elements, opaque = _RENDERERS[str(body["type"])](body)
    if opaque and not provider:
        elements = []
    encoded, prompt = encode(body), b",".join(map(encode, elements))
    return Item(
        id,
        str(body["type"]),
        encoded,
        None if prompt == encoded else prompt,
        _estimated(body),
        origin=provider if opaque else "",
        opens=str(body["call_id"]) if body["type"] == "function_call" and elements else None,
        closes=str(body["call_id"]) if body["type"] == "function_call_output" else None,
    )


def read_input(sources: Iterable[bytes], new_id: Callable[[str], str]) -> tuple[Item, ...]:
    """The input items of a request. Raises InvalidRequest and Unsupported with a `param` such as `input[2].content[0].type`."""
    items = tuple(_read(source, f"input[{position}]", new_id) for position, source in enumerate(sources))
    seen: set[str] = set()
    for position, item in enumerate(items):
        if item.id in seen:
            problem = f"Duplicate item found with id {item.id}. Remove duplicate items from your input and try again."
            raise InvalidRequest(problem, param=f"input[{position}].id")
        seen.add(item.id)
    return items


def _read(source: bytes, path: str, new_id: Callable[[str], str]) -> Item:
    try:
        given = json_text.decode(source, JsonObject)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidRequest(f"{path} is not a JSON object.", param=path) from exc
    kind = _type_of(given, path)
    body = _READERS[kind](given, path)
    return make(_id_of(given, path) or new_id(PREFIXES[kind]), body)


def _type_of(given: JsonObject, path: str) -> str:
    kind = given.get("type")
    if kind is None and "role" in given:
        return "message"
    if not isinstance(kind, str):
        raise InvalidRequest(f"{path} needs a type.", param=f"{path}.type")
    if kind not in _READERS:
        raise Unsupported(what=f"An input item of type '{kind[:64]}'", param=f"{path}.type")
    return kind


def _id_of(given: JsonObject, path: str) -> str | None:
    id = given.get("id")
    if id is None:
        return None
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID_CHARS or not id.isprintable():
        raise InvalidRequest(f"An id is a string of 1 to {MAX_ID_CHARS} printable characters.", param=f"{path}.id")
    return id


# Readers: what a client wrote, to the body as the API shows it.


def _read_message(given: JsonObject, path: str) -> JsonObject:
    role = _one_of(given, "role", ("user", "system", "developer", "assistant"), path)
    read_part = _read_assistant_part if role == "assistant" else _read_input_part
    content = given.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequest("A message needs content: a string or a list of parts.", param=f"{path}.content")
    body: JsonObject = {"type": "message", "role": role}
    if role == "assistant":
        body["status"] = _status_of(given, path)
    body["content"] = [read_part(_object(part, f"{path}.content[{n}]"), f"{path}.content[{n}]") for n, part in enumerate(content)]
    return body | _rest(given, body)


def _read_input_part(part: JsonObject, path: str) -> JsonObject:
    kind = _one_of(part, "type", ("input_text", "input_image", "input_file", "input_video"), path)
    if kind == "input_text":
        return {"type": kind, "text": _string(part, "text", path)} | _rest(part, ("type", "text"))
    if kind == "input_image":
        return _read_image(part, path)
    return {"type": kind} | _rest(part, ("type",))


def _read_image(part: JsonObject, path: str) -> JsonObject:
    if part.get("file_id") is not None:
        raise Unsupported(what="An image by file_id", param=f"{path}.file_id")
    url = _string(part, "image_url", path)
    detail = "auto" if part.get("detail") is None else _one_of(part, "detail", _DETAILS, path)
    return {"type": "input_image", "image_url": url, "detail": detail} | _rest(part, ("type", "image_url", "detail"))


_DETAILS = ("auto", "low", "high", "original")


def _read_assistant_part(part: JsonObject, path: str) -> JsonObject:
    kind = _one_of(part, "type", ("output_text", "refusal", "input_text"), path)
    if kind == "refusal":
        return {"type": kind, "refusal": _string(part, "refusal", path)} | _rest(part, ("type", "refusal"))
    text = {"type": "output_text", "text": _string(part, "text", path), "annotations": part.get("annotations") or []}
    return text | _rest(part, text)


def _read_reasoning(given: JsonObject, path: str) -> JsonObject:
    summary = _parts(given, "summary", path)
    content = _parts(given, "content", path)
    body: JsonObject = {"type": "reasoning", "summary": summary}
    if content:
        body["content"] = content
    return body | _rest(given, ("type", "summary", "content"))


def _read_call(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {
        "type": "function_call",
        "status": _status_of(given, path),
        "call_id": _call_id(given, path),
        "name": _string(given, "name", path),
        "arguments": _string(given, "arguments", path),
    }
    if given.get("namespace") is not None:
        raise Unsupported(what="A call in a namespace", param=f"{path}.namespace")
    return body | _rest(given, body)


def _read_output(given: JsonObject, path: str) -> JsonObject:
    output = given.get("output")
    if isinstance(output, list):
        output = [_read_input_part(_object(part, f"{path}.output[{n}]"), f"{path}.output[{n}]") for n, part in enumerate(output)]
    elif not isinstance(output, str):
        raise InvalidRequest("The output of a call is a string or a list of parts.", param=f"{path}.output")
    body: JsonObject = {
        "type": "function_call_output",
        "status": _status_of(given, path),
        "call_id": _call_id(given, path),
        "output": output,
    }
    return body | _rest(given, body)


_READERS: dict[str, Callable[[JsonObject, str], JsonObject]] = {
    "message": _read_message,
    "reasoning": _read_reasoning,
    "function_call": _read_call,
    "function_call_output": _read_output,
}


def _rest(given: JsonObject, known: Iterable[str]) -> JsonObject:
    """What else stands in `given`: carried, for a newer client may know what it means; nulls and the id are not."""
    return {key: value for key, value in given.items() if key not in known and key != "id" and value is not None}


def _object(value: object, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} must be an object.", param=path)
    return value


def _parts(given: JsonObject, key: str, path: str) -> list[JsonObject]:
    parts = given.get(key)
    if parts is None:
        return []
    if not isinstance(parts, list):
        raise InvalidRequest(f"{key} must be a list.", param=f"{path}.{key}")
    read = [_object(part, f"{path}.{key}[{n}]") for n, part in enumerate(parts)]
    for n, part in enumerate(read):
        _string(part, "text", f"{path}.{key}[{n}]")
    return read


def _string(given: JsonObject, key: str, path: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{key} must be a string.", param=f"{path}.{key}")
    return value


def _one_of(given: JsonObject, key: str, allowed: tuple[str, ...], path: str) -> str:
    value = given.get(key)
    if value not in allowed:
        raise InvalidRequest(f"Invalid value. Supported values are: {', '.join(map(repr, allowed))}.", param=f"{path}.{key}")
    return str(value)


def _status_of(given: JsonObject, path: str) -> str:
    if given.get("status") is None:
        return "completed"
    return _one_of(given, "status", ("completed", "incomplete", "in_progress"), path)


def _call_id(given: JsonObject, path: str) -> str:
    call_id = _string(given, "call_id", path)
    if not 0 < len(call_id) <= MAX_ID_CHARS or not call_id.isprintable():
        raise InvalidRequest(f"A call_id has 1 to {MAX_ID_CHARS} printable characters.", param=f"{path}.call_id")
    return call_id


# Renderers: the body, to the elements of the neutral prompt form, and whether they are opaque to all but their maker.

Rendering = tuple[list[JsonObject], bool]


def _render_message(body: JsonObject) -> Rendering:
    content = _list(body["content"])
    if body["role"] != "assistant":
        parts = [_rendered_part(part) for part in content]
        return [{"type": "message", "role": body["role"], "content": parts}], False
    text = "".join(str(part.get("text", part.get("refusal", ""))) for part in content)
    if not content:
        return [], False
    return [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}], False


def _rendered_part(part: JsonObject) -> JsonObject:
    rendered = {key: part[key] for key in _PART_KEYS[str(part["type"])] if key in part}
    return rendered | {"detail": "high"} if part.get("detail") == "original" else rendered


_PART_KEYS = {
    "input_text": ("type", "text"),
    "input_image": ("type", "image_url", "detail"),
    "input_file": ("type", "file_data", "file_url", "file_id", "filename"),
    "input_video": ("type", "video_url"),
}


def _render_reasoning(body: JsonObject) -> Rendering:
    text = "\n".join(str(part["text"]) for part in _list(body.get("content", [])))
    if text:
        return [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}], False
    if body.get("encrypted_content"):
        return [{"type": "reasoning", "summary": body["summary"], "encrypted_content": body["encrypted_content"]}], True
    return [], False


def _render_call(body: JsonObject) -> Rendering:
    if body["status"] == "incomplete":
        return [], False
    name, arguments = _legal(str(body["name"])), _parseable(str(body["arguments"]))
    return [{"type": "function_call", "call_id": body["call_id"], "name": name, "arguments": arguments}], False


def _legal(name: str) -> str:
    """The name as engines take it: a model may call what nobody has declared by any name."""
    if _LEGAL_NAME.match(name):
        return name
    digest = hashlib.sha256("\0".join(("function", "", name)).encode()).hexdigest()[:_HASH_CHARS]
    return f"{_ILLEGAL_CHARS.sub('_', name)[:_NAME_CHARS]}_{digest}"


def _parseable(arguments: str) -> str:
    """The model's own argument string; wrapped where it is no JSON object, which engines refuse to read back."""
    repaired = json_text.without_lone_surrogates(arguments.encode()).decode()
    try:
        msgspec.json.decode(repaired, type=JsonObject)
    except (msgspec.MsgspecError, RecursionError):
        return encode({"unparseable": arguments}).decode() if arguments.strip() else "{}"
    return repaired


def _render_output(body: JsonObject) -> Rendering:
    output = body["output"]
    if isinstance(output, list):
        output = [_rendered_part(part) for part in output]
    return [{"type": "function_call_output", "call_id": body["call_id"], "output": output}], False


_RENDERERS: dict[str, Callable[[JsonObject], Rendering]] = {
    "message": _render_message,
    "reasoning": _render_reasoning,
    "function_call": _render_call,
    "function_call_output": _render_output,
}


def _list(value: object) -> list[JsonObject]:
    return value if isinstance(value, list) else []


def _estimated(body: JsonObject) -> int:
    """The size estimate: UTF-8 bytes of text / 4 rounded up, plus 12 for the item, 7 for each part, 1,024 for each image."""
    parts = [part for key in ("content", "summary", "output") for part in _list(body.get(key))]
    images = sum(part.get("type") == "input_image" for part in parts)
    texts = [body.get("arguments"), body.get("name"), body.get("output")] + [part.get("text", part.get("refusal")) for part in parts]
    size = sum(len(text.encode()) for text in texts if isinstance(text, str))
    return -(-size // _BYTES_PER_TOKEN) + _TOKENS_PER_ITEM + _TOKENS_PER_PART * len(parts) + _TOKENS_PER_IMAGE * images
