"""The gateway-owned tools. To add one: a file with a SPEC and an opener, and a line in TOOLS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from orchestrator_svc.outbound import Guard
from orchestrator_svc.request import ToolKinds
from orchestrator_svc.settings import Settings
from orchestrator_svc.tools import web_search
from orchestrator_svc.tools.base import Handler, ListedTool, McpServer, Spec, ToolFailed
from orchestrator_svc.tools.toolbox import Toolbox

Opener = Callable[[Settings, Guard], AbstractAsyncContextManager[Handler]]

TOOLS: tuple[tuple[Spec, Opener], ...] = ((web_search.SPEC, web_search.open_web_search),)


@asynccontextmanager
async def open_toolbox(settings: Settings, tools: tuple[tuple[Spec, Opener], ...] = TOOLS) -> AsyncIterator[Toolbox]:
    """All tools, ready to be called. Tools of MCP servers have no line of their own: they are listed by their servers."""
    guard = Guard(settings.outbound)
    async with AsyncExitStack() as stack:
        handlers: dict[str, Handler] = {}
        for spec, opener in tools:
            handlers[spec.kinds[0]] = await stack.enter_async_context(opener(settings, guard))
        specs = {kind: spec for spec, _ in tools for kind in spec.kinds}
        yield Toolbox(ToolKinds(specs), handlers, _NoServers(), settings.orchestrator)


class _NoServers:
    async def tools(self, server: McpServer) -> tuple[ListedTool, ...]:
        raise ToolFailed("MCP servers cannot be reached by this build.")
