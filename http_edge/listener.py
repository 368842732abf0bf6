"""The port: aiohttp's connections with our limits, opened last and closed first.

What is no valid HTTP gets its error in the same shape as any other request.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong

from http_edge.client_watch import ClientWatch
from http_edge.drain import DRAIN
from http_edge.errors import BadHttp, HeadersTooLarge, UnknownEncoding, error_response, from_aiohttp, masked
from http_edge.middlewares import HEAD_MADE
from http_edge.settings import EdgeSettings
from http_edge.streamed_answer import StreamedAnswer
from svckit.errors import ServiceError, forget_frames
from svckit.settings import SettingsError
from svckit.telemetry import trace_of

_BACKLOG = 1024
_CLEANUP_SECONDS = 1.0
_BAD_REQUEST = 400


@asynccontextmanager
async def open_listener(app: web.Application, settings: EdgeSettings) -> AsyncIterator[str]:
    """Serves `app`; yields the URL. Leaving it stops accepting, lets running requests finish, then cancels them. Raises SettingsError."""
    # A client that leaves cancels its handler: that is what stops the turn.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_CLEANUP_SECONDS)
    await runner.setup()
    try:
        listener = await _listen(runner, settings)
        try:
            yield _url(listener, settings.host)
        finally:
            await _stop(listener, runner, app, settings.drain_seconds)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: EdgeSettings) -> asyncio.Server:
    loop, server = asyncio.get_running_loop(), runner.server
    assert server is not None
    try:
        return await loop.create_server(
            lambda: Connection(server, settings, loop),
            settings.host,
            settings.port,
            reuse_port=settings.reuse_port or None,
            backlog=_BACKLOG,
        )
    except OSError as exc:
        raise SettingsError("settings", "edge.port", f"cannot listen on {settings.host}:{settings.port}: {exc.strerror}") from exc


async def _stop(listener: asyncio.Server, runner: web.AppRunner, app: web.Application, seconds: float) -> None:
    assert runner.server is not None
    listener.close()
    await asyncio.sleep(0)  # requests that have just arrived begin
    runner.server.pre_shutdown()
    await app[DRAIN].finish(seconds)


def _url(listener: asyncio.Server, host: str) -> str:
    port = listener.sockets[0].getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connection(web.RequestHandler):
    """aiohttp's connection with our limits, and with its own error pages replaced."""

    __slots__ = ("_patience", "_reads_on")

    def __init__(self, server: web.Server, settings: EdgeSettings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None is how aiohttp is told to keep no access log
            keepalive_timeout=settings.idle_timeout_seconds,
            max_line_size=settings.header_limit_bytes,
            max_field_size=settings.header_limit_bytes,
        )
        self._patience = settings.client_timeout_seconds
        self._reads_on = False

    def read_on(self) -> None:
        """Lets a WebSocket hear its client until it closes itself: at a stop, aiohttp turns a deaf ear to all connections."""
        self._reads_on = True

    def close(self) -> None:
        """Takes no further requests."""
        if not self._reads_on:
            super().close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answers what is no HTTP request, in the usual shape. aiohttp's own message and log line would repeat the headers."""
        if HEAD_MADE in request or request.writer.output_size > 0:
            if exc is not None:
                forget_frames(exc)  # aiohttp's task holds what this raises, and that what it was raised for
            raise ConnectionResetError("the answer has begun already")
        response = _outside_of_routes(_not_http(status, exc))
        response.force_close()
        return response

    def log_exception(self, *args: object, **kw: object) -> None:
        """Logs what is our fault. A body that cannot be read was answered already; aiohttp meets it once more when it skips the rest."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Sends an answer, for as long as the client takes it."""
        if isinstance(resp, web.HTTPException) and not resp.prepared:
            resp = _outside_of_routes(from_aiohttp(resp, request))
        if isinstance(resp, StreamedAnswer):
            return await super().finish_response(request, resp, start_time)  # it is sent, and was watched
        with ClientWatch(request, self._patience):
            return await super().finish_response(request, resp, start_time)


def _outside_of_routes(error: ServiceError) -> web.Response:
    response = error_response(error)
    response.headers["x-request-id"] = trace_of({}).request_id
    return response


def _not_http(status: int, exc: BaseException | None) -> ServiceError:
    if isinstance(exc, LineTooLong):
        return HeadersTooLarge()
    if isinstance(exc, ContentEncodingError):
        return UnknownEncoding()
    return BadHttp() if status == _BAD_REQUEST or exc is None else masked(exc)
