"""What a tool may say: so many bytes of UTF-8, with a mark where they were cut, and nothing that has no form in UTF-8. Pure."""

from dataclasses import replace

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import Citation, Parts, ToolResult
from svckit.json_text import halves_joined


def bounded(result: ToolResult, limit: int) -> ToolResult:
    """The result as it is told, stored and sent: each of its texts, and all of what the model reads, within `limit` bytes."""
    return _capped(_sayable(result), limit)


def capped(text: str, max_bytes: int) -> str:
    """`text`, or its start and a note that says how much was left out; never more than `max_bytes` bytes, the note included.

    The cut falls between characters. Where not even the note fits, it is left out.
    """
    if len(text) * 4 <= max_bytes:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= max_bytes:
        return text
    room = max_bytes - len(_note(len(encoded), len(encoded)))
    if room < 0:
        return _start(encoded, max_bytes)
    start = _start(encoded, room)
    return start + _note(len(start.encode()), len(encoded)).decode()


def _start(encoded: bytes, size: int) -> str:
    return encoded[: max(size, 0)].decode("utf-8", "ignore")


def _note(shown: int, whole: int) -> bytes:
    return f"\n[cut: {shown} of {whole} bytes shown]".encode()


def _sayable(result: ToolResult) -> ToolResult:
    """The result without halves of surrogate pairs, which have no form in UTF-8: what is told is stored and sent."""
    output = tuple(map(_sayable_object, result.output)) if isinstance(result.output, tuple) else halves_joined(result.output)
    citations = tuple(Citation(halves_joined(one.url), halves_joined(one.title)) for one in result.citations)
    return replace(result, output=output, public=_sayable_object(result.public), citations=citations)


def _sayable_object(value: JsonObject) -> JsonObject:
    return {halves_joined(key): _sayable_value(one) for key, one in value.items()}


def _sayable_value(value: object) -> object:
    if isinstance(value, str):
        return halves_joined(value)
    if isinstance(value, dict):
        return _sayable_object(value)
    return [_sayable_value(one) for one in value] if isinstance(value, list | tuple) else value


def _capped(result: ToolResult, limit: int) -> ToolResult:
    public = {key: capped(value, limit) if isinstance(value, str) else value for key, value in result.public.items()}
    if isinstance(result.output, str):
        return replace(result, output=capped(result.output, limit), public=public)
    return replace(result, output=_capped_parts(result.output, limit), public=public)


def _capped_parts(parts: Parts, limit: int) -> Parts:
    """As many parts as there is room for; a text that is cut says so, and an image that is too large is named instead."""
    kept: list[JsonObject] = []
    for part in parts:
        key = "text" if part["type"] == "input_text" else "image_url"
        value = str(part.get(key, ""))
        if key == "text":
            value = capped(value, limit)
            kept.append({**part, "text": value})
        elif len(value) <= limit:
            kept.append(part)
        else:
            value = "[An image was left out because it is too large.]"
            kept.append({"type": "input_text", "text": value})
        limit -= len(value.encode())
        if limit <= 0:
            break
    return tuple(kept)
