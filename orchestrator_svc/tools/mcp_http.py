"""How the HTTP requests of an MCP session travel, below the SDK: what fails stays with the request that failed, and no answer is too large.

The SDK runs all requests of a session in one task group, where an exception of any of them ends the session with all its calls. So
none gets there: a request that fails is written down in its `Exchange`, and the SDK is handed an empty answer. What a server sends is read
up to a bound: a tool's result that is longer goes on as its beginning and a note, made into a whole message again. Text that is not UTF-8
is made so. This file knows the shape of MCP's messages, not what they mean.
"""

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import ContextVar

import httpx2
from pydantic_core import from_json

from orchestrator_svc.tools.base import ToolFailed

CONNECTION_LOST = -32000
TIMED_OUT = -32001
NOT_MCP = -32700
TOO_LARGE = -32603

_MAX_ERROR_BYTES = 64 * 1024
_LINGER_SECONDS = 0.5


class McpFailed(ToolFailed):
    """A request to an MCP server failed; `error` is the object that an mcp_call shows for it."""

    def __init__(self, message: str, code: int, kind: str = "mcp_protocol_error") -> None:
        super().__init__(message, {"output": "", "error": {"type": kind, "code": code, "message": message}})
        self.code = code


def unreachable() -> McpFailed:
    """Nothing was sent."""
    return McpFailed("The MCP server cannot be reached.", CONNECTION_LOST)


def connection_lost() -> McpFailed:
    """Sent, and never answered."""
    return McpFailed(f"The connection to the MCP server was lost before it answered{_UNKNOWN}", CONNECTION_LOST)


def timed_out(sent: bool) -> McpFailed:
    """The deadline came first."""
    return McpFailed(f"The MCP server did not answer in time{_UNKNOWN if sent else '.'}", TIMED_OUT)


_UNKNOWN = "; whether the request was carried out is not known."


def http_error(status: int) -> McpFailed:
    """The server's HTTP status stands for its answer."""
    return McpFailed(f"The MCP server answered with HTTP status {status}.", status, "http_error")


def not_mcp() -> McpFailed:
    """An answer came, and is none."""
    return McpFailed("The MCP server's answer is not valid MCP.", NOT_MCP)


class Exchange:
    """One request of ours as the wire sees it. Whatever runs for the request finds it in its context, `EXCHANGE`.

    `sent` says that the server may have acted on it, `failed` becomes what the SDK would not tell, `received` counts bytes.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.sent = False
        self.status = 0
        self.received = 0
        self.abandoned = False
        self.failed: asyncio.Future[ToolFailed] = asyncio.get_running_loop().create_future()

    def fail(self, failure: ToolFailed) -> None:
        """The first failure counts."""
        if not self.failed.done():
            self.failed.set_result(failure)

    def settle(self) -> None:
        """All went well; what the SDK goes on doing in the same context is no longer timed by this exchange."""
        self.deadline = math.inf

    @property
    def read_timeout(self) -> float | None:
        """How long the server may be silent from now on: a little longer than anybody waits, so that the deadline is what is reported."""
        remaining = self.deadline - asyncio.get_running_loop().time()
        return None if math.isinf(remaining) else max(remaining, 0.0) + _LINGER_SECONDS

    @property
    def is_over(self) -> bool:
        """Nobody waits for the answer any more."""
        return self.abandoned or asyncio.get_running_loop().time() > self.deadline


EXCHANGE: ContextVar[Exchange | None] = ContextVar("mcp_exchange", default=None)


class SessionTransport(httpx2.AsyncBaseTransport):
    """For the `httpx2.AsyncClient` of one session. `is_sse`: answers come over one long GET, as in the older of the two HTTP transports."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, max_bytes: int, is_sse: bool) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._is_sse = is_sse

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, or an empty one; never raises for what the network or the server does."""
        exchange = EXCHANGE.get() if request.method == "POST" or self._is_sse else None
        if exchange is not None and request.method == "POST":
            request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": exchange.read_timeout}
        try:
            response = await self._inner.handle_async_request(request)
        except Exception as exc:  # whatever it is: an exception in the SDK's task group would end the calls of others
            return self._failed(request, exchange, exc)
        return await self._taken(request, exchange, response)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._inner.aclose()

    def _failed(self, request: httpx2.Request, exchange: Exchange | None, error: Exception) -> httpx2.Response:
        never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | ToolFailed)
        if exchange is not None:
            exchange.sent = exchange.sent and not never_sent
            exchange.fail(error if isinstance(error, ToolFailed) else unreachable() if never_sent else connection_lost())
        return self._empty(request)

    async def _taken(self, request: httpx2.Request, exchange: Exchange | None, response: httpx2.Response) -> httpx2.Response:
        is_error = response.status_code >= 400
        if exchange is not None:
            exchange.status = response.status_code
        refusal = http_error(response.status_code) if is_error and self._is_sse else None
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            refusal = not_mcp()  # none was asked for, and a small body may unpack into a very large one
        if refusal is not None:
            await response.aclose()
            if exchange is not None:
                exchange.fail(refusal)
            return self._empty(request)
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _DROPPED]
        stream = self._body(request, exchange if request.method == "POST" else None, response, is_error)
        return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)

    def _body(
        self, request: httpx2.Request, exchange: Exchange | None, response: httpx2.Response, is_error: bool
    ) -> httpx2.AsyncByteStream:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        limit = min(self._max_bytes, _MAX_ERROR_BYTES) if is_error else self._max_bytes
        arriving = _Arriving(response.stream, exchange)
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            return _Events(arriving, limit, ends_when_cut=request.method == "POST")
        return _Whole(arriving, limit, request)

    def _empty(self, request: httpx2.Request) -> httpx2.Response:
        """What the SDK makes nothing of: over SSE a POST brings no answer anyway."""
        return httpx2.Response(202 if self._is_sse and request.method == "POST" else 503, content=b"")


# A body that is rewritten has another length, a text that is made UTF-8 another encoding; a session of ours keeps no cookies.
_DROPPED = {"set-cookie", "content-length", "transfer-encoding", "content-encoding"}


class _Arriving:
    """The chunks of a body for as long as somebody waits for them; a lost connection ends them."""

    def __init__(self, stream: httpx2.AsyncByteStream, exchange: Exchange | None) -> None:
        self._stream = stream
        self._exchange = exchange

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._stream:
                if self._exchange is not None:
                    self._exchange.received += len(chunk)
                    if self._exchange.is_over:
                        return
                yield chunk
        except httpx2.HTTPError:
            if self._exchange is not None:
                self._exchange.fail(connection_lost())

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Whole(httpx2.AsyncByteStream):
    """A body that is one message."""

    def __init__(self, arriving: _Arriving, limit: int, request: httpx2.Request) -> None:
        self._arriving = arriving
        self._limit = limit
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async with contextlib.aclosing(self._arriving.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > self._limit:
                    break
        if len(body) > self._limit:
            yield cut_message(bytes(body[: self._limit]), _id_of(self._request), self._limit)
        else:
            yield legal(bytes(body))

    async def aclose(self) -> None:
        await self._arriving.aclose()


class _Events(httpx2.AsyncByteStream):
    """A body that is a stream of events, each a message; they go on one by one, whole."""

    def __init__(self, arriving: _Arriving, limit: int, ends_when_cut: bool) -> None:
        self._arriving = arriving
        self._chunks = arriving.chunks()
        self._limit = limit
        self._ends_when_cut = ends_when_cut
        self._was_cut = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending, searched, skipping = bytearray(), 0, False
        async for chunk in self._chunks:
            pending += chunk
            while found := _END_OF_EVENT.search(pending, max(searched - _LONGEST_END, 0)):
                event = bytes(pending[: found.end()])
                del pending[: found.end()]
                searched = 0
                if not skipping:
                    yield self._fitting(legal(event))
                skipping = False
            searched = len(pending)
            if len(pending) > self._limit:
                if not skipping:
                    yield self._fitting(bytes(pending))
                self._was_cut = True
                if self._ends_when_cut:
                    return
                del pending[:-_LONGEST_END]
                searched, skipping = len(pending), True

    def _fitting(self, event: bytes) -> bytes:
        return event if len(event) <= self._limit else _cut_event(event[: self._limit], self._limit)

    async def aclose(self) -> None:
        """The SDK leaves once it has its answer; the end of the body, which follows at once, makes the connection fit for another."""
        try:
            if self._ends_when_cut and not self._was_cut:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LINGER_SECONDS):
                        await _to_the_end(self._chunks)
        finally:
            await self._chunks.aclose()
            await self._arriving.aclose()


_END_OF_EVENT = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LONGEST_END = 4


async def _to_the_end(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


def _cut_event(event: bytes, limit: int) -> bytes:
    data = b"\n".join(line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:"))
    message = cut_message(data, None, limit)
    return b"event: message\ndata: " + message + b"\n\n" if message else b""


# Messages.


def cut_message(start: bytes, request_id: object, limit: int) -> bytes:
    """A whole message from the beginning of one that is too long: of a tool's result what is there, of anything else an error.

    Empty where nobody waits for it.
    """
    try:
        message = from_json(legal(legal(start)[:limit]), allow_partial="trailing-strings")  # made UTF-8, it may have grown
    except ValueError:
        message = None
    message = message if isinstance(message, dict) else {}
    answered = message.get("id", request_id)
    if answered is None:
        return b""
    result = message.get("result")
    if isinstance(result, dict) and ("content" in result or "structuredContent" in result):
        outcome: dict[str, object] = {"result": _cut_result(result, limit)}
    else:
        outcome = {"error": {"code": TOO_LARGE, "message": f"the answer is longer than {limit} bytes"}}
    return json.dumps({"jsonrpc": "2.0", "id": answered, **outcome}, ensure_ascii=False).encode("utf-8", "replace")


def _cut_result(result: dict[str, object], limit: int) -> dict[str, object]:
    content = result.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    if blocks and list(result)[-1] == "content" and not _is_text(blocks[-1]):
        blocks[-1] = _text(f"[a part of type {str(blocks[-1].get('type', 'unknown'))[:40]} was too large and is left out]")
    if not any(_is_text(block) for block in blocks) and "structuredContent" in result:
        blocks.append(_text(json.dumps(result["structuredContent"], ensure_ascii=False)))
    blocks.append(_text(f"[cut: the result is longer than {limit} bytes]"))
    return {"content": blocks, "isError": result.get("isError") is True, "resultType": "complete"}


def _is_text(block: dict[str, object]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _id_of(request: httpx2.Request) -> object:
    try:
        message = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return None
    return message.get("id") if isinstance(message, dict) else None


def legal(message: bytes) -> bytes:
    """The message as UTF-8 without halves of surrogate pairs: for one of them the SDK's parser would refuse all of it."""
    text = message.decode("utf-8", "replace")
    if _MAY_BE_SURROGATE.search(text):
        text = _ESCAPE.sub(lambda found: "\\ufffd" if _LONE.fullmatch(found[0]) else found[0], text)
    return text.encode()


_MAY_BE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.", re.DOTALL)
_LONE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
