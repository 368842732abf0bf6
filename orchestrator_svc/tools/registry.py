"""The gateway-owned tools. To add one: a file with a SPEC and an opener, and a line in TOOLS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from orchestrator_svc.outbound import Guard
from orchestrator_svc.request import ToolKinds
from orchestrator_svc.settings import Settings
from orchestrator_svc.tools import web_search
from orchestrator_svc.tools.base import Handler, Spec
from orchestrator_svc.tools.mcp import open_mcp
from orchestrator_svc.tools.toolbox import Toolbox

Opener = Callable[[Settings, Guard], AbstractAsyncContextManager[Handler]]

TOOLS: tuple[tuple[Spec, Opener], ...] = ((web_search.SPEC, web_search.open_web_search),)


@asynccontextmanager
async def open_toolbox(settings: Settings, tools: tuple[tuple[Spec, Opener], ...] = TOOLS) -> AsyncIterator[Toolbox]:
    """All tools, ready to be called. Tools of MCP servers have no line of their own: they are listed by their servers."""
    guard = Guard(settings.outbound)
    async with AsyncExitStack() as stack:
        mcp = await stack.enter_async_context(open_mcp(settings, guard))
        handlers: dict[str, Handler] = {"mcp": mcp}
        for spec, opener in tools:
            handlers[spec.kinds[0]] = await stack.enter_async_context(opener(settings, guard))
        specs = {kind: spec for spec, _ in tools for kind in spec.kinds}
        yield Toolbox(ToolKinds(specs, frozenset(settings.mcp_servers)), handlers, mcp, settings.orchestrator)
