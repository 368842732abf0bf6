"""Errors keep their code, reason, param and message on the way over gRPC."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svckit.errors import MAX_DETAILS_BYTES, InternalError, RemoteError, ServiceError, error_of, status_of


class NotFound(ServiceError):
    """Nothing has the id '{id}'.

    Only the first paragraph is for users.
    """

    code = grpc.StatusCode.NOT_FOUND
    reason = "not_found"
    param = "id"


def test_the_message_is_the_docstring_with_its_values_filled_in() -> None:
    error = NotFound(id="r1")
    assert error.message == str(error) == "Nothing has the id 'r1'."
    assert (error.code, error.reason, error.param) == (grpc.StatusCode.NOT_FOUND, "not_found", "id")


def test_values_with_braces_stay_as_they_are() -> None:
    assert NotFound(id="{0}{x}").message == "Nothing has the id '{0}{x}'."


def test_a_message_and_a_param_of_its_own_win() -> None:
    error = NotFound("Gone {for good}.", param="other")
    assert (error.message, error.param) == ("Gone {for good}.", "other")


@given(st.text(), st.text(), st.text())
def test_what_travels_fits_into_headers_and_comes_back(message: str, param: str, value: str) -> None:
    code, details, metadata = status_of(NotFound(message, param=param, headers={"Retry-After": value}))
    assert len(details.encode()) <= MAX_DETAILS_BYTES
    assert all(text.isascii() and (text.isprintable() or not text) for pair in metadata for text in pair)
    back = error_of(code, details, metadata)
    assert (back.status, back.reason, set(back.headers)) == (grpc.StatusCode.NOT_FOUND, "not_found", {"retry-after"})


def test_an_error_passes_through_a_service_in_between_unchanged() -> None:
    first = error_of(*status_of(NotFound(id="r1", headers={"retry-after": "2"})))
    second = error_of(*status_of(first))
    for error in (first, second):
        assert isinstance(error, RemoteError)
        assert (error.status, error.reason, error.param) == (grpc.StatusCode.NOT_FOUND, "not_found", "id")
        assert (error.message, error.headers) == ("Nothing has the id 'r1'.", {"retry-after": "2"})


def test_a_status_that_is_not_ours_gets_its_reason_from_the_code() -> None:
    error = error_of(grpc.StatusCode.DEADLINE_EXCEEDED, None, ())
    assert (error.reason, error.param, error.message) == ("deadline_exceeded", None, "DEADLINE_EXCEEDED")


def test_an_internal_error_tells_only_its_id() -> None:
    code, details, _ = status_of(InternalError(error_id="err_1"))
    assert code is grpc.StatusCode.INTERNAL
    assert "err_1" in details


@pytest.mark.parametrize("details", ["\ud83d", "a\ud83db"])
def test_a_lone_surrogate_in_a_message_does_not_stop_the_error(details: str) -> None:
    assert status_of(NotFound(details))[1].encode()
