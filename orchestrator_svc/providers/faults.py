"""An engine's failures, as this service's errors. Pure.

The class of the engine's status is kept (a 429 stays one, with its Retry-After). Its words are passed on where the request is to blame,
cleaned of secrets; what went wrong inside the engine or with our key to it is nobody's business but the log's.
"""

import re
from collections.abc import Mapping

import msgspec

from orchestrator_svc.errors import (
    ContextLengthExceeded,
    EngineError,
    EngineRateLimited,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    ModelNotFound,
    RequestTooLarge,
)
from orchestrator_svc.items import JsonObject
from orchestrator_svc.turn.events import ModelFailed
from svckit.errors import ServiceError

_MAX_MESSAGE_CHARS = 600
_SECRETS = re.compile(r"(?i)\b(?:bearer\s+\S+|sk-[\w-]{6,}|https?://\S+)|(?<![\w/])/(?:[\w.-]+/)+[\w.-]+|0x[0-9a-f]{6,}")
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_PASSED_HEADERS = ("retry-after", "retry-after-ms")
_CONTEXT_WORDS = ("context length", "context size", "context window", "maximum context", "exceeds the available context")


def refusal_of(status: int, headers: Mapping[str, str], body: bytes, model: str, secrets: tuple[str, ...]) -> ServiceError:
    """The error to answer with when the engine answered with this status instead of a stream."""
    error = _error_in(body)
    message = clean(_message(error), secrets)
    if status == 429:
        return EngineRateLimited(headers=_passed(headers))
    if status == 404:
        return ModelNotFound(model=model)
    if status == 413:
        return RequestTooLarge("The engine takes no request of this size.")
    if status in (400, 422):
        return _refused(error, message, secrets)
    if status == 503:
        return EngineUnavailable(headers=_passed(headers))
    if status in (408, 504):
        return EngineTimeout()
    return EngineError()


def failed(error: ServiceError) -> ModelFailed:
    """The end of a model call that `error` explains."""
    return ModelFailed(error.reason, error.message, error)


def failed_by_engine(error: JsonObject, secrets: tuple[str, ...]) -> ModelFailed:
    """The end of a model call by an error that the engine put into its stream or into a 2xx body."""
    code = _code(error)
    message = clean(_message(error), secrets) or "The engine reported an error."
    if _is_about_context(code, message):
        return failed(ContextLengthExceeded())
    if code in ("rate_limit_exceeded", "rate_limit_error", "too_many_requests", "insufficient_quota"):
        return ModelFailed("insufficient_quota" if code == "insufficient_quota" else "rate_limit_exceeded", message, EngineRateLimited())
    return ModelFailed(code if _CODE.match(code) and clean(code, secrets) == code else "server_error", message, EngineError())


def for_the_log(status: int, body: bytes, secrets: tuple[str, ...]) -> str:
    """What the engine says to whoever runs it, of a wrong key for example. Words about a request may repeat its input and stay out."""
    return "" if status in (400, 422) else clean(_message(_error_in(body)), secrets)


def clean(message: str, secrets: tuple[str, ...]) -> str:
    """An engine's words without the secrets we know, and without addresses, paths and what looks like a key."""
    for secret in filter(None, secrets):
        message = message.replace(secret, "[hidden]")
    return _SECRETS.sub("[hidden]", message)[:_MAX_MESSAGE_CHARS]


def _refused(error: JsonObject, message: str, secrets: tuple[str, ...]) -> ServiceError:
    if _is_about_context(_code(error), message):
        return ContextLengthExceeded()
    param = error.get("param")
    return EngineRefused(message or None, param=clean(param, secrets) if isinstance(param, str) else None)


def _code(error: JsonObject) -> str:
    """The error's code in words, or its type where the code is a number."""
    return next((code for code in (error.get("code"), error.get("type")) if isinstance(code, str) and code), "")


def _is_about_context(code: str, message: str) -> bool:
    return code in ("context_length_exceeded", "exceed_context_size_error") or any(words in message.lower() for words in _CONTEXT_WORDS)


def _error_in(body: bytes) -> JsonObject:
    """The error object of an answer, in whichever shape: nested, flat, or a plain message."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error")
    if isinstance(error, dict):
        return error
    return {"message": error} if isinstance(error, str) else answer


def _message(error: JsonObject) -> str:
    message = error.get("message") or error.get("detail")
    return message if isinstance(message, str) else ""


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name.lower(): value for name, value in headers.items() if name.lower() in _PASSED_HEADERS or name.lower().startswith("x-ratelimit-")
    }
