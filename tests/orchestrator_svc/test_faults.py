"""An engine's failures: which error a client gets, and that it holds no secret."""

import json

import pytest

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
from orchestrator_svc.providers.faults import clean, failed_by_engine, refusal_of
from svckit.errors import ServiceError, status_of
from tests.fakes.secrets import found, marker


def refused(status: int, body: bytes | JsonObject = b"", headers: dict[str, str] | None = None, *secrets: str) -> ServiceError:
    return refusal_of(status, headers or {}, body if isinstance(body, bytes) else json.dumps(body).encode(), "m", secrets)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, EngineError),
        (302, EngineError),
        (400, EngineRefused),
        (401, EngineError),
        (403, EngineError),
        (404, ModelNotFound),
        (408, EngineTimeout),
        (409, EngineError),
        (413, RequestTooLarge),
        (422, EngineRefused),
        (429, EngineRateLimited),
        (500, EngineError),
        (502, EngineError),
        (503, EngineUnavailable),
        (504, EngineTimeout),
        (529, EngineError),
    ],
)
def test_the_class_of_a_status_is_kept(status: int, kind: type[ServiceError]) -> None:
    assert type(refused(status)) is kind


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"error": {"message": "Bad tool.", "type": "BadRequestError", "param": "tools", "code": 400}}, "Bad tool.", "tools"),
        ({"error": {"message": "Bad tool.", "param": None}}, "Bad tool.", None),
        ({"error": "Bad tool."}, "Bad tool.", None),
        ({"object": "error", "message": "Bad tool.", "code": 400}, "Bad tool.", None),
        ({"detail": "Bad tool."}, "Bad tool.", None),
        ({"detail": [{"loc": ["body"]}]}, "The engine refused the request.", None),
        (b"<html>", "The engine refused the request.", None),
        (b"", "The engine refused the request.", None),
        (b"\xff\xfe", "The engine refused the request.", None),
        (b'{"a":' * 5000, "The engine refused the request.", None),
    ],
)
def test_the_engine_s_reason_is_passed_on_where_the_request_is_to_blame(body: bytes | JsonObject, message: str, param: str | None) -> None:
    error = refused(400, body)

    assert (error.message, error.param) == (message, param)


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "x"},
        {"code": 400, "type": "exceed_context_size_error", "message": "x"},
        {"message": "This model's maximum context length is 4096 tokens."},
        {"message": "the request exceeds the available context size"},
    ],
)
def test_a_context_that_is_too_long_has_its_own_name(error: JsonObject) -> None:
    assert type(refused(400, {"error": error})) is ContextLengthExceeded
    assert failed_by_engine(error, ()).code == "context_length_exceeded"


def test_what_the_engine_says_of_its_limits_is_passed_on_b103() -> None:
    headers = {"Retry-After": "7", "retry-after-ms": "7000", "x-ratelimit-remaining": "0", "server": "secret", "set-cookie": "secret"}

    assert refused(429, b"", headers).headers == {"retry-after": "7", "retry-after-ms": "7000", "x-ratelimit-remaining": "0"}
    assert refused(503, b"", {"Retry-After": "3"}).headers == {"retry-after": "3"}


# Secrets.

KEY = marker("key")
HOST = "engine.planted.internal"
SECRETS = (KEY, f"http://{HOST}:8000/base", f"{HOST}:8000/base", HOST)
PLACES = [
    f"Incorrect API key provided: {KEY}.",
    f"Authorization: Bearer {KEY}",
    f"Cannot connect to host {HOST}:8000 ssl:default",
    f"POST http://{HOST}:8000/base/v1/responses?key={KEY} failed",
    f"{KEY}{KEY}" * 100,
]


@pytest.mark.parametrize("words", PLACES, ids=range(len(PLACES)))
@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
def test_no_refusal_holds_a_secret_b156_b162(status: int, words: str) -> None:
    body = {"error": {"message": words, "param": words, "code": words, "type": words}}

    told = status_of(refused(status, body, {}, *SECRETS))

    assert found([KEY, HOST], {"what travels": repr(told)}) == []


@pytest.mark.parametrize("words", PLACES, ids=range(len(PLACES)))
def test_no_failed_response_holds_a_secret_b156_b162(words: str) -> None:
    failure = failed_by_engine({"message": words, "code": words}, SECRETS)

    assert found([KEY, HOST], {"what is stored": f"{failure.code} {failure.message} {failure.refusal}"}) == []


def test_a_key_of_small_letters_is_no_code() -> None:
    assert failed_by_engine({"code": "planted_key"}, ("planted_key",)).code == "server_error"


@pytest.mark.parametrize(
    ("words", "cleaned"),
    [
        ("The key sk-abcdef123456 is wrong.", "The key [hidden] is wrong."),
        ("Bearer abc.def is wrong.", "[hidden] is wrong."),
        ('File "/srv/app/engine/main.py", line 5', 'File "[hidden]", line 5'),
        ("<Engine object at 0x7f3a5c2d1e90>", "<Engine object at [hidden]>"),
        ("See https://ada:pw@x.test/help for more.", "See [hidden] for more."),
        ("temperature must be in 0..2, got 3", "temperature must be in 0..2, got 3"),
        ("input[3].content/0 is and/or bad", "input[3].content/0 is and/or bad"),
        ("x" * 5000, "x" * 600),
    ],
)
def test_words_are_cleaned_of_keys_paths_and_addresses_b156_b162(words: str, cleaned: str) -> None:
    assert clean(words, ()) == cleaned
