"""MCP servers to test against: a real one, by the SDK, over each of its transports.

    async with FakeMcpServer(transport="streamable_http") as server:
        ...  # server.url, server.calls, server.overlap, server.headers, server.connections

It runs in this process, but over stdio, where it is a process of its own: `server.settings` has the command then. Servers that misbehave
stand in `faulty_mcp_server`.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.subscriptions import ToolsListChanged
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator_svc.settings import McpServerSettings

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Called:
    """One call that reached the server, and how many ran at that moment, itself included."""

    name: str
    arguments: dict[str, Any]
    overlap: int


@dataclass
class Recorder:
    """What happened at a server. `log` is a file that another process reads."""

    log: Path | None = None
    calls: list[Called] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    running: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @contextlib.asynccontextmanager
    async def call(self, name: str, **arguments: object) -> AsyncIterator[None]:
        """Counts one call for as long as it runs."""
        self.running += 1
        self._record(Called(name, arguments, self.running))
        async with self.changed:
            self.changed.notify_all()
        try:
            yield
        finally:
            self.running -= 1

    def _record(self, called: Called) -> None:
        self.calls.append(called)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps([called.name, called.arguments, called.overlap]) + "\n")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a state that only calls bring about."""
        async with self.changed:
            await self.changed.wait_for(condition)


class FakeMcpServer:
    """A server with tools for every kind of result, and with counters.

    `era` is `modern`, or `legacy` for one that knows only the protocol with sessions. `tools` are more functions to offer, by name.
    """

    def __init__(
        self,
        transport: str = "streamable_http",
        *,
        era: str = "modern",
        json_response: bool = False,
        tools: Mapping[str, Callable[..., object]] | None = None,
    ) -> None:
        self.transport = transport
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.release = asyncio.Event()
        self._era = era
        self._json_response = json_response
        self._recorder = Recorder()
        self._server = build(self._recorder, self.release, tools or {})
        self._log = Path(tempfile.mkdtemp()) / "calls" if transport == "stdio" else None
        self._http: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""

    @property
    def calls(self) -> list[Called]:
        """All calls of tools, in the order in which they came."""
        if self._log is None:
            return self._recorder.calls
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [Called(*json.loads(line)) for line in lines]

    @property
    def cancelled(self) -> list[str]:
        """The tools of which a call was cancelled while it ran."""
        return self._recorder.cancelled

    @property
    def overlap(self) -> int:
        """The most calls that ever ran at the same time."""
        return max((call.overlap for call in self.calls), default=0)

    @property
    def settings(self) -> McpServerSettings:
        """What `[mcp_servers.NAME]` says of it."""
        if self._log is not None:
            return McpServerSettings(command=sys.executable, args=("-c", _AS_A_PROCESS, str(_ROOT), str(self._log)))
        return McpServerSettings(url=self.url)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until what the calls brought about satisfies a condition."""
        await self._recorder.until(condition)

    async def grow(self) -> None:
        """Adds a tool, and tells those that listen."""
        await _grow(self._server, self._recorder)

    async def kill(self) -> None:
        """Cuts all connections and takes no more, as a crash does."""
        if self._http is not None:
            await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        if self.transport == "stdio":
            return self
        if self.transport == "sse":
            app: ASGIApp = self._server.sse_app()
        else:
            app = self._server.streamable_http_app(json_response=self._json_response)
        self._http = _Uvicorn(self._watched(app), self._connected)
        self._task = asyncio.create_task(self._http.serve())
        await self._http.listening.wait()
        port = self._http.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/{'sse' if self.transport == 'sse' else 'mcp'}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._http is not None and self._task is not None:
            self._http.cut()
            self._http.should_exit = True
            await self._task
            self._http = None

    def _connected(self) -> None:
        self.connections += 1

    def _watched(self, app: ASGIApp) -> ASGIApp:
        async def watch(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
                self.headers.append(headers)
                if self._era == "legacy" and headers.get("mcp-protocol-version", "").startswith("2026"):
                    await send({"type": "http.response.start", "status": 400, "headers": []})
                    await send({"type": "http.response.body", "body": b""})
                    return
            await app(scope, receive, send)

        return watch


class _Uvicorn(uvicorn.Server):
    """The SDK's HTTP server as a thing of this event loop: no signal handlers, and it says when it listens."""

    def __init__(self, app: ASGIApp, connected: Callable[[], None]) -> None:
        class Counted(H11Protocol):
            def connection_made(self, transport: Any) -> None:
                connected()
                super().connection_made(transport)

        super().__init__(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, http=Counted, timeout_graceful_shutdown=1))
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    def cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def _grow(server: MCPServer[Any], recorder: Recorder) -> None:
    async def grown() -> str:
        return "grown"

    server.add_tool(grown, name=f"grown_{sum(call.name == 'grow' for call in recorder.calls)}")
    await server._subscriptions.publish(ToolsListChanged())


def build(recorder: Recorder, release: asyncio.Event, more: Mapping[str, Callable[..., object]]) -> MCPServer[Any]:
    """The server itself."""
    server: MCPServer[Any] = MCPServer("fake", log_level="CRITICAL")

    @server.tool()
    async def echo(text: str) -> str:
        """Says the text again."""
        async with recorder.call("echo", text=text):
            return text

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Adds two numbers."""
        async with recorder.call("add", a=a, b=b):
            return a + b

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def look() -> str:
        """Looks, and changes nothing."""
        async with recorder.call("look"):
            return "seen"

    @server.tool()
    async def delete_all() -> str:
        """Deletes everything."""
        async with recorder.call("delete_all"):
            return "deleted"

    @server.tool()
    async def meet(count: int) -> str:
        """Returns once so many calls of it run at the same time."""
        async with recorder.call("meet", count=count):
            await recorder.until(lambda: max(call.overlap for call in recorder.calls) >= count)
            return "met"

    @server.tool()
    async def hold() -> str:
        """Returns when the test says so."""
        try:
            async with recorder.call("hold"):
                await release.wait()
                return "held"
        except asyncio.CancelledError:
            recorder.cancelled.append("hold")
            async with recorder.changed:
                recorder.changed.notify_all()
            raise

    @server.tool()
    async def fail() -> str:
        """Fails."""
        async with recorder.call("fail"):
            raise ToolError("it failed")

    @server.tool(structured_output=False)
    async def picture() -> list[Any]:
        """A text and an image."""
        async with recorder.call("picture"):
            return ["a pixel", Image(data=base64.b64decode(PIXEL), format="png")]

    @server.tool()
    async def table() -> dict[str, Any]:
        """A structured result."""
        async with recorder.call("table"):
            return {"rows": [1, 2, 3]}

    @server.tool()
    async def mixed() -> CallToolResult:
        """All other kinds of content."""
        async with recorder.call("mixed"):
            return CallToolResult(
                content=[
                    TextContent(text="first"),
                    AudioContent(data="AAAA", mime_type="audio/wav"),
                    ResourceLink(name="a link", uri="file:///tmp/link"),
                    EmbeddedResource(resource=TextResourceContents(uri="file:///tmp/text", text="a resource")),
                    EmbeddedResource(resource=BlobResourceContents(uri="file:///tmp/blob", blob="AAAA", mime_type="application/zip")),
                    EmbeddedResource(resource=BlobResourceContents(uri="file:///tmp/pixel", blob=PIXEL, mime_type="image/png")),
                ],
                structured_content={"more": True},
            )

    @server.tool(structured_output=False)
    async def flood(size: int) -> str:
        """A text of so many bytes."""
        async with recorder.call("flood", size=size):
            return "é" * (size // 2)

    @server.tool(annotations=ToolAnnotations(title="Leaks tok3n"))
    async def leak(ctx: Context[Any, Any]) -> str:
        """The headers of the request."""
        async with recorder.call("leak"):
            return json.dumps(dict(ctx.headers or {}))

    @server.tool()
    async def grow(ctx: Context[Any, Any]) -> str:
        """Adds a tool and says that the list has changed."""
        async with recorder.call("grow"):
            await _grow(server, recorder)
            with contextlib.suppress(Exception):  # a protocol without sessions has no such notification
                await ctx.session.send_tool_list_changed()
            return "grown"

    if recorder.log is not None:

        @server.tool()
        async def crash() -> str:
            """Ends the process."""
            async with recorder.call("crash"):
                os._exit(1)

    for name, function in more.items():
        server.add_tool(function, name=name)
    return server


_AS_A_PROCESS = "import sys; sys.path.insert(0, sys.argv[1]); from tests.fakes import mcp_server; mcp_server.serve_stdio(sys.argv[2])"


def serve_stdio(log: str) -> None:
    """The server as a process, over its standard input and output."""
    asyncio.run(build(Recorder(Path(log)), asyncio.Event(), {}).run_stdio_async())
