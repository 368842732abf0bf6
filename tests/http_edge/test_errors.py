"""The table from (gRPC code, reason) to HTTP: every reason that the services declare has the status that clients expect."""

import pytest
from grpc import StatusCode

from http_edge.errors import InvalidRequest, error_object, error_response, http_status
from svckit.errors import RemoteError

ROWS = [
    (StatusCode.INVALID_ARGUMENT, "invalid_request", 400, "invalid_request_error"),
    (StatusCode.INVALID_ARGUMENT, "unsupported", 400, "invalid_request_error"),
    (StatusCode.INVALID_ARGUMENT, "previous_response_not_found", 400, "invalid_request_error"),
    (StatusCode.INVALID_ARGUMENT, "response_not_continuable", 400, "invalid_request_error"),
    (StatusCode.INVALID_ARGUMENT, "engine_invalid_request", 400, "invalid_request_error"),
    (StatusCode.INVALID_ARGUMENT, "context_length_exceeded", 400, "invalid_request_error"),
    (StatusCode.RESOURCE_EXHAUSTED, "context_too_large", 400, "invalid_request_error"),
    (StatusCode.INVALID_ARGUMENT, "idempotency_mismatch", 400, "invalid_request_error"),
    (StatusCode.INVALID_ARGUMENT, "websocket_connection_limit_reached", 400, "invalid_request_error"),
    (StatusCode.FAILED_PRECONDITION, "not_background", 400, "invalid_request_error"),
    (StatusCode.FAILED_PRECONDITION, "events_gone", 400, "invalid_request_error"),
    (StatusCode.FAILED_PRECONDITION, "conversation_full", 400, "invalid_request_error"),
    (StatusCode.UNAUTHENTICATED, "invalid_api_key", 401, "invalid_request_error"),
    (StatusCode.PERMISSION_DENIED, "forbidden", 403, "invalid_request_error"),
    (StatusCode.NOT_FOUND, "response_not_found", 404, "invalid_request_error"),
    (StatusCode.PERMISSION_DENIED, "origin_not_allowed", 403, "invalid_request_error"),
    (StatusCode.NOT_FOUND, "conversation_not_found", 404, "invalid_request_error"),
    (StatusCode.NOT_FOUND, "item_not_found", 404, "invalid_request_error"),
    (StatusCode.NOT_FOUND, "model_not_found", 404, "invalid_request_error"),
    (StatusCode.UNIMPLEMENTED, "method_not_allowed", 405, "invalid_request_error"),
    (StatusCode.DEADLINE_EXCEEDED, "request_timeout", 408, "invalid_request_error"),
    (StatusCode.ABORTED, "response_not_finished", 409, "invalid_request_error"),
    (StatusCode.ABORTED, "conversation_locked", 409, "invalid_request_error"),
    (StatusCode.ABORTED, "idempotency_in_progress", 409, "invalid_request_error"),
    (StatusCode.ALREADY_EXISTS, "conversation_conflict", 409, "invalid_request_error"),
    (StatusCode.ALREADY_EXISTS, "response_conflict", 409, "invalid_request_error"),
    (StatusCode.FAILED_PRECONDITION, "lease_lost", 409, "invalid_request_error"),
    (StatusCode.RESOURCE_EXHAUSTED, "request_too_large", 413, "invalid_request_error"),
    (StatusCode.FAILED_PRECONDITION, "upgrade_required", 426, "invalid_request_error"),
    (StatusCode.RESOURCE_EXHAUSTED, "queue_full", 429, "rate_limit_error"),
    (StatusCode.RESOURCE_EXHAUSTED, "websocket_queue_full", 429, "rate_limit_error"),
    (StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded", 429, "rate_limit_error"),
    (StatusCode.DATA_LOSS, "history_incomplete", 500, "server_error"),
    (StatusCode.INTERNAL, "internal_error", 500, "server_error"),
    (StatusCode.UNAUTHENTICATED, "unauthenticated", 500, "server_error"),
    (StatusCode.UNIMPLEMENTED, "unimplemented", 500, "server_error"),
    (StatusCode.UNKNOWN, "unknown", 500, "server_error"),
    (StatusCode.UNKNOWN, "compaction_failed", 502, "server_error"),
    (StatusCode.UNKNOWN, "engine_error", 502, "server_error"),
    (StatusCode.UNKNOWN, "engine_stream_interrupted", 502, "server_error"),
    (StatusCode.RESOURCE_EXHAUSTED, "overloaded", 503, "server_error"),
    (StatusCode.RESOURCE_EXHAUSTED, "history_overloaded", 503, "server_error"),
    (StatusCode.UNAVAILABLE, "engine_unavailable", 503, "server_error"),
    (StatusCode.UNAVAILABLE, "history_unavailable", 503, "server_error"),
    (StatusCode.UNAVAILABLE, "database_unavailable", 503, "server_error"),
    (StatusCode.DEADLINE_EXCEEDED, "engine_timeout", 504, "server_error"),
    (StatusCode.DEADLINE_EXCEEDED, "deadline_exceeded", 504, "server_error"),
]


@pytest.mark.parametrize(("code", "reason", "status", "type"), ROWS, ids=[f"{row[2]}-{row[1]}" for row in ROWS])
def test_each_reason_has_its_status(code: StatusCode, reason: str, status: int, type: str) -> None:
    error = RemoteError(code, reason, "what happened", param="input")
    assert http_status(error) == status
    told = error_object(error)
    assert (told["type"], told["param"], told["code"]) == (type, "input", reason)


def test_what_was_not_declared_is_told_in_general_words() -> None:
    """B156, B162: the words of the channel name hosts, those of an exception name files."""
    for code in StatusCode:
        error = RemoteError(code, code.name.lower(), "ipv4:10.0.0.7:9001: connection refused /srv/app.py")
        assert "10.0.0.7" not in str(error_object(error))


def test_only_headers_for_the_client_are_shown() -> None:
    headers = {"retry-after": "7", "retry-after-ms": "70", "x-ratelimit-remaining": "0", "x-internal": "1", "set-cookie": "a"}
    shown = error_response(RemoteError(StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded", "x", headers=headers)).headers
    assert {name: shown.get(name) for name in headers} == headers | {"x-internal": None, "set-cookie": None}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (StatusCode.RESOURCE_EXHAUSTED, "overloaded"),
        (StatusCode.RESOURCE_EXHAUSTED, "queue_full"),
        (StatusCode.ABORTED, "conversation_locked"),
        (StatusCode.ABORTED, "response_not_finished"),
        (StatusCode.ABORTED, "idempotency_in_progress"),
    ],
)
def test_whoever_must_come_again_is_told_when(code: StatusCode, reason: str) -> None:
    assert error_response(RemoteError(code, reason, "x")).headers["retry-after"] == "1"
    assert error_response(RemoteError(code, reason, "x", headers={"retry-after": "9"})).headers["retry-after"] == "9"


def test_a_message_is_bounded_and_can_always_be_written() -> None:
    body = error_response(InvalidRequest("\ud800" + "x" * 5000)).body
    assert isinstance(body, bytes)
    assert len(body) < 1500
