"""The toolbox: runs the calls of gateway-owned tools, and sees to it that none of them can hurt a turn.

Each call has a deadline, an output cap and its own failure; how many run at a time in this process is bounded. Which calls are run is
decided in `machine`, and what a tool does in its own file.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import TypeVar

from prometheus_client import Counter, Histogram

from orchestrator_svc.request import ToolKinds
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.tools.base import Handler, ListedTool, Lister, McpServer, ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.caps import bounded
from svckit.errors import forget_frames
from svckit.logs import get_logger

CALLS = Counter("turnkeep_orchestrator_tool_calls_total", "Calls of gateway-owned tools, by kind and outcome.", ["kind", "outcome"])
CALL_SECONDS = Histogram("turnkeep_orchestrator_tool_call_seconds", "Seconds that a call took, by kind.", ["kind"])

T = TypeVar("T")

log = get_logger(__name__)


class Toolbox:
    """The gateway-owned tools of one process."""

    def __init__(self, kinds: ToolKinds, handlers: Mapping[str, Handler], lister: Lister, settings: OrchestratorSettings) -> None:
        self.kinds = kinds
        self._handlers = handlers
        self._lister = lister
        self._settings = settings
        self._places = asyncio.Semaphore(settings.max_running_calls)

    async def list(self, server: McpServer) -> tuple[ListedTool, ...]:
        """The tools of an MCP server. Raises ToolFailed."""
        try:
            return await _bounded(self._lister.tools(server), self._settings.list_timeout_seconds)
        except TimeoutError as exc:
            raise ToolFailed("The MCP server did not list its tools in time.") from exc
        except ToolFailed:
            raise
        except Exception as exc:
            raise ToolFailed(_masked("tools/list", exc)) from exc

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of one call, capped; whatever goes wrong is a failed result."""
        async with self._places:
            with CALL_SECONDS.labels(call.tool.kind).time():
                result = await self._ran(call)
        CALLS.labels(call.tool.kind, "failed" if result.failed else "ok").inc()
        return bounded(result, self._settings.max_tool_output_bytes)

    async def _ran(self, call: ToolCall) -> ToolResult:
        seconds = self._settings.tool_timeout_seconds
        try:
            return await _bounded(self._handlers[call.tool.kind].run(call), seconds)
        except TimeoutError:
            return _failure(f"The tool did not answer within {seconds:g} seconds.")
        except ToolFailed as failure:
            forget_frames(failure)
            return replace(_failure(failure.message), public=failure.public)
        except Exception as exc:
            return _failure(_masked(call.tool.kind, exc))


async def _bounded(work: Awaitable[T], seconds: float) -> T:
    """Awaits work in a task of its own: a cancellation that comes from inside it is its failure and not ours. Raises TimeoutError."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _ended(task)
        raise
    if not done:
        await _ended(task)
        raise TimeoutError
    if task.cancelled():
        raise ToolFailed("The tool's connection was lost.")
    return task.result()


async def _ended(task: "asyncio.Future[T]") -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=_CLEANUP_SECONDS)


_CLEANUP_SECONDS = 5.0


def _failure(message: str) -> ToolResult:
    return ToolResult(f"Error: {message}", failed=True)


def _masked(what: str, error: Exception) -> str:
    error_id = f"err_{secrets.token_hex(8)}"
    log.error("a tool failed", tool=what, error_id=error_id, exc_info=error)
    forget_frames(error)
    return f"The tool failed inside the gateway (error id {error_id})."
