"""The tool `mcp`: the tools of MCP servers, listed and called by the gateway.

This file says what a listing and a result are to a turn: which tools there are, what the model reads, what the client sees. Who may call
what, and whether somebody must approve it first, stands in `table`; how a server is reached, in `mcp_sessions`.
"""

import asyncio
import binascii
import json
import math
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator_svc.items import JsonObject
from orchestrator_svc.outbound import Guard
from orchestrator_svc.settings import McpSettings, Settings
from orchestrator_svc.tools.base import ListedTool, McpServer, ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.caps import capped
from orchestrator_svc.tools.mcp_endpoint import Endpoint, Endpoints
from svckit.errors import forget_frames
from svckit.json_text import halves_joined
from svckit.lifecycle import Background
from svckit.settings import environment

if TYPE_CHECKING:
    import mcp_types as types

    from orchestrator_svc.tools.mcp_sessions import McpSessions

_CLEANUP_SECONDS = 1.0
_MAX_ERROR_BYTES = 16 * 1024
_MIME_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}")


@asynccontextmanager
async def open_mcp(settings: Settings, guard: Guard) -> AsyncIterator["McpClient"]:
    """The client of all MCP servers. Raises SettingsError for a configured server that cannot be spoken to as it is configured."""
    endpoints = Endpoints(settings.mcp_servers, environment())
    async with Background(grace=_CLEANUP_SECONDS) as background, AsyncExitStack() as stack:
        yield McpClient(settings.mcp, endpoints, guard, background, stack)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The tools of an endpoint, and until when they are believed."""

    tools: tuple[ListedTool, ...]
    until: float


class McpClient:
    """Lists and calls. It is the handler of the calls whose tool has a `server`."""

    def __init__(self, settings: McpSettings, endpoints: Endpoints, guard: Guard, background: Background, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._endpoints = endpoints
        self._guard = guard
        self._background = background
        self._stack = stack
        self._loading = asyncio.Lock()
        self._sessions: McpSessions | None = None
        self._listings: OrderedDict[str, _Listing] = OrderedDict()
        self._running: dict[str, asyncio.Task[tuple[ListedTool, ...] | ToolFailed]] = {}

    async def tools(self, server: McpServer) -> tuple[ListedTool, ...]:
        """The tools of a server, in its order. Raises ToolFailed.

        A listing is kept for a while, apart for each set of credentials; those who ask at the same time share one request.
        """
        endpoint = self._endpoints.of(server)
        kept = self._listings.get(endpoint.key)
        if kept is not None and asyncio.get_running_loop().time() < kept.until:
            return kept.tools
        running = self._running.get(endpoint.key)
        if running is None:
            running = self._background.start(self._list(endpoint), "listing the tools of an MCP server")
            self._running[endpoint.key] = running
        outcome = await asyncio.shield(running)
        if isinstance(outcome, ToolFailed):
            raise ToolFailed(outcome.message, outcome.public)
        return outcome

    async def run(self, call: ToolCall) -> ToolResult:
        """Calls the tool, at most once. Raises ToolFailed, whose `public` has the `output` and `error` of an mcp_call."""
        assert call.tool.server is not None
        try:
            endpoint = self._endpoints.of(call.tool.server)
            sessions = await self._opened()
            result = await sessions.call(endpoint, call.tool.name, _sendable(call.arguments))
        except ToolFailed as failed:
            raise ToolFailed(failed.message, failed.public or _refused(failed.message)) from None
        return _result(result, endpoint)

    async def _list(self, endpoint: Endpoint) -> tuple[ListedTool, ...] | ToolFailed:
        try:
            sessions = await self._opened()
            listed = await sessions.tools(endpoint)
        except ToolFailed as failed:
            self._forget_running(endpoint)
            forget_frames(failed)
            return failed
        tools = tuple(_listed(tool, endpoint) for tool in listed if tool.name)
        if self._forget_running(endpoint):
            self._keep(endpoint, tools)
        return tools

    def _forget_running(self, endpoint: Endpoint) -> bool:
        """Whether the list has not changed since this task began to read it."""
        if self._running.get(endpoint.key) is not asyncio.current_task():
            return False
        del self._running[endpoint.key]
        return True

    def _keep(self, endpoint: Endpoint, tools: tuple[ListedTool, ...]) -> None:
        until = asyncio.get_running_loop().time() + self._settings.list_lifetime_seconds
        self._listings[endpoint.key] = _Listing(tools, until)
        self._listings.move_to_end(endpoint.key)
        while len(self._listings) > self._settings.max_sessions:
            self._listings.popitem(last=False)

    def _changed(self, endpoint: Endpoint) -> None:
        """The server's list is another now: what is kept is old, and so is what is just being read."""
        self._listings.pop(endpoint.key, None)
        self._running.pop(endpoint.key, None)

    async def _opened(self) -> "McpSessions":
        """The sessions; the SDK is loaded for the first of them, in a thread, because that takes a second."""
        async with self._loading:
            if self._sessions is None:
                await asyncio.to_thread(_load)
                from orchestrator_svc.tools.mcp_sessions import open_sessions

                self._sessions = await self._stack.enter_async_context(open_sessions(self._settings, self._guard, self._changed))
            return self._sessions


def _load() -> None:
    from orchestrator_svc.tools import mcp_sessions

    mcp_sessions.tls()


def _refused(message: str) -> JsonObject:
    return {"output": "", "error": {"type": "mcp_protocol_error", "code": -32600, "message": message}}


# Listings.


def _listed(tool: "types.Tool", endpoint: Endpoint) -> ListedTool:
    said = tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True) if tool.annotations else None
    annotations, schema = _redacted(said, endpoint), _redacted(tool.input_schema, endpoint)
    assert isinstance(schema, dict)
    assert annotations is None or isinstance(annotations, dict)
    return ListedTool(tool.name, schema, endpoint.redacted(tool.description or tool.title or ""), annotations or None)


def _redacted(value: object, endpoint: Endpoint) -> object:
    if isinstance(value, str):
        return endpoint.redacted(value)
    if isinstance(value, dict):
        return {endpoint.redacted(str(key)): _redacted(one, endpoint) for key, one in value.items()}
    if isinstance(value, list):
        return [_redacted(one, endpoint) for one in value]
    return value


# Arguments.


def _sendable(value: JsonObject) -> JsonObject:
    """The arguments as UTF-8 JSON can carry them: a half of a surrogate pair becomes U+FFFD, a number that is none becomes null."""
    return {halves_joined(key): _sendable_value(one) for key, one in value.items()}


def _sendable_value(value: object) -> object:
    if isinstance(value, str):
        return halves_joined(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return _sendable(value)
    if isinstance(value, list):
        return [_sendable_value(one) for one in value]
    return value


# Results.


def _result(result: "types.CallToolResult", endpoint: Endpoint) -> ToolResult:
    said = [part for block in result.content for part in _parts(block)]
    if result.structured_content is not None:
        text = _structured_text(result.structured_content, [str(part["text"]) for part in said if part["type"] == "input_text"])
        said += [_input_text(text)] if text else []
    parts = [_redacted_part(part, endpoint) for part in said]
    shown = "\n".join(_shown(part) for part in parts)
    has_images = any(part["type"] == "input_image" for part in parts)
    error = {"type": "mcp_tool_execution_error", "content": [_error_text(shown)]} if result.is_error else None
    return ToolResult(tuple(parts) if has_images else shown, failed=result.is_error, public={"output": shown, "error": error})


def _parts(block: "types.ContentBlock") -> Sequence[JsonObject]:
    """One block of a result as the model reads it. What no engine reads is named, so that the model knows that it is there."""
    if block.type == "text":
        return [_input_text(block.text)]
    if block.type == "image":
        return [_image(block.data, block.mime_type)]
    if block.type == "audio":
        return [_input_text(f"[audio of type {block.mime_type[:64]} is left out]")]
    if block.type == "resource_link":
        return [_input_text(" ".join(filter(None, (block.title or block.name, f"<{block.uri}>", block.description))))]
    return [_resource(block.resource)]


def _resource(resource: "types.TextResourceContents | types.BlobResourceContents") -> JsonObject:
    if hasattr(resource, "text"):
        return _input_text(resource.text)
    if (resource.mime_type or "").startswith("image/"):
        return _image(resource.blob, str(resource.mime_type))
    return _input_text(f"[the resource {str(resource.uri)[:500]} of type {(resource.mime_type or 'unknown')[:64]} is left out]")


def _image(data: str, mime_type: str) -> JsonObject:
    """An engine refuses a whole request for an image that is none."""
    packed = "".join(data.split())
    try:
        is_image = bool(binascii.a2b_base64(packed, strict_mode=True)) and _MIME_TYPE.fullmatch(mime_type)
    except ValueError:
        is_image = None
    if not is_image:
        return _input_text("[an image that cannot be read is left out]")
    return {"type": "input_image", "image_url": f"data:{mime_type};base64,{packed}", "detail": "auto"}


def _structured_text(structured: object, texts: list[str]) -> str:
    """The structured result as JSON, unless the texts say the same: servers repeat it there for clients that know text only."""
    parsed = [_parsed(text) for text in texts]
    said: list[object] = [texts, parsed, *texts[:1], *parsed[:1]] if len(texts) == 1 else [texts, parsed]
    wrapped = structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured
    if texts and (structured in said or wrapped in said):
        return ""
    return json.dumps(structured, ensure_ascii=False)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _input_text(text: str) -> JsonObject:
    return {"type": "input_text", "text": halves_joined(text)}


def _redacted_part(part: JsonObject, endpoint: Endpoint) -> JsonObject:
    return {**part, "text": endpoint.redacted(str(part["text"]))} if part["type"] == "input_text" else part


def _shown(part: JsonObject) -> str:
    if part["type"] == "input_text":
        return str(part["text"])
    return f"[image: {str(part['image_url'])[5:].partition(';')[0]}]"


def _error_text(text: str) -> JsonObject:
    return {"type": "text", "text": capped(text, _MAX_ERROR_BYTES)}
