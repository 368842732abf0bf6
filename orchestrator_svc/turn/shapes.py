"""Shapes: how the call of each kind of tool is shown to clients, while it opens and once it is closed. Pure.

The engine only makes function calls. What a client sees instead, a `custom_tool_call` or an `mcp_call`, is decided by the tool's kind here;
when its events are written is `output`'s business.
"""

from dataclasses import dataclass

import msgspec

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import Tool, ToolResult
from svckit import json_text


@dataclass(frozen=True, slots=True)
class Shape:
    """How one kind of call is shown.

    `whole`: it is announced only when the model has said all of it. `runs`: the gateway runs it, and it stays open until then.
    `arguments` is the base name of the events that stream its argument string, empty for none; `field` is where the whole of it stands.
    `started`, `running`, `succeeded` and `failed` are the events that are sent then, empty for none.
    """

    type: str
    whole: bool = False
    runs: bool = False
    arguments: str = ""
    field: str = "arguments"
    started: str = ""
    running: str = ""
    succeeded: str = ""
    failed: str = ""


FUNCTION_CALL = Shape("function_call", arguments="response.function_call_arguments")
CUSTOM_CALL = Shape("custom_tool_call", whole=True, arguments="response.custom_tool_call_input", field="input")
TOOL_SEARCH_CALL = Shape("tool_search_call", whole=True)
APPROVAL_REQUEST = Shape("mcp_approval_request", whole=True)
WEB_SEARCH_CALL = Shape(
    "web_search_call",
    runs=True,
    started="response.web_search_call.in_progress",
    running="response.web_search_call.searching",
    succeeded="response.web_search_call.completed",
)
MCP_CALL = Shape(
    "mcp_call",
    runs=True,
    arguments="response.mcp_call_arguments",
    started="response.mcp_call.in_progress",
    succeeded="response.mcp_call.completed",
    failed="response.mcp_call.failed",
)
# A call that may not be made: the model is told so, and clients never see it.
UNDECLARED = Shape("", whole=True, runs=True)

_BY_KIND = {"function": FUNCTION_CALL, "custom": CUSTOM_CALL, "tool_search": TOOL_SEARCH_CALL, "web_search": WEB_SEARCH_CALL}


def shape_of(tool: Tool | None) -> Shape:
    """How calls of `tool` are shown; None is a tool that nobody declared. A gateway-owned tool without its own shape is an mcp_call."""
    if tool is None:
        return UNDECLARED
    if tool.needs_approval:
        return APPROVAL_REQUEST
    return _BY_KIND.get(tool.kind, MCP_CALL)


def opening(shape: Shape, tool: Tool | None, call_id: str, arguments: str, approval_request_id: str = "") -> JsonObject:
    """The item as it is announced, without its id; only an approval request has its arguments from the start."""
    if tool is None:
        return {}
    if shape is WEB_SEARCH_CALL:
        return {"type": shape.type, "status": "in_progress"}
    if shape is MCP_CALL:
        return _opening_mcp_call(tool, approval_request_id)
    if shape is APPROVAL_REQUEST:
        return {"type": shape.type, "server_label": tool.group, "name": tool.name, "arguments": arguments}
    return _opening_client_call(shape, tool, call_id)


def _opening_mcp_call(tool: Tool, approval_request_id: str) -> JsonObject:
    return {
        "type": MCP_CALL.type,
        "status": "in_progress",
        "server_label": tool.group or tool.kind,
        "name": tool.name,
        "arguments": "",
        "output": None,
        "error": None,
        "approval_request_id": approval_request_id or None,
    }


def _opening_client_call(shape: Shape, tool: Tool, call_id: str) -> JsonObject:
    body: JsonObject = {"type": shape.type, "status": "in_progress", "call_id": call_id}
    if shape is TOOL_SEARCH_CALL:
        return body | {"execution": "client", "arguments": {}}
    if tool.group:
        body["namespace"] = tool.group
    return body | {"name": tool.name, shape.field: ""}


def told(result: ToolResult) -> JsonObject:
    """What an mcp_call shows of a result that says nothing of how it is to be shown."""
    text = result.output if isinstance(result.output, str) else "\n".join(str(part.get("text", "")) for part in result.output)
    if result.failed:
        return {"error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}}
    return {"output": text}


def shown_arguments(shape: Shape, arguments: str) -> object:
    """What stands in the item for the model's argument string."""
    if shape is CUSTOM_CALL:
        return custom_input(arguments)
    if shape is TOOL_SEARCH_CALL:
        return parsed(arguments) or {}
    return arguments


def custom_input(arguments: str) -> str:
    """The input of a freeform tool: the one string of its function, or whatever the model wrote instead."""
    value = (parsed(arguments) or {}).get("input")
    return value if isinstance(value, str) else arguments


def parsed(arguments: str) -> JsonObject | None:
    """The argument object, or None for what is none."""
    try:
        return json_text.decode(arguments.encode() or b"{}", JsonObject)
    except (msgspec.MsgspecError, RecursionError):
        return None
