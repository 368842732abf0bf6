"""What the fake engine says when no script is queued: it repeats the last user text, calls a tool when told to, and fits a schema.

A pure function of the request; nothing here is random, so equal requests get equal answers.
"""

import json
from dataclasses import replace

from tests.fakes.answers import Answer, Json, Message, Part, pieces
from tests.fakes.scripts import Script, function_call, text


def echo(request: Json) -> Script:
    """The default answer to any endpoint's request."""
    said = _last_user_text(request)
    if (name := _tool_to_call(request, said)) is not None:
        return function_call(name, {})
    schema = _schema(request)
    if schema is not None:
        return text(json.dumps(sample(schema)))
    return _within_limit(text(f"You said: {said}"), request)


def _last_user_text(request: Json) -> str:
    given = request.get("input", request.get("messages", request.get("prompt", "")))
    if isinstance(given, str):
        return given
    users = [item for item in _dicts(given) if item.get("role") == "user"]
    content = users[-1].get("content") if users else "nothing"
    if isinstance(content, str):
        return content
    return " ".join(str(part["text"]) for part in _dicts(content) if isinstance(part.get("text"), str))


def _dicts(value: object) -> list[Json]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _tool_to_call(request: Json, said: str) -> str | None:
    """The tool that the request forces, or whose name the user's last item speaks of."""
    names = [str(tool.get("name") or _function(tool).get("name")) for tool in _dicts(request.get("tools"))]
    choice = request.get("tool_choice", "auto")
    if isinstance(choice, dict):
        return str(choice.get("name") or _function(choice).get("name"))
    if not names or choice == "none":
        return None
    if choice == "required":
        return names[0]
    given = _dicts(request.get("input", request.get("messages"))) or [{"role": "user"}]
    spoken = [name for name in names if any(word in said.lower() for word in name.lower().split("_") if len(word) > 3)]
    return spoken[0] if spoken and given[-1].get("role") == "user" else None


def _function(tool: Json) -> Json:
    function = tool.get("function")
    return function if isinstance(function, dict) else {}


def _schema(request: Json) -> Json | None:
    settings = request.get("text")
    shape = settings.get("format") if isinstance(settings, dict) else None
    schema = shape.get("schema") if isinstance(shape, dict) and shape.get("type") == "json_schema" else None
    return schema if isinstance(schema, dict) else None


def sample(schema: Json) -> object:
    """A small value that fits the schema: enough for objects, arrays, enums and scalars."""
    if isinstance(options := schema.get("enum"), list):
        return options[0]
    properties = schema.get("properties")
    match schema.get("type"):
        case "object":
            return {name: sample(part) for name, part in properties.items()} if isinstance(properties, dict) else {}
        case "array":
            inner = schema.get("items")
            return [sample(inner)] if isinstance(inner, dict) else []
        case "integer" | "number":
            return 1
        case "boolean":
            return True
    return "sample"


def _within_limit(script: Script, request: Json) -> Script:
    limit = request.get("max_output_tokens")
    whole = script.answer
    assert isinstance(whole, Answer)
    if not isinstance(limit, int) or whole.piece_count() <= limit:
        return script
    first = whole.items[0]
    assert isinstance(first, Message)
    kept = Message((Part("output_text", pieces(first.parts[0].text)[:limit]),))
    return replace(script, answer=replace(whole, items=(kept,))).incomplete()
