"""What happens around every request, whatever its route; the order stands in MIDDLEWARES, the outermost first."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache

from aiohttp import web
from structlog.contextvars import bind_contextvars

from http_edge.auth import API_KEYS
from http_edge.drain import DRAIN
from http_edge.errors import ServerShutdown, error_response, from_aiohttp, masked
from http_edge.metrics import IN_FLIGHT, REQUEST_SECONDS, REQUESTS
from http_edge.settings import EDGE_SETTINGS
from http_edge.tape import TAPE
from svckit.errors import ServiceError, forget_frames
from svckit.logs import get_logger
from svckit.telemetry import Trace, bind_trace, trace_of

log = get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OWNER = web.RequestKey("owner", str)
TRACE = web.RequestKey("trace", Trace)
STARTED_AT = web.RequestKey("started_at", float)

HEAD_MADE = web.RequestKey("head_made", bool)

API_PREFIX = "/v1/"
METHODS = ("GET", "POST", "DELETE")
SWITCHED = 101
STREAMED = 200
CLIENT_LEFT = 499
UNMATCHED = "unmatched"

_requests, _seconds = cache(REQUESTS.labels), cache(REQUEST_SECONDS.labels)


@web.middleware
async def measured(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Counts and times the request; one line in the log if the setting asks for it."""
    clock = asyncio.get_running_loop().time
    request[STARTED_AT] = clock()
    status = 0
    IN_FLIGHT.inc()
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        IN_FLIGHT.dec()
        _count(request, status or _status_left_by(request), clock() - request[STARTED_AT])


@web.middleware
async def traced(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives the request its id, the caller's or a new one, for logs, for both services and for the answer."""
    trace = request[TRACE] = trace_of(request.headers)
    bind_trace(trace)
    bind_contextvars(request_id=trace.request_id)
    return await handler(request)


@web.middleware
async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns what is raised into an error answer. A client that left is no error, and its cancellation is not held up."""
    try:
        return await handler(request)
    except ConnectionError:
        raise
    except Exception as exc:
        try:
            return _answer_to(exc, request)
        finally:
            forget_frames(exc)


@web.middleware
async def drained(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets the request finish when the process stops, up to the limit."""
    drain = request.app[DRAIN]
    drain.joined()
    try:
        return await handler(request)
    except asyncio.CancelledError:
        if not drain.takes_back_cancel():
            raise
        raise ServerShutdown() from None


@web.middleware
async def preflighted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers a browser's question whether it may send a request."""
    headers = request.headers
    if request.method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers:
        return web.Response(status=204, headers=_allowances(request))
    return await handler(request)


@web.middleware
async def authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Everything of the API belongs to the owner of the key, and only the key says who that is."""
    if _route_of(request).startswith(API_PREFIX):
        owner = request[OWNER] = request.app[API_KEYS].owner_of(request.headers)
        bind_contextvars(owner=owner)
    return await handler(request)


MIDDLEWARES = (measured, traced, answered, drained, preflighted, authenticated)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Runs when the head of an answer is made, of an error and of a stream too: request id and CORS."""
    request[HEAD_MADE] = True
    if TRACE in request:
        response.headers["x-request-id"] = request[TRACE].request_id
    origin = allowed_origin(request)
    if origin:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "x-request-id, retry-after"
        response.headers.add("Vary", "Origin")


def _answer_to(exc: Exception, request: web.Request) -> web.StreamResponse:
    error = _error_of(exc, request)
    if HEAD_MADE in request:
        # Another answer has begun: only a connection that breaks off tells the client that it will not end.
        log.warning("answer broke off", reason=error.reason, message=error.message)
        raise ConnectionResetError(error.reason)
    response = error_response(error)
    if response.status >= web.HTTPInternalServerError.status_code:
        log.warning("request failed", status=response.status, reason=error.reason, message=error.message)
    return response


def _error_of(exc: Exception, request: web.Request) -> ServiceError:
    if isinstance(exc, web.HTTPException):
        return from_aiohttp(exc, request)
    return exc if isinstance(exc, ServiceError) else masked(exc)


def _status_left_by(request: web.Request) -> int:
    """A client that had its terminal event was answered, although it hung up before the very end; so was one that had its WebSocket."""
    if HEAD_MADE in request and request.headers.get("Upgrade", "").lower() == "websocket":
        return SWITCHED
    tape = request.get(TAPE)
    return STREAMED if tape is not None and tape.ended else CLIENT_LEFT


def allowed_origin(request: web.Request) -> str | None:
    """The origin whose pages may use this answer, if the request names one and the setting allows it."""
    allowed = request.app[EDGE_SETTINGS].cors_origins
    origin = request.headers.get("Origin") if allowed else None
    if "*" in allowed and origin:
        return "*"
    return origin if origin in allowed else None


def _allowances(request: web.Request) -> dict[str, str]:
    if allowed_origin(request) is None:
        return {}
    asked = request.headers.get("Access-Control-Request-Headers", "")
    return {
        "Access-Control-Allow-Methods": ", ".join(METHODS),
        "Access-Control-Allow-Headers": asked or "authorization, content-type",
        "Access-Control-Max-Age": "600",
    }


def _route_of(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return UNMATCHED if resource is None else resource.canonical


def _count(request: web.Request, status: int, seconds: float) -> None:
    route = _route_of(request)
    method = request.method if request.method in METHODS else "other"
    _requests(route, method, status).inc()
    if status != SWITCHED:
        _seconds(route).observe(seconds)
    if request.app[EDGE_SETTINGS].access_log:
        log.info("request", route=route, method=method, status=status, seconds=round(seconds, 4))
