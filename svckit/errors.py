"""Errors as vocabulary: one class per reason, and their way over gRPC and back.

A room's `errors.py` declares its classes; a servicer raises one; `status_of` says what travels and `error_of` rebuilds on the other
side what arrived. HTTP statuses are not known here.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import grpc

MAX_MESSAGE_CHARS = 1000
MAX_DETAILS_BYTES = 2000  # a byte may travel as three, and 8 kB of headers is what every gRPC peer takes
MAX_VALUE_CHARS = 500
REASON_KEY = "turnkeep-reason"
PARAM_KEY = "turnkeep-param"
HEADER_PREFIX = "turnkeep-header-"

Metadata = tuple[tuple[str, str], ...]


class ServiceError(Exception):
    """Something went wrong."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    reason: str = "unknown"
    param: str | None = None

    def __init__(
        self, message: str | None = None, *, param: str | None = None, headers: Mapping[str, str] | None = None, **values: object
    ) -> None:
        """Takes a message of its own, or fills the class's docstring with `values`; `headers` are for the caller's HTTP answer."""
        self.message = message if message is not None else (self.__doc__ or "").split("\n\n")[0].format(**values)
        self.param = param if param is not None else type(self).param
        self.headers = dict(headers or {})
        super().__init__(self.message)

    @property
    def status(self) -> grpc.StatusCode:
        """The gRPC status that this error travels as."""
        return self.code


class InternalError(ServiceError):
    """The service failed; its log has the details under error id {error_id}."""

    code = grpc.StatusCode.INTERNAL
    reason = "internal_error"


class PermissionMissing(ServiceError):
    """The call does not present the token that this service asks for."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "unauthenticated"


class RemoteError(ServiceError):
    """An error that another service answered with, carried on as it came."""

    def __init__(
        self, status: grpc.StatusCode, reason: str, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, param=param, headers=headers)
        self._status = status
        self.reason = reason

    @property
    def status(self) -> grpc.StatusCode:
        return self._status


def status_of(error: ServiceError) -> tuple[grpc.StatusCode, str, Metadata]:
    """What travels: the status code, the details (bounded) and the trailing metadata."""
    metadata = [(REASON_KEY, error.reason)]
    if error.param is not None:
        metadata.append((PARAM_KEY, _printable(error.param)))
    metadata += [(HEADER_PREFIX + name.lower(), _printable(value)) for name, value in error.headers.items()]
    return error.status, _bounded(error.message), tuple(metadata)


def error_of(code: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, str | bytes]]) -> RemoteError:
    """What arrived, as an error: the reason comes from the metadata, else from the status code's name."""
    metadata = {key: value for key, value in trailing if isinstance(value, str)}
    return RemoteError(
        code,
        metadata.get(REASON_KEY, code.name.lower()),
        details or code.name,
        param=metadata.get(PARAM_KEY),
        headers={key.removeprefix(HEADER_PREFIX): value for key, value in metadata.items() if key.startswith(HEADER_PREFIX)},
    )


def forget_frames(error: BaseException) -> None:
    """Lets go of what an error has come through, once it is told: its causes, and the frames that all of them have passed.

    Frames hold what was worked on, and often their error in turn: then both would live until the collector looks, which is rarely.
    """
    left: list[BaseException | None] = [error]
    while left:
        if (one := left.pop()) is not None:
            left += one.__cause__, one.__context__
            one.__traceback__ = one.__cause__ = one.__context__ = None


def _bounded(message: str) -> str:
    return message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace")[:MAX_DETAILS_BYTES].decode("utf-8", "ignore")


def _printable(value: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in value)[:MAX_VALUE_CHARS]
