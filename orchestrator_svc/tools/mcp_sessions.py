"""The sessions with MCP servers: opened when first needed, shared by the calls of a server and its credentials, closed when unused.

A session lives in a task of its own, which enters and leaves the SDK's client; each request runs in a task of its own as well. So the
cancel scopes of the SDK stay within those tasks, and neither a failure nor a cancellation there reaches another call. A request is sent
again, on a new session and once, only where it certainly never ran: the session was gone before it was sent, or the server did not know it.
This file is loaded with the SDK, on first use; what a listing or a result means to the gateway stands in `mcp`.
"""

import asyncio
import contextlib
import contextvars
import logging
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from orchestrator_svc.items import JsonObject
from orchestrator_svc.outbound import Guard
from orchestrator_svc.outbound_transport import GuardedTransport
from orchestrator_svc.settings import McpSettings
from orchestrator_svc.tools.base import ToolFailed
from orchestrator_svc.tools.mcp_endpoint import Endpoint
from orchestrator_svc.tools.mcp_http import (
    CONNECTION_LOST,
    EXCHANGE,
    Exchange,
    McpFailed,
    SessionTransport,
    connection_lost,
    timed_out,
)
from orchestrator_svc.tools.mcp_requests import all_tools, call, translated
from orchestrator_svc.tools.mcp_streams import Reads, Writes, nowhere, settle
from svckit.lifecycle import Background
from svckit.logs import get_logger

# How long leaving a client may take: the SDK gives a command two seconds to end by itself, two to be asked to, and two to be made to.
_CLOSE_SECONDS = 8.0
_MAX_CONNECTIONS = 100
# What an older server answers to the newer transport, by the specification: then it is tried with the older one.
_NOT_THIS_TRANSPORT = (400, 404, 405)
# The SDK refuses a larger event of the older transport, and ends the session.
_MAX_SSE_BYTES = 1000 * 1024

T = TypeVar("T")

log = get_logger(__name__)

# What the SDK logs quotes what servers send, credentials included.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


@asynccontextmanager
async def open_sessions(settings: McpSettings, guard: Guard, on_change: Callable[[Endpoint], None]) -> AsyncIterator["McpSessions"]:
    """The sessions of this process. `on_change` is told when a server says that its list of tools has changed."""
    async with Background(grace=_CLOSE_SECONDS) as background:
        sessions = McpSessions(settings, guard, on_change, background)
        try:
            yield sessions
        finally:
            sessions.stop()


@cache
def tls() -> ssl.SSLContext:
    """Whom this process trusts; reading the certificates takes a while."""
    return ssl.create_default_context()


class McpSessions:
    """All sessions, the one that was used last at the end."""

    def __init__(self, settings: McpSettings, guard: Guard, on_change: Callable[[Endpoint], None], background: Background) -> None:
        self.settings = settings
        self.background = background
        self.on_change = on_change
        self._guard = guard
        self._usable: OrderedDict[str, _Session] = OrderedDict()
        self._alive: set[_Session] = set()

    async def tools(self, endpoint: Endpoint) -> tuple[types.Tool, ...]:
        """All tools that the server lists, page after page. Raises ToolFailed."""

        async def work(client: Client) -> tuple[types.Tool, ...]:
            return await all_tools(client, self.settings.max_result_bytes)

        return await self._perform(endpoint, work, self.settings.list_timeout_seconds)

    async def call(self, endpoint: Endpoint, name: str, arguments: JsonObject) -> types.CallToolResult:
        """Calls a tool, at most once. Raises ToolFailed."""

        async def work(client: Client) -> types.CallToolResult:
            return await call(client, name, arguments, self.settings.max_result_bytes)

        return await self._perform(endpoint, work, self.settings.call_timeout_seconds)

    def stop(self) -> None:
        """Closes all sessions; calls that run fail."""
        for session in self._alive:
            session.stop()

    def forget(self, session: "_Session", is_over: bool) -> None:
        """Nothing new is to run over this session."""
        if self._usable.get(session.endpoint.key) is session:
            del self._usable[session.endpoint.key]
        if is_over:
            self._alive.discard(session)

    def transport(self, endpoint: Endpoint) -> httpx2.AsyncBaseTransport:
        """How requests to this server travel: one that a request names stays behind the outbound guard."""
        if endpoint.guarded:
            return GuardedTransport(self._guard, tls(), _MAX_CONNECTIONS)
        limits = httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS, keepalive_expiry=60.0)
        return httpx2.AsyncHTTPTransport(verify=tls(), trust_env=False, limits=limits)

    async def _perform(self, endpoint: Endpoint, work: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            return await self._attempt(endpoint, work, deadline)
        except _NeverRan:
            pass
        try:
            return await self._attempt(endpoint, work, deadline)
        except _NeverRan as lost:
            raise lost.failure from None

    async def _attempt(self, endpoint: Endpoint, work: Callable[[Client], Awaitable[T]], deadline: float) -> T:
        session = self._session(endpoint)
        with session.used():
            return await session.run(work, Exchange(deadline))

    def _session(self, endpoint: Endpoint) -> "_Session":
        if endpoint.guarded:
            self._guard.admit(endpoint.url)
        session = self._usable.get(endpoint.key)
        if session is not None:
            self._usable.move_to_end(endpoint.key)
            return session
        if len(self._usable) >= self.settings.max_sessions:
            self._evict()
        session = _Session(endpoint, self)
        self._usable[endpoint.key] = session
        self._alive.add(session)
        contextvars.Context().run(self.background.start, session.live(), "a session with an MCP server")
        return session

    def _evict(self) -> None:
        for session in self._usable.values():
            if session.is_idle:
                session.retire()
                return
        raise ToolFailed("Too many MCP servers are in use at once.")


class _NeverRan(Exception):
    """A request that was certainly not carried out, and may be sent again."""

    def __init__(self, failure: ToolFailed) -> None:
        super().__init__()
        self.failure = failure


@dataclass(frozen=True, slots=True)
class _Raised:
    """What ended a request in its own task."""

    error: Exception | BaseExceptionGroup[BaseException]


class _Session:
    """One session. `live` is its task; `run` is called from anywhere."""

    def __init__(self, endpoint: Endpoint, sessions: McpSessions) -> None:
        self.endpoint = endpoint
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Client | ToolFailed] = self._loop.create_future()
        self._asked_to_stop: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()  # a new one for each transport that is tried
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._users = 0
        self._is_retired = False
        self._last_used = self._loop.time()

    # For those who use it.

    @property
    def is_idle(self) -> bool:
        """Nobody uses it now."""
        return self._users == 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Within this block the session is not closed for being unused."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._last_used = self._loop.time()
            if self._is_retired and self.is_idle:
                self.stop()

    def retire(self) -> None:
        """Closes the session once all that run over it are done; others get a new one."""
        self._is_retired = True
        self._sessions.forget(self, is_over=False)
        if self.is_idle:
            self.stop()

    def stop(self) -> None:
        """Closes the session."""
        settle(self._asked_to_stop)

    async def run(self, work: Callable[[Client], Awaitable[T]], exchange: Exchange) -> T:
        """The result of one piece of work. Raises ToolFailed, and _NeverRan where it may be tried again.

        A caller that is cancelled, or whose deadline comes, leaves at once; the server is told by the task that it leaves behind.
        """
        client = await self._client(exchange)
        context = contextvars.Context()
        context.run(EXCHANGE.set, exchange)
        task = context.run(self._sessions.background.start, _outcome(work, client), "a request to an MCP server")
        try:
            await self._first(task, exchange)
        finally:
            exchange.abandoned = True
            task.cancel()
        outcome = task.result() if task.done() and not task.cancelled() else None
        if outcome is not None and not isinstance(outcome, _Raised):
            return outcome
        raise self._failure(outcome.error if outcome else None, exchange) from None

    async def _client(self, exchange: Exchange) -> Client:
        await asyncio.wait({self._opened}, timeout=self._remaining(exchange))
        if not self._opened.done():
            raise timed_out(sent=False)
        opened = self._opened.result()
        if isinstance(opened, ToolFailed):
            raise ToolFailed(opened.message, opened.public)
        return opened

    async def _first(self, task: asyncio.Task[T], exchange: Exchange) -> None:
        ends: set[asyncio.Future[T] | asyncio.Future[ToolFailed] | asyncio.Future[None]] = {task, exchange.failed, self._over}
        await asyncio.wait(ends, timeout=self._remaining(exchange), return_when=asyncio.FIRST_COMPLETED)

    def _remaining(self, exchange: Exchange) -> float:
        return max(exchange.deadline - self._loop.time(), 0.0)

    def _failure(self, error: BaseException | None, exchange: Exchange) -> Exception:
        failure = self._reason(error, exchange)
        if exchange.status >= 400 or (isinstance(failure, McpFailed) and failure.code == CONNECTION_LOST):
            self.retire()
        never_ran = exchange.status == 404 or (not exchange.sent and isinstance(failure, McpFailed) and failure.code == CONNECTION_LOST)
        return _NeverRan(failure) if never_ran else failure

    def _reason(self, error: BaseException | None, exchange: Exchange) -> ToolFailed:
        if exchange.failed.done():
            return exchange.failed.result()
        if error is not None:
            return translated(error, exchange, self.endpoint)
        if exchange.deadline <= self._loop.time() and not self._over.done():
            return timed_out(exchange.sent)
        return connection_lost()

    # Its own task.

    async def live(self) -> None:
        """Opens the session, waits until it is to be closed, closes it. Raises nothing but its own cancellation."""
        failures: list[ToolFailed] = []
        try:
            for transport in self.endpoint.transports:
                exchange = Exchange(self._loop.time() + self._sessions.settings.connect_timeout_seconds)
                EXCHANGE.set(exchange)
                failures.append(await self._live_over(transport, exchange))
                if self._opened.done() or exchange.status not in _NOT_THIS_TRANSPORT:
                    break
        finally:
            self._end(failures[0] if failures else connection_lost())

    def _end(self, failure: ToolFailed) -> None:
        """Those who wait for the session, and for calls over it, wait no longer."""
        self._sessions.forget(self, is_over=True)
        if not self._opened.done():
            self._opened.set_result(failure)
        settle(self._over)

    async def _live_over(self, transport: str, exchange: Exchange) -> ToolFailed:
        """Lives over one transport. What it returns says why it did not open; a session that was open has told its users already."""
        task = asyncio.current_task()
        assert task is not None
        self._closed = self._loop.create_future()
        try:
            await self._enter_and_leave(transport, exchange)
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            return self._reason(None, exchange)  # not ours: a cancellation within the SDK that came out of it
        except (Exception, BaseExceptionGroup) as exc:
            log.debug("a session with an MCP server ended", session=self.endpoint.key[:12], error=type(exc).__name__)
            return self._reason(exc, exchange)
        return connection_lost()

    async def _enter_and_leave(self, transport: str, exchange: Exchange) -> None:
        async with asyncio.timeout_at(exchange.deadline) as limit:

            def give_up(_: object) -> None:
                with contextlib.suppress(RuntimeError):  # it may have ended by itself meanwhile
                    limit.reschedule(self._loop.time())

            exchange.failed.add_done_callback(give_up)
            async with self._client_over(transport) as client:
                exchange.failed.remove_done_callback(give_up)
                exchange.settle()
                limit.reschedule(None)
                try:
                    await self._serve(client)
                finally:
                    limit.reschedule(self._loop.time() + _CLOSE_SECONDS)

    def _client_over(self, transport: str) -> Client:
        return Client(
            self._streams(transport),
            # The older HTTP transport came before the probe that `auto` begins with.
            mode="legacy" if transport == "sse" else "auto",
            message_handler=self._on_message,
            client_info=types.Implementation(name="turnkeep", version="1"),
            cache=None,
        )

    async def _serve(self, client: Client) -> None:
        self._opened.set_result(client)
        listener = contextvars.Context().run(self._sessions.background.start, self._listen(client), "changes at an MCP server")
        try:
            await self._until_unwanted()
        finally:
            listener.cancel()
            self._end(connection_lost())

    async def _until_unwanted(self) -> None:
        idle_seconds = self._sessions.settings.idle_seconds
        while True:
            unused_for = 0.0 if self._users else self._loop.time() - self._last_used
            if unused_for >= idle_seconds:
                return
            ends = {self._asked_to_stop, self._closed}
            done, _ = await asyncio.wait(ends, timeout=idle_seconds - unused_for, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return

    async def _listen(self, client: Client) -> None:
        """Newer servers say on a stream of its own that their list has changed; older ones, see `_on_message`."""
        offered = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or offered is None or not offered.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._sessions.on_change(self.endpoint)
        except Exception as exc:  # the stream is a convenience: without it a listing is believed for its lifetime
            log.debug("changes at an MCP server are not heard of", session=self.endpoint.key[:12], error=type(exc).__name__)
        self._sessions.on_change(self.endpoint)

    async def _on_message(self, message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._sessions.on_change(self.endpoint)

    # Transports.

    @asynccontextmanager
    async def _streams(self, transport: str) -> AsyncIterator[TransportStreams]:
        opened = self._command() if transport == "stdio" else self._sse() if transport == "sse" else self._streamable_http()
        async with opened as (reads, writes):
            yield Reads(reads, self._closed), Writes(writes)

    @asynccontextmanager
    async def _command(self) -> AsyncIterator[TransportStreams]:
        server = StdioServerParameters(
            command=self.endpoint.command,
            args=list(self.endpoint.args),
            env=dict(self.endpoint.environment),
            encoding_error_handler="replace",
        )
        with nowhere() as silence:
            async with stdio_client(server, errlog=silence) as streams:
                yield streams

    @asynccontextmanager
    async def _streamable_http(self) -> AsyncIterator[TransportStreams]:
        async with (
            self._http(is_sse=False) as http,
            streamable_http_client(self.endpoint.url, http_client=http, max_sse_event_size=None) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _sse(self) -> AsyncIterator[TransportStreams]:
        def http(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
            return self._http(is_sse=True)

        async with sse_client(self.endpoint.url, httpx_client_factory=http) as streams:
            yield streams

    def _http(self, *, is_sse: bool) -> httpx2.AsyncClient:
        settings = self._sessions.settings
        max_bytes = min(settings.max_result_bytes, _MAX_SSE_BYTES) if is_sse else settings.max_result_bytes
        return httpx2.AsyncClient(
            transport=SessionTransport(self._sessions.transport(self.endpoint), max_bytes, is_sse),
            headers={"accept-encoding": "identity", "user-agent": "turnkeep", **self.endpoint.headers},
            timeout=httpx2.Timeout(settings.connect_timeout_seconds, read=None),
            trust_env=False,
            follow_redirects=False,
        )


async def _outcome(work: Callable[[Client], Awaitable[T]], client: Client) -> T | _Raised:
    try:
        return await work(client)
    except (Exception, BaseExceptionGroup) as exc:
        return _Raised(exc)
