"""Errors over HTTP: what the edge itself refuses, and the one table from (gRPC code, reason) to an HTTP status.

Every answer of 400 and above has OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. What a service declared is shown with
its own words; what it did not declare (a broken channel, an unknown exception) is shown in general ones.
"""

import secrets
from http import HTTPStatus

import msgspec
from aiohttp import web
from grpc import StatusCode

from svckit.errors import MAX_MESSAGE_CHARS, InternalError, ServiceError
from svckit.logs import get_logger

log = get_logger(__name__)

MAX_ECHO_CHARS = 128
_SHOWN_HEADERS = ("retry-after", "x-ratelimit-", "www-authenticate", "allow", "upgrade")
_RETRY_AFTER_SECONDS = "1"
# What is over by itself before long, although its status does not say so.
_PASSING = frozenset({"conversation_locked", "response_not_finished", "idempotency_in_progress"})


class InvalidRequest(ServiceError):
    """The request is not valid: {problem}"""

    code = StatusCode.INVALID_ARGUMENT
    reason = "invalid_request"


class Unsupported(ServiceError):
    """{what} is not supported by this build."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "unsupported"


class PreviousResponseNotFound(ServiceError):
    """Previous response with id '{response_id}' not found."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "previous_response_not_found"
    param = "previous_response_id"


class InvalidApiKey(ServiceError):
    """The API key is missing or not valid. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    code = StatusCode.UNAUTHENTICATED
    reason = "invalid_api_key"


class ResponseNotFound(ServiceError):
    """Response with id '{response_id}' not found."""

    code = StatusCode.NOT_FOUND
    reason = "response_not_found"


class ConversationNotFound(ServiceError):
    """Conversation with id '{conversation_id}' not found."""

    code = StatusCode.NOT_FOUND
    reason = "conversation_not_found"
    param = "conversation"


class ItemNotFound(ServiceError):
    """Item with id '{item_id}' not found in the conversation."""

    code = StatusCode.NOT_FOUND
    reason = "item_not_found"


class NotBackground(ServiceError):
    """Cannot cancel a synchronous response."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "not_background"


class IdempotencyInProgress(ServiceError):
    """The first request with this Idempotency-Key has no stored response yet; send the request again later."""

    code = StatusCode.ABORTED
    reason = "idempotency_in_progress"


class UpgradeRequired(ServiceError):
    """GET at this path opens a WebSocket; send the headers of an upgrade, or POST."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "upgrade_required"


class OriginNotAllowed(ServiceError):
    """Pages of this origin may not open a WebSocket here."""

    code = StatusCode.PERMISSION_DENIED
    reason = "origin_not_allowed"


class WebSocketLimitReached(ServiceError):
    """The WebSocket connection has reached its age limit of {seconds:g} seconds. Open a new one to go on."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "websocket_connection_limit_reached"


class WebSocketQueueFull(ServiceError):
    """Too many responses are asked for at once on this WebSocket connection: {limit}."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "websocket_queue_full"


class ModelNotFound(ServiceError):
    """The model '{model}' does not exist."""

    code = StatusCode.NOT_FOUND
    reason = "model_not_found"
    param = "model"


class ModelListUnreadable(ServiceError):
    """The engine's list of models cannot be read."""

    code = StatusCode.UNKNOWN
    reason = "engine_error"


class RouteNotFound(ServiceError):
    """There is nothing at {method} {path}."""

    code = StatusCode.NOT_FOUND
    reason = "route_not_found"


class MethodNotAllowed(ServiceError):
    """The method {method} is not allowed at {path}."""

    code = StatusCode.UNIMPLEMENTED
    reason = "method_not_allowed"


class BodyTooLarge(ServiceError):
    """The body of the request is larger than {limit} bytes."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "request_too_large"


class BodyTooSlow(ServiceError):
    """The body of the request did not arrive in time."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = "request_timeout"


class UnknownEncoding(ServiceError):
    """The content encoding of the body is not understood."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "unsupported_content_encoding"


class BadHttp(ServiceError):
    """The request is not valid HTTP."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "bad_http"


class HeadersTooLarge(ServiceError):
    """The request line or a header is too long."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "headers_too_large"


class ServerShutdown(ServiceError):
    """The server is shutting down; send the request again."""

    code = StatusCode.UNAVAILABLE
    reason = "server_shutdown"


class TurnInterrupted(ServiceError):
    """The turn broke off before its end."""

    code = StatusCode.UNKNOWN
    reason = "turn_interrupted"


# The HTTP status by code and reason; a row without a reason is for all other reasons of its code.
STATUSES: dict[tuple[StatusCode, str | None], HTTPStatus] = {
    (StatusCode.INVALID_ARGUMENT, None): HTTPStatus.BAD_REQUEST,
    (StatusCode.INVALID_ARGUMENT, UnknownEncoding.reason): HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    (StatusCode.INVALID_ARGUMENT, HeadersTooLarge.reason): HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    (StatusCode.OUT_OF_RANGE, None): HTTPStatus.BAD_REQUEST,
    (StatusCode.UNAUTHENTICATED, InvalidApiKey.reason): HTTPStatus.UNAUTHORIZED,
    (StatusCode.PERMISSION_DENIED, None): HTTPStatus.FORBIDDEN,
    (StatusCode.NOT_FOUND, None): HTTPStatus.NOT_FOUND,
    (StatusCode.UNIMPLEMENTED, MethodNotAllowed.reason): HTTPStatus.METHOD_NOT_ALLOWED,
    (StatusCode.ABORTED, None): HTTPStatus.CONFLICT,
    (StatusCode.ALREADY_EXISTS, None): HTTPStatus.CONFLICT,
    (StatusCode.FAILED_PRECONDITION, None): HTTPStatus.CONFLICT,
    (StatusCode.FAILED_PRECONDITION, NotBackground.reason): HTTPStatus.BAD_REQUEST,
    (StatusCode.FAILED_PRECONDITION, "events_gone"): HTTPStatus.BAD_REQUEST,
    (StatusCode.FAILED_PRECONDITION, "conversation_full"): HTTPStatus.BAD_REQUEST,
    (StatusCode.FAILED_PRECONDITION, UpgradeRequired.reason): HTTPStatus.UPGRADE_REQUIRED,
    (StatusCode.RESOURCE_EXHAUSTED, None): HTTPStatus.SERVICE_UNAVAILABLE,
    (StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded"): HTTPStatus.TOO_MANY_REQUESTS,
    (StatusCode.RESOURCE_EXHAUSTED, "queue_full"): HTTPStatus.TOO_MANY_REQUESTS,
    (StatusCode.RESOURCE_EXHAUSTED, WebSocketQueueFull.reason): HTTPStatus.TOO_MANY_REQUESTS,
    (StatusCode.RESOURCE_EXHAUSTED, "context_too_large"): HTTPStatus.BAD_REQUEST,
    (StatusCode.RESOURCE_EXHAUSTED, BodyTooLarge.reason): HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    (StatusCode.CANCELLED, None): HTTPStatus.SERVICE_UNAVAILABLE,
    (StatusCode.UNAVAILABLE, None): HTTPStatus.SERVICE_UNAVAILABLE,
    (StatusCode.DEADLINE_EXCEEDED, None): HTTPStatus.GATEWAY_TIMEOUT,
    (StatusCode.DEADLINE_EXCEEDED, BodyTooSlow.reason): HTTPStatus.REQUEST_TIMEOUT,
    (StatusCode.UNKNOWN, ModelListUnreadable.reason): HTTPStatus.BAD_GATEWAY,
    (StatusCode.UNKNOWN, "engine_stream_interrupted"): HTTPStatus.BAD_GATEWAY,
    (StatusCode.UNKNOWN, "compaction_failed"): HTTPStatus.BAD_GATEWAY,
}


def http_status(error: ServiceError) -> HTTPStatus:
    """The HTTP status of an error; 500 for what the table does not know."""
    default = STATUSES.get((error.status, None), HTTPStatus.INTERNAL_SERVER_ERROR)
    return STATUSES.get((error.status, error.reason), default)


def error_object(error: ServiceError) -> dict[str, str | None]:
    """What OpenAI calls the error object."""
    status = http_status(error)
    return {"message": _message(error, status), "type": _type(status), "param": error.param, "code": error.reason}


def error_response(error: ServiceError) -> web.Response:
    """The whole HTTP answer to an error."""
    status = http_status(error)
    return web.Response(
        status=status,
        body=msgspec.json.encode({"error": error_object(error)}),
        content_type="application/json",
        headers=headers_of(error),
    )


def headers_of(error: ServiceError) -> dict[str, str]:
    """What an answer to this error says beside its body."""
    headers = {name: value for name, value in error.headers.items() if name.startswith(_SHOWN_HEADERS)}
    if error.reason in _PASSING or http_status(error) in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers.setdefault("retry-after", _RETRY_AFTER_SECONDS)
    return headers


def masked(exc: BaseException) -> InternalError:
    """Logs an exception that nobody foresaw, and gives what a client may know of it: the id to look for."""
    error_id = f"err_{secrets.token_hex(8)}"
    log.error("unexpected exception", error_id=error_id, exc_info=exc)
    return InternalError(error_id=error_id)


def from_aiohttp(exc: web.HTTPException, request: web.BaseRequest) -> ServiceError:
    """The same refusal in our words, for what aiohttp refuses by itself."""
    path = printable(request.path)
    if isinstance(exc, web.HTTPNotFound):
        return RouteNotFound(method=request.method, path=path)
    if isinstance(exc, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(method=request.method, path=path, headers={"allow": ", ".join(sorted(exc.allowed_methods))})
    if exc.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return BadHttp()
    return masked(exc)


def printable(text: str) -> str:
    """`text` as an error message may repeat it: short, and without what a terminal or a log would obey."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_ECHO_CHARS])


def _message(error: ServiceError, status: HTTPStatus) -> str:
    # The words of an undeclared failure are the channel's, with host names and addresses in them.
    declared = error.reason != error.status.name.lower()
    return error.message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode() if declared else f"{status.phrase}."


def _type(status: HTTPStatus) -> str:
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
