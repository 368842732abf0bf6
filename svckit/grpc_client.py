"""Calling other services: the channel, and the one place that sends deadlines, the trace and the token, retries, and names errors.

It is the same on a socket and on a `LocalChannel`. What is called, and which calls are idempotent, its user knows.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import grpc

from svckit.errors import RemoteError, error_of
from svckit.grpc_server import CHANNEL_LIMITS, PING_SECONDS, read_file
from svckit.local_channel import HandsOver
from svckit.settings import GrpcSettings
from svckit.telemetry import current_trace

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

_CHANNEL_OPTIONS = (
    *CHANNEL_LIMITS,
    ("grpc.keepalive_time_ms", PING_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # despite its name, how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),  # the Caller retries
    ("grpc.enable_http_proxy", 0),  # http_proxy is for the world outside
)

Q = TypeVar("Q")
R = TypeVar("R")


@asynccontextmanager
async def open_channel(address: str, settings: GrpcSettings) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to `unix:/path` or `host:port`; it connects with the first call, and again by itself. Raises SettingsError."""
    async with _channel(address, settings) as channel:
        yield channel


def _channel(address: str, settings: GrpcSettings) -> grpc.aio.Channel:
    if not (settings.tls_authority or settings.tls_certificate):
        return grpc.aio.insecure_channel(address, _CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, _credentials(settings), _CHANNEL_OPTIONS)


def _credentials(settings: GrpcSettings) -> grpc.ChannelCredentials:
    authority = read_file(settings.tls_authority, "tls_authority") if settings.tls_authority else None
    if not settings.tls_certificate:
        return grpc.ssl_channel_credentials(authority)
    return grpc.ssl_channel_credentials(
        authority, read_file(settings.tls_key, "tls_key"), read_file(settings.tls_certificate, "tls_certificate")
    )


class Caller:
    """Calls the methods of generated stubs. What goes wrong is raised as RemoteError; CancelledError only when our own task is cancelled.

    Deadlines are seconds for the whole call, retries included. Only an `idempotent` call is repeated, while the service is UNAVAILABLE: one
    that waited for its connection instead would end as DEADLINE_EXCEEDED, and nobody could tell a slow service from one that is not there.
    """

    def __init__(self, settings: GrpcSettings) -> None:
        self._credential = (("authorization", f"Bearer {settings.token}"),) if settings.token else ()

    async def unary(self, method: grpc.aio.UnaryUnaryMultiCallable[Q, R], request: Q, deadline: float, idempotent: bool = False) -> R:
        """The reply to one request."""
        attempts = _Attempts(deadline, idempotent)
        metadata = self._metadata()
        while True:
            try:
                return await method(request, timeout=attempts.seconds_left(), metadata=metadata)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                if _is_our_cancellation(error):
                    raise
                await attempts.pause_or_raise(error)

    def stream(
        self, method: grpc.aio.UnaryStreamMultiCallable[Q, R], request: Q, deadline: float | None, idempotent: bool = False
    ) -> "Replies[R]":
        """The replies to one request, as they come, as a context: leaving it early cancels the call. Nothing is repeated after a first
        reply."""
        return Replies(partial(method, request, metadata=self._metadata()), _Attempts(deadline, idempotent))

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return self._credential + current_trace().metadata()


class Replies(AsyncIterator[R]):
    """The replies of one stream, to be read by one task."""

    def __init__(self, begin: Callable[..., grpc.aio.UnaryStreamCall[Q, R]], attempts: "_Attempts") -> None:
        self._begin = begin
        self._attempts = attempts
        self._call: grpc.aio.UnaryStreamCall[Q, R] | None = None
        self._arriving: AsyncIterator[R]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    async def __anext__(self) -> R:
        while True:
            if self._call is None:
                self._call = self._begin(timeout=self._attempts.seconds_left())
                self._arriving = aiter(self._call)
            try:
                reply = await anext(self._arriving)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                self.cancel()
                if _is_our_cancellation(error):
                    raise
                await self._attempts.pause_or_raise(error)
                self._call = None
            else:
                self._attempts.idempotent = False
                return reply

    def hand_to(self, take: Callable[[R], bool]) -> None:
        """After the first reply: each that is there is given to `take` at once, and comes to the reader only if `take` says False.

        Only a service in the same process can do that; from others all replies come to the reader. `take` may not wait, and not raise.
        """
        if isinstance(self._call, HandsOver):
            self._call.take = take

    @property
    def is_behind(self) -> bool:
        """Is a reply there that need not be waited for? Of a service in another process that is not known."""
        return isinstance(self._call, HandsOver) and self._call.is_behind

    @property
    def is_at_end(self) -> bool:
        """Is it known that no reply will follow? Of a service in another process that is known only by waiting for one."""
        return isinstance(self._call, HandsOver) and self._call.is_at_end

    def cancel(self) -> None:
        """No more replies."""
        if self._call is not None:
            self._call.cancel()


class _Attempts:
    """How often one call may be tried, and how long."""

    def __init__(self, deadline: float | None, idempotent: bool) -> None:
        self.idempotent = idempotent
        self._clock = asyncio.get_running_loop().time
        self._until = None if deadline is None else self._clock() + deadline
        self._longest_pause = FIRST_PAUSE_SECONDS

    def seconds_left(self) -> float | None:
        return None if self._until is None else max(self._until - self._clock(), 0.0)

    async def pause_or_raise(self, error: grpc.aio.AioRpcError | asyncio.CancelledError) -> None:
        """Waits before the next attempt; raises what `error` is where there is none."""
        pause = random.uniform(0, self._longest_pause)
        left = self.seconds_left()
        has_time = left is None or left > pause
        # what is raised has no name here: this frame would hold the error that holds the frame
        if not (self.idempotent and has_time and _named(error).status is grpc.StatusCode.UNAVAILABLE):
            raise _named(error) from error
        self._longest_pause = min(2 * self._longest_pause, LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)


def _named(error: grpc.aio.AioRpcError | asyncio.CancelledError) -> RemoteError:
    """The error of a call that ended. One that others cancelled was broken off by a stop, there or here, which is one way of being
    UNAVAILABLE."""
    if isinstance(error, grpc.aio.AioRpcError) and error.code() is not grpc.StatusCode.CANCELLED:
        return error_of(error.code(), error.details(), error.trailing_metadata() or ())
    return error_of(grpc.StatusCode.UNAVAILABLE, "the call was broken off", ())


def _is_our_cancellation(error: grpc.aio.AioRpcError | asyncio.CancelledError) -> bool:
    """Was it not the call but our own task that was cancelled? That goes on as it is."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
