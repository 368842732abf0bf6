"""Input items: what clients write, in every form that the Responses API accepts, read into items. Pure: ids come in as values."""

from collections.abc import Callable, Iterable

import msgspec

from orchestrator_svc.context.rendering import Rendering, call_and_output
from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.items import PREFIXES, Item, JsonObject, encode, make, make_called
from orchestrator_svc.tools.names import flat_name
from svckit import json_text

MAX_ID_CHARS = 128


def read_input(sources: Iterable[bytes], new_id: Callable[[str], str], name: str = "input") -> tuple[Item, ...]:
    """The items of a request's field `name`. Raises InvalidRequest and Unsupported with a `param` such as `input[2].content[0].type`."""
    items = tuple(_read(source, f"{name}[{position}]", new_id) for position, source in enumerate(sources))
    seen: set[str] = set()
    for position, item in enumerate(items):
        if item.id in seen:
            problem = f"Duplicate item found with id {item.id}. Remove duplicate items from your input and try again."
            raise InvalidRequest(problem, param=f"{name}[{position}].id")
        seen.add(item.id)
    return items


def _read(source: bytes, path: str, new_id: Callable[[str], str]) -> Item:
    try:
        given = json_text.decode(source, JsonObject)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidRequest(f"{path} is not a JSON object.", param=path) from exc
    kind = _type_of(given, path)
    body = _READERS[kind](given, path)
    id = _id_of(given, path) or new_id(PREFIXES[kind])
    return make_called(id, body, _called_elsewhere(id, body)) if kind == "mcp_call" else make(id, body)


def _called_elsewhere(id: str, body: JsonObject) -> Rendering:
    """The pair of a call that is not stored here, from what the client says of it."""
    output = body.get("output")
    told = output if isinstance(output, str) else encode({"error": body.get("error")}).decode()
    return call_and_output(f"call_{id[-24:]}", flat_name("mcp", str(body["server_label"]), str(body["name"])), str(body["arguments"]), told)


def _type_of(given: JsonObject, path: str) -> str:
    kind = given.get("type")
    if kind is None and "role" in given:
        return "message"
    if kind is None and "id" in given:
        return "item_reference"
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
    if given.get("encrypted_content") is not None:
        _string(given, "encrypted_content", path)
    return body | _rest(given, ("type", "summary", "content"))


def _read_call(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {
        "type": "function_call",
        "status": _status_of(given, path),
        "call_id": _call_id(given, path),
        "name": _string(given, "name", path),
        "arguments": _string(given, "arguments", path),
    }
    return body | _rest(given, body)


def _read_custom_call(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {
        "type": "custom_tool_call",
        "status": _status_of(given, path),
        "call_id": _call_id(given, path),
        "name": _string(given, "name", path),
        "input": _string(given, "input", path),
    }
    return body | _rest(given, body)


def _read_tool_search_call(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {
        "type": "tool_search_call",
        "status": _status_of(given, path),
        "call_id": _call_id(given, path),
        "execution": _one_of(given, "execution", ("client",), path),
        "arguments": given.get("arguments"),
    }
    return body | _rest(given, body)


def _read_tool_search_output(given: JsonObject, path: str) -> JsonObject:
    tools = given.get("tools")
    body: JsonObject = {
        "type": "tool_search_output",
        "status": _status_of(given, path),
        "call_id": _call_id(given, path),
        "execution": _one_of(given, "execution", ("client",), path),
        "tools": _objects(tools, f"{path}.tools"),
    }
    return body | _rest(given, body)


def _read_additional_tools(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {"type": "additional_tools", "role": "developer", "tools": _objects(given.get("tools"), f"{path}.tools")}
    return body | _rest(given, body)


def _read_mcp_call(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {"type": "mcp_call"}
    for key in ("server_label", "name", "arguments"):
        body[key] = _string(given, key, path)
    return body | _rest(given, body)


def _read_approval_request(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {"type": "mcp_approval_request"}
    for key in ("server_label", "name", "arguments"):
        body[key] = _string(given, key, path)
    return body


def _read_approval_response(given: JsonObject, path: str) -> JsonObject:
    approve = given.get("approve")
    if not isinstance(approve, bool):
        raise InvalidRequest("approve is true or false.", param=f"{path}.approve")
    if given.get("reason") is not None:
        _string(given, "reason", path)
    request_id = _string(given, "approval_request_id", path)
    body: JsonObject = {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve}
    return body | _rest(given, body)


def _read_reference(given: JsonObject, path: str) -> JsonObject:
    if given.get("id") is None:
        raise InvalidRequest("A reference needs the id of an item.", param=f"{path}.id")
    return {"type": "item_reference"}


def _read_compaction(given: JsonObject, path: str) -> JsonObject:
    body: JsonObject = {"type": "compaction", "encrypted_content": _string(given, "encrypted_content", path)}
    return body | _rest(given, body)


def _read_as_it_is(given: JsonObject, path: str) -> JsonObject:
    return {"type": given["type"]} | _rest(given, ("type",))


def _objects(given: object, path: str) -> list[JsonObject]:
    if not isinstance(given, list):
        raise InvalidRequest(f"{path} must be a list.", param=path)
    return [_object(one, f"{path}[{n}]") for n, one in enumerate(given)]


def _read_output(given: JsonObject, path: str) -> JsonObject:
    """The output of a function's or a custom tool's call."""
    output = given.get("output")
    if isinstance(output, list):
        output = [_read_input_part(_object(part, f"{path}.output[{n}]"), f"{path}.output[{n}]") for n, part in enumerate(output)]
    elif not isinstance(output, str):
        raise InvalidRequest("The output of a call is a string or a list of parts.", param=f"{path}.output")
    body: JsonObject = {
        "type": given["type"],
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
    "custom_tool_call": _read_custom_call,
    "custom_tool_call_output": _read_output,
    "tool_search_call": _read_tool_search_call,
    "tool_search_output": _read_tool_search_output,
    "additional_tools": _read_additional_tools,
    "web_search_call": _read_as_it_is,
    "mcp_list_tools": _read_as_it_is,
    "mcp_call": _read_mcp_call,
    "mcp_approval_request": _read_approval_request,
    "mcp_approval_response": _read_approval_response,
    "item_reference": _read_reference,
    "compaction": _read_compaction,
    "compaction_trigger": _read_as_it_is,
    "configuration_update": _read_as_it_is,
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
