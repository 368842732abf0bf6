"""What the strict engine refuses: everything that vLLM or llama.cpp refuses, or takes and silently loses.

`refusal(...)` is a pure function of a request: None, or one sentence that says what is wrong and where.
"""

import json
import re
from collections.abc import Iterator, Set

from tests.fakes.answers import Json

RESPONSES_FIELDS = frozenset(
    [
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "top_logprobs",
        "text",
        "reasoning",
        "stream",
        "stream_options",
        "include",
        "store",
        "user",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "seed",
        "stop",
        "verbosity",
        "logit_bias",
        "ignore_eos",
        "skip_special_tokens",
        "cache_salt",
        "request_id",
        "priority",
    ]
)
NEVER_FORWARDED = [
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
    "generate",
]
INCLUDE_VALUES = frozenset(
    [
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
    ]
)
ITEM_FIELDS = {
    "message": frozenset({"type", "id", "role", "content", "status"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "status"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
}
PART_FIELDS = {
    "input_text": frozenset({"type", "text"}),
    "input_image": frozenset({"type", "image_url", "detail"}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "reasoning_text": frozenset({"type", "text"}),
    "summary_text": frozenset({"type", "text"}),
}
PARTS_OF_ROLE = {
    "user": frozenset({"input_text", "input_image"}),
    "system": frozenset({"input_text"}),
    "developer": frozenset({"input_text"}),
    "assistant": frozenset({"output_text"}),
}
STATUSES = frozenset({"in_progress", "completed", "incomplete"})
TOOL_FIELDS = frozenset({"type", "name", "description", "parameters", "strict"})
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")


class Refused(Exception):
    """The sentence that goes into the 400."""


def refusal(path: str, body: bytes, minted: Set[str], known_fields: Set[str] = frozenset()) -> str | None:
    """Why a strict engine does not take this request, or None."""
    try:
        request = _object(body)
        if path == "/v1/responses":
            _check_responses(request, minted, known_fields)
        elif path == "/v1/chat/completions":
            _check_chat(request)
    except Refused as reason:
        return str(reason)
    return None


def _object(body: bytes) -> Json:
    try:
        request = json.loads(body.decode("utf-8"))
        json.dumps(request, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("The body holds a lone surrogate.") from None
    except ValueError as exc:
        raise Refused(f"The body is not JSON in UTF-8: {exc}.") from exc
    if not isinstance(request, dict):
        raise Refused("The body is not a JSON object.")
    return request


def _need(fact: object, sentence: str) -> None:
    if not fact:
        raise Refused(sentence)


def _check_responses(request: Json, minted: Set[str], known_fields: Set[str]) -> None:
    for name in NEVER_FORWARDED:
        _need(name not in request, f"{name}: a stateless engine does not take it.")
    for name in request:
        _need(name in RESPONSES_FIELDS or name in known_fields, f"{name}: unknown field.")
    _need(isinstance(request.get("model"), str), "model: a string is required.")
    _need(request.get("store") is False, "store: only false is taken, and it must be said.")
    _check_include(request.get("include"))
    _check_options(request)
    names = _check_tools(request.get("tools"))
    _check_choice(request.get("tool_choice", "auto"), names)
    _check_input(request.get("input"), minted)


def _check_include(include: object) -> None:
    for value in include if isinstance(include, list) else []:
        _need(value in INCLUDE_VALUES, f"include: unknown value {value!r}.")


def _check_options(request: Json) -> None:
    _need("stream_options" not in request or request.get("stream") is True, "stream_options: only with stream.")
    limit = request.get("max_output_tokens")
    _need(limit is None or (type(limit) is int and limit > 0), "max_output_tokens: a positive integer.")
    for name in ("temperature", "top_p"):
        value = request.get(name)
        _need(value is None or type(value) in (int, float), f"{name}: a number.")


def _check_tools(tools: object) -> set[str]:
    if tools is None:
        return set()
    _need(isinstance(tools, list), "tools: a list.")
    assert isinstance(tools, list)
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        _need(isinstance(tool, dict) and tool.get("type") == "function", f"{where}.type: only function.")
        for key, value in tool.items():
            _need(key in TOOL_FIELDS, f"{where}.{key}: unknown field.")
            _need(value is not None, f"{where}.{key}: null.")
        _check_name(tool.get("name"), where)
        _need(tool["name"] not in names, f"{where}.name: {tool['name']} is declared twice.")
        names.add(tool["name"])
        _need(isinstance(tool.get("parameters", {}), dict), f"{where}.parameters: an object.")
    return names


def _check_name(name: object, where: str) -> None:
    _need(isinstance(name, str) and NAME.match(name), f"{where}.name: {name!r} is not [a-zA-Z0-9_-], 1 to 64 characters.")


def _check_choice(choice: object, names: Set[str]) -> None:
    if isinstance(choice, str):
        _need(choice in ("none", "auto", "required"), f"tool_choice: unknown value {choice!r}.")
        _need(names or choice != "required", "tool_choice: required without tools.")
        return
    _need(isinstance(choice, dict) and choice.get("type") == "function", "tool_choice: a word or a function.")
    assert isinstance(choice, dict)
    _need(choice.get("name") in names, f"tool_choice: {choice.get('name')!r} is not declared.")


def _check_input(given: object, minted: Set[str]) -> None:
    if isinstance(given, str):
        return
    _need(isinstance(given, list) and given, "input: a string or a list with at least one item.")
    assert isinstance(given, list)
    for index, item in enumerate(given):
        _need(isinstance(item, dict), f"input[{index}]: not an object.")
        _check_item(item, f"input[{index}]", minted)
    _check_ids(given)
    _check_pairs(given)


def _check_item(item: Json, where: str, minted: Set[str]) -> None:
    kind = item.get("type")
    _need(isinstance(kind, str), f"{where}.type: missing.")
    fields = ITEM_FIELDS.get(str(kind))
    _need(fields is not None, f"{where}.type: unknown item type {kind!r}.")
    assert fields is not None
    for key, value in item.items():
        _need(key in fields, f"{where}.{key}: unknown field of {kind}.")
        _need(value is not None, f"{where}.{key}: null.")
    _need("id" not in item or item["id"] in minted, f"{where}.id: {item.get('id')!r} was not made by this engine.")
    _need(item.get("status", "completed") in STATUSES, f"{where}.status: unknown value.")
    match kind:
        case "message":
            _check_message(item, where)
        case "reasoning":
            _check_reasoning(item, where)
        case "function_call":
            _check_call(item, where)
        case "function_call_output":
            _check_output(item, where)


def _check_message(item: Json, where: str) -> None:
    role, content = item.get("role"), item.get("content")
    allowed = PARTS_OF_ROLE.get(str(role))
    _need(allowed is not None, f"{where}.role: unknown role {role!r}.")
    assert allowed is not None
    if isinstance(content, str):
        _need(role != "assistant", f"{where}.content: an assistant message needs a list with one output_text part.")
        return
    parts = _parts(content, f"{where}.content", allowed)
    _need(parts, f"{where}.content: empty.")
    _need(role != "assistant" or len(parts) == 1, f"{where}.content: only the first of several output_text parts would be kept.")


def _parts(content: object, where: str, allowed: Set[str]) -> list[Json]:
    _need(isinstance(content, list), f"{where}: a list of parts.")
    assert isinstance(content, list)
    for index, part in enumerate(content):
        _need(isinstance(part, dict) and part.get("type") in allowed, f"{where}[{index}].type: only {', '.join(sorted(allowed))}.")
        _check_part(part, f"{where}[{index}]")
    return content


def _check_part(part: Json, where: str) -> None:
    for key, value in part.items():
        _need(key in PART_FIELDS[str(part["type"])], f"{where}.{key}: unknown field of {part['type']}.")
        _need(value is not None, f"{where}.{key}: null.")
    if part["type"] == "input_image":
        _need(isinstance(part.get("image_url"), str), f"{where}.image_url: a string.")
        _need(part.get("detail") in ("auto", "low", "high"), f"{where}.detail: auto, low or high.")
    else:
        _need(isinstance(part.get("text"), str), f"{where}.text: a string.")


def _check_reasoning(item: Json, where: str) -> None:
    _parts(item.get("summary"), f"{where}.summary", {"summary_text"})
    parts = _parts(item.get("content"), f"{where}.content", {"reasoning_text"})
    _need(len(parts) == 1, f"{where}.content: exactly one reasoning_text part; others would be refused or lost.")


def _check_call(item: Json, where: str) -> None:
    _check_name(item.get("name"), where)
    _check_call_id(item, where)
    arguments = item.get("arguments")
    _need(isinstance(arguments, str), f"{where}.arguments: a string.")
    try:
        parsed = json.loads(str(arguments))
    except ValueError as exc:
        raise Refused(f"{where}.arguments: not JSON.") from exc
    _need(isinstance(parsed, dict), f"{where}.arguments: not a JSON object.")


def _check_call_id(item: Json, where: str) -> None:
    call_id = item.get("call_id")
    _need(isinstance(call_id, str) and 1 <= len(call_id) <= 64, f"{where}.call_id: 1 to 64 characters.")


def _check_output(item: Json, where: str) -> None:
    _check_call_id(item, where)
    output = item.get("output")
    if not isinstance(output, str):
        _parts(output, f"{where}.output", {"input_text", "input_image"})


def _check_ids(items: list[Json]) -> None:
    ids = [item["id"] for item in items if "id" in item]
    for item_id in ids:
        _need(ids.count(item_id) == 1, f"input: duplicate item id {item_id!r}.")


def _check_pairs(items: list[Json]) -> None:
    _match(
        (str(item["call_id"]) for item in items if item["type"] == "function_call"),
        (str(item["call_id"]) for item in items if item["type"] == "function_call_output"),
    )
    seen: set[object] = set()
    for item in items:
        if item["type"] == "function_call":
            seen.add(item["call_id"])
        elif item["type"] == "function_call_output":
            _need(item["call_id"] in seen, f"input: the output of {item['call_id']!r} stands before its call.")


def _match(calls: Iterator[str], outputs: Iterator[str]) -> None:
    made, answered = list(calls), list(outputs)
    for call_id in made:
        _need(made.count(call_id) == 1, f"input: two calls are named {call_id!r}.")
        _need(call_id in answered, f"input: no output for the call {call_id!r}.")
    for call_id in answered:
        _need(answered.count(call_id) == 1, f"input: two outputs for the call {call_id!r}.")
        _need(call_id in made, f"input: no call for the output {call_id!r}.")


def _check_chat(request: Json) -> None:
    messages = request.get("messages")
    _need(isinstance(messages, list) and messages, "messages: a list with at least one message.")
    assert isinstance(messages, list)
    calls: list[str] = []
    outputs: list[str] = []
    for index, message in enumerate(messages):
        _need(isinstance(message, dict), f"messages[{index}]: not an object.")
        calls += _chat_calls(message, f"messages[{index}]")
        if message.get("role") == "tool":
            _need(message.get("tool_call_id") in calls, f"messages[{index}].tool_call_id: unknown.")
            outputs.append(str(message["tool_call_id"]))
    _match(iter(calls), iter(outputs))


def _chat_calls(message: Json, where: str) -> list[str]:
    _need(message.get("role") in ("system", "developer", "user", "assistant", "tool"), f"{where}.role: unknown role.")
    made: list[str] = []
    for call in message.get("tool_calls") or []:  # type: ignore[attr-defined]
        _check_name(call["function"].get("name"), where)
        try:
            json.loads(call["function"].get("arguments", ""))
        except ValueError as exc:
            raise Refused(f"{where}.tool_calls: arguments are not JSON.") from exc
        made.append(str(call["id"]))
    return made
