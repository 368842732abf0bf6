"""How the tests of MCP call: a client with short bounds, and calls in one line each."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from orchestrator_svc.outbound import Guard
from orchestrator_svc.settings import McpServerSettings, McpSettings, OutboundSettings, Settings
from orchestrator_svc.tools.base import McpServer, Tool, ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.mcp import McpClient, open_mcp


@asynccontextmanager
async def opened(configured: Mapping[str, McpServerSettings] | None = None, **bounds: float) -> AsyncIterator[McpClient]:
    """A client for which servers of this machine count as public; `bounds` are keys of `[mcp]`."""
    settings = Settings(mcp=McpSettings(**bounds), mcp_servers=dict(configured or {}))  # type: ignore[arg-type]
    async with open_mcp(settings, Guard(OutboundSettings(allow_hosts=("127.0.0.1",)))) as client:
        yield client


def call_of(server: McpServer, name: str, **arguments: object) -> ToolCall:
    """A call of a tool, as a turn makes it."""
    return ToolCall("call_1", Tool(f"s__{name}", "mcp", name, group=server.label, server=server), dict(arguments))


async def run(client: McpClient, server: McpServer, name: str, **arguments: object) -> ToolResult:
    """The result of a call."""
    return await client.run(call_of(server, name, **arguments))


async def failure(client: McpClient, server: McpServer, name: str, **arguments: object) -> ToolFailed:
    """The failure that a call must end in."""
    try:
        result = await client.run(call_of(server, name, **arguments))
    except ToolFailed as failed:
        return failed
    raise AssertionError(f"the call did not fail: {result}")


async def list_failure(client: McpClient, server: McpServer) -> ToolFailed:
    """The failure that a listing must end in."""
    try:
        tools = await client.tools(server)
    except ToolFailed as failed:
        return failed
    raise AssertionError(f"the listing did not fail: {tools}")
