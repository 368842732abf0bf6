"""Rendering: from an item's body to its neutral prompt form, the only shape that all engines accept without loss. Pure.

A rendering is zero, one or two elements of the engine's input. What is opaque to all but its maker is marked so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from orchestrator_svc.tools.names import flat_name
from svckit.json_text import JsonObject, encode, without_lone_surrogates

Parts = list[JsonObject]


@dataclass(frozen=True, slots=True)
class Rendering:
    """The elements that the model sees of an item; `opaque` ones mean something to the provider that made them only."""

    elements: tuple[JsonObject, ...] = ()
    opaque: bool = False


NOTHING = Rendering()


def rendered(body: JsonObject) -> Rendering:
    """The neutral prompt form of an item; a type that has none renders nothing."""
    render = _RENDERERS.get(str(body["type"]))
    return render(body) if render else NOTHING


def call_and_output(call_id: str, flat: str, arguments: str, output: str | Iterable[JsonObject]) -> Rendering:
    """A call that the gateway ran, as the pair that the model saw."""
    shown = output if isinstance(output, str) else [_rendered_part(part) for part in output]
    return Rendering((_call(call_id, flat, arguments), {"type": "function_call_output", "call_id": call_id, "output": shown}))


def _render_message(body: JsonObject) -> Rendering:
    content = _list(body["content"])
    if body["role"] != "assistant":
        return Rendering(({"type": "message", "role": body["role"], "content": [_rendered_part(part) for part in content]},))
    if not content:
        return NOTHING
    text = "".join(str(part.get("text", part.get("refusal", ""))) for part in content)
    return Rendering(({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},))


def _rendered_part(part: JsonObject) -> JsonObject:
    kept = {key: part[key] for key in _PART_KEYS[str(part["type"])] if key in part}
    return kept | {"detail": "high"} if part.get("detail") == "original" else kept


_PART_KEYS = {
    "input_text": ("type", "text"),
    "input_image": ("type", "image_url", "detail"),
    "input_file": ("type", "file_data", "file_url", "file_id", "filename"),
    "input_video": ("type", "video_url"),
}


def _render_reasoning(body: JsonObject) -> Rendering:
    text = "\n".join(str(part["text"]) for part in _list(body.get("content", [])))
    if text:
        return Rendering(({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]},))
    if body.get("encrypted_content"):
        kept = {"type": "reasoning", "summary": body["summary"], "encrypted_content": body["encrypted_content"]}
        return Rendering((kept,), opaque=True)
    return NOTHING


def _render_function_call(body: JsonObject) -> Rendering:
    flat = flat_name("function", str(body.get("namespace") or ""), str(body["name"]))
    return _unless_incomplete(body, flat, str(body["arguments"]))


def _render_custom_call(body: JsonObject) -> Rendering:
    flat = flat_name("custom", str(body.get("namespace") or ""), str(body["name"]))
    return _unless_incomplete(body, flat, encode({"input": body["input"]}).decode())


def _render_tool_search_call(body: JsonObject) -> Rendering:
    return _unless_incomplete(body, "tool_search", encode(body["arguments"]).decode())


def _unless_incomplete(body: JsonObject, flat: str, arguments: str) -> Rendering:
    return NOTHING if body.get("status") == "incomplete" else Rendering((_call(str(body["call_id"]), flat, arguments),))


def _call(call_id: str, flat: str, arguments: str) -> JsonObject:
    return {"type": "function_call", "call_id": call_id, "name": flat, "arguments": _parseable(arguments)}


def _parseable(arguments: str) -> str:
    """The model's own argument string; wrapped where it is no JSON object, which engines refuse to read back."""
    repaired = without_lone_surrogates(arguments.encode()).decode()
    try:
        msgspec.json.decode(repaired, type=JsonObject)
    except (msgspec.MsgspecError, RecursionError):
        return encode({"unparseable": arguments}).decode() if arguments.strip() else "{}"
    return repaired


def _render_output(body: JsonObject) -> Rendering:
    output = body["output"]
    if isinstance(output, list):
        output = [_rendered_part(part) for part in output]
    return Rendering(({"type": "function_call_output", "call_id": body["call_id"], "output": output},))


def _render_tool_search_output(body: JsonObject) -> Rendering:
    """The model is told the names that it may call now; their declarations go with the tools of the request."""
    found = [_found(namespace, tool) for given in _list(body["tools"]) for namespace, tool in _members(given)]
    output = encode({"tools": found}).decode()
    return Rendering(({"type": "function_call_output", "call_id": body["call_id"], "output": output},))


def _members(tool: JsonObject) -> list[tuple[str, JsonObject]]:
    """The functions of a tool, each with its namespace."""
    if tool.get("type") != "namespace":
        return [("", tool)]
    return [(str(tool.get("name")), member) for member in _list(tool.get("tools"))]


def _found(namespace: str, tool: JsonObject) -> JsonObject:
    flat = flat_name(str(tool.get("type")), namespace, str(tool.get("name")))
    return {"name": flat, "description": tool.get("description") or ""}


_RENDERERS: dict[str, Callable[[JsonObject], Rendering]] = {
    "message": _render_message,
    "reasoning": _render_reasoning,
    "function_call": _render_function_call,
    "function_call_output": _render_output,
    "custom_tool_call": _render_custom_call,
    "custom_tool_call_output": _render_output,
    "tool_search_call": _render_tool_search_call,
    "tool_search_output": _render_tool_search_output,
}


def _list(value: object) -> Parts:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
