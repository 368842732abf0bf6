"""The two requests to an MCP server, listing and calling, and what their failures mean."""

import mcp_types as types
from mcp import Client, MCPError
from pydantic import TypeAdapter

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ToolFailed
from orchestrator_svc.tools.mcp_endpoint import Endpoint
from orchestrator_svc.tools.mcp_http import (
    CONNECTION_LOST,
    EXCHANGE,
    TOO_LARGE,
    Exchange,
    McpFailed,
    connection_lost,
    http_error,
    not_mcp,
    timed_out,
    unreachable,
)

MAX_PAGES = 100
MAX_TOOLS = 2000
_MAX_MESSAGE_CHARS = 1000


async def all_tools(client: Client, max_bytes: int) -> tuple[types.Tool, ...]:
    found: dict[str, types.Tool] = {}
    cursors: set[str] = set()
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            found.setdefault(tool.name, tool)
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found.values())
        exchange = EXCHANGE.get()
        if cursor in cursors or len(found) > MAX_TOOLS or (exchange is not None and exchange.received > max_bytes):
            break
        cursors.add(cursor)
    raise McpFailed("The MCP server's list of tools is too long, or does not end.", TOO_LARGE)


async def call(client: Client, name: str, arguments: JsonObject, max_bytes: int) -> types.CallToolResult:
    request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
    try:
        result = await client.session.send_request(request, _RESULT)
    except MCPError as exc:
        if exc.code != types.HEADER_MISMATCH:
            raise
        # Refused before it ran: some headers of a call repeat arguments, as the listing says, and this session has none or an old one.
        await all_tools(client, max_bytes)
        result = await client.session.send_request(request, _RESULT)
    if isinstance(result, types.InputRequiredResult):
        raise McpFailed("The tool asks a person for input, which cannot be given here.", types.INVALID_REQUEST)
    return result


# Not the SDK's own `call_tool`: it lists the tools again for each that the session has not listed, to check results against their schema.
_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)


def translated(error: BaseException, exchange: Exchange, endpoint: Endpoint) -> ToolFailed:
    """What became of a request, in words that quote nothing but the message of a JSON-RPC error, without the credentials."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ToolFailed):
        return error
    if isinstance(error, TimeoutError):
        return timed_out(exchange.sent)
    if isinstance(error, OSError) and endpoint.command:
        return McpFailed("The command of the MCP server cannot be started.", CONNECTION_LOST)
    if exchange.status >= 300 and not _is_refusal(error, exchange.status):
        return http_error(exchange.status)
    if not isinstance(error, MCPError) or error.code == types.PARSE_ERROR or error.message.startswith(_NO_ANSWER):
        return not_mcp()
    if error.code == types.CONNECTION_CLOSED and error.message.startswith(_LOST):
        return connection_lost() if exchange.sent else unreachable()
    if error.code == types.REQUEST_TIMEOUT:
        return timed_out(exchange.sent)
    message = endpoint.redacted(error.message)[:_MAX_MESSAGE_CHARS]
    return McpFailed(f"The MCP server refused the request: {message}", error.code)


def _is_refusal(error: BaseException, status: int) -> bool:
    """Whether an answer with an error status had a JSON-RPC error as its body, which says more than the status."""
    return isinstance(error, MCPError) and status in (400, 404, 422) and not error.message.startswith(_NO_BODY)


# How the SDK words what it found out by itself.
_NO_BODY = ("Server returned an error response", "Session terminated", "Not Found")
_NO_ANSWER = ("Unexpected content type", "server answered a request with 202")
_LOST = ("Connection closed", "SSE stream")
