"""An MCP server over raw sockets that misbehaves where a test says so, and behaves otherwise.

    async with FaultyMcpServer(calling="dies_mid_sse") as server:
        ...  # server.url, server.calls, server.sessions, server.cancelled

It knows the protocol with sessions, and answers as one JSON body. The faults are the functions at the end of this file, by name.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One HTTP request. `message` is what it carries, empty for a GET."""

    method: str
    headers: dict[str, str]
    message: Json


class FaultyMcpServer:
    """`listing` and `calling` name the fault with which those requests are answered; `initialize` the one of the handshake."""

    def __init__(self, *, initialize: str = "", listing: str = "", calling: str = "") -> None:
        self.faults = {"initialize": initialize, "tools/list": listing, "tools/call": calling}
        self.received: list[Request] = []
        self.cancelled: list[object] = []
        self.sessions = 0
        self.connections = 0
        self.release = asyncio.Event()
        self.changed = asyncio.Condition()
        self.url = ""
        self._known: set[str] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._running: set[asyncio.Task[None] | None] = set()
        self._server: asyncio.Server | None = None

    @property
    def calls(self) -> int:
        """How often a call of a tool reached the server."""
        return self.count("tools/call")

    def count(self, method: str) -> int:
        """How many messages of a method came in."""
        return sum(request.message.get("method") == method for request in self.received)

    def lose_sessions(self) -> None:
        """Forgets all sessions, as a restart does."""
        self._known.clear()

    def drop_connections(self) -> None:
        """Closes all connections, as servers do with those that were idle for long."""
        for writer in self._writers:
            writer.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a state that only requests bring about."""
        async with self.changed:
            await self.changed.wait_for(condition)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self.release.set()
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.gather(*filter(None, self._running), return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        self._running.add(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._one(await _read(reader), writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; whether the connection goes on."""
        self.received.append(request)
        method = str(request.message.get("method", ""))
        if method == "notifications/cancelled":
            self.cancelled.append(request.message["params"]["requestId"])
        async with self.changed:
            self.changed.notify_all()
        if request.method == "POST" and method in self.faults and self.faults[method]:
            return await FAULTS[self.faults[method]](self, request, writer)
        return await self._behave(request, method, writer)

    async def _behave(self, request: Request, method: str, writer: asyncio.StreamWriter) -> bool:
        if request.method != "POST":
            return await respond(writer, "405 Method Not Allowed")
        if method == "server/discover":
            return await respond_json(writer, request, {"error": {"code": -32601, "message": "Method not found"}})
        if method == "initialize":
            return await self._initialize(request, writer)
        if request.headers.get("mcp-session-id") not in self._known:
            return await respond(writer, "404 Not Found")
        if "id" not in request.message:
            return await respond(writer, "202 Accepted")
        if method == "tools/list":
            return await respond_json(writer, request, {"result": {"tools": tools("echo", "other")}})
        text = str(request.message["params"].get("arguments", {}).get("text", ""))
        return await respond_json(writer, request, {"result": {"content": [{"type": "text", "text": text}]}})

    async def _initialize(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        self.sessions += 1
        session = f"session-{self.sessions}"
        self._known.add(session)
        server = {"name": "faulty", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}
        return await respond_json(writer, request, {"result": result}, headers=f"mcp-session-id: {session}\r\nset-cookie: a=b\r\n")


def tools(*names: str) -> list[Json]:
    """Tools as tools/list shows them."""
    return [{"name": name, "inputSchema": {"type": "object", "properties": {}}} for name in names]


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(first.split(" ")[0], headers, json.loads(body) if body else {})


async def respond(writer: asyncio.StreamWriter, status: str, body: bytes = b"", kind: str = "text/plain", headers: str = "") -> bool:
    """A whole HTTP response."""
    writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body)
    await writer.drain()
    return True


async def respond_json(writer: asyncio.StreamWriter, request: Request, answer: Json, headers: str = "") -> bool:
    """A JSON-RPC answer to a request."""
    body = json.dumps({"jsonrpc": "2.0", "id": request.message.get("id"), **answer}).encode()
    return await respond(writer, "200 OK", body, "application/json", headers)


async def respond_page(writer: asyncio.StreamWriter, request: Request, names: list[str], following: str | None) -> bool:
    """A page of tools."""
    page: Json = {"tools": tools(*names)}
    return await respond_json(writer, request, {"result": page | ({"nextCursor": following} if following else {})})


def cursor_of(request: Request) -> str:
    """Which page is asked for; empty for the first."""
    return str((request.message.get("params") or {}).get("cursor", ""))


def text_answer(request: Request, text: str) -> bytes:
    """A tool's result as JSON."""
    answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": {"content": [{"type": "text", "text": text}]}}
    return json.dumps(answer, ensure_ascii=False).encode()


# Faults. Each returns whether the connection goes on.


async def silent(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Never answers, until the test releases it."""
    await server.release.wait()
    return await server._behave(request, str(request.message["method"]), writer)


async def dies_before_headers(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def dies_if_told(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Dies for a call with the text `die`; keeps others waiting until the test releases them."""
    if request.message["params"]["arguments"]["text"] == "die":
        writer.transport.abort()
        return False
    return await silent(server, request, writer)


async def dies_after_headers(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
    await writer.drain()
    return False


async def dies_mid_sse(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    writer.write(b"10\r\nevent: message\nd\r\n")
    await writer.drain()
    return False


async def chatters(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Says again and again that it is at work, for as long as it is listened to."""
    progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": request.message["id"], "progress": 1}}
    event = b"data: " + json.dumps(progress).encode() + b"\n\n"
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(event)
        await writer.drain()
        await asyncio.sleep(0.005)
    return False


async def status_500(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond(writer, "500 Internal Server Error", b"Traceback: " + repr(request.headers).encode())


async def status_401(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Repeats the credentials that it refuses."""
    body = f'{{"error": "bad token {request.headers.get("authorization")}"}}'.encode()
    return await respond(writer, "401 Unauthorized", body, "application/json")


async def status_404(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond(writer, "404 Not Found", b"no such session")


async def session_not_found_once(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """A restart just before this request."""
    server.faults[str(request.message["method"])] = ""
    server.lose_sessions()
    return await respond(writer, "404 Not Found")


async def jsonrpc_error(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Repeats the credentials in its message."""
    error = {"code": -32602, "message": f"bad arguments for {request.headers.get('authorization')}"}
    return await respond_json(writer, request, {"error": error})


async def html(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond(writer, "200 OK", b"<html><body>Welcome</body></html>", "text/html")


async def not_json(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond(writer, "200 OK", b"{{{", "application/json")


async def wrong_schema(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond_json(writer, request, {"result": {"content": 5, "tools": [{"inputSchema": "none"}]}})


async def redirects(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond(writer, "302 Found", headers="location: http://127.0.0.1:1/secret\r\n")


async def floods(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """30 MB of text as one JSON body."""
    return await respond(writer, "200 OK", text_answer(request, "é" * 15_000_000), "application/json")


async def floods_sse(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """30 MB of text as one event."""
    body = b"event: message\ndata: " + text_answer(request, "x" * 30_000_000) + b"\n\n"
    return await respond(writer, "200 OK", body, "text/event-stream")


async def floods_image(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    content = [{"type": "text", "text": "a picture"}, {"type": "image", "mimeType": "image/png", "data": "A" * 10_000_000}]
    return await respond_json(writer, request, {"result": {"content": content}})


async def floods_structured(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond_json(writer, request, {"result": {"content": [], "structuredContent": {"rows": ["row"] * 700_000}}})


async def latin_1(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Bytes that are no UTF-8, and half of a surrogate pair."""
    body = text_answer(request, "@").replace(b"@", b"caf\xe9 \\ud83d \\ud83c\\udf78 \\\\ud83d")
    return await respond(writer, "200 OK", body, "application/json")


async def packed(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    return await respond(writer, "200 OK", b"\x1f\x8b", "application/json", "content-encoding: gzip\r\n")


async def pages(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """Three pages of fifty tools."""
    page = int(cursor_of(request) or 0)
    return await respond_page(writer, request, [f"tool_{page}_{n}" for n in range(50)], str(page + 1) if page < 2 else None)


async def same_cursor(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """A listing that leads back to the same page."""
    return await respond_page(writer, request, ["echo"], "again")


async def endless(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """A listing that always goes on."""
    page = int(cursor_of(request) or 0)
    return await respond_page(writer, request, [f"tool_{page}"], str(page + 1))


async def duplicates(server: FaultyMcpServer, request: Request, writer: asyncio.StreamWriter) -> bool:
    """The same tool on two pages."""
    if cursor_of(request):
        return await respond_page(writer, request, ["echo", "last"], None)
    return await respond_page(writer, request, ["first", "echo"], "2")


Fault = Callable[[FaultyMcpServer, Request, asyncio.StreamWriter], Awaitable[bool]]

FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        *(silent, chatters, dies_before_headers, dies_if_told, dies_after_headers, dies_mid_sse),
        *(status_500, status_401, status_404, session_not_found_once, redirects),
        *(jsonrpc_error, html, not_json, wrong_schema, latin_1, packed),
        *(floods, floods_sse, floods_image, floods_structured),
        *(pages, same_cursor, endless, duplicates),
    )
}
