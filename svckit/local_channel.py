"""A channel to services in the same process: the surface of `grpc.aio.Channel` that generated stubs use, without a socket.

A handler runs in a task of its own with an empty context. Request and replies pass by reference and must not change once they are handed
over; what its service makes a message only for a wire (`Services.add`) passes as it is. What else crosses is what gRPC carries: metadata,
deadline, cancellation and status. Calls that stream requests do not exist here.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextvars import Context
from functools import lru_cache
from types import TracebackType
from typing import Never, Protocol, Self, TypeAlias, TypeVar, cast

import grpc
from grpc import StatusCode
from grpc.aio import AbortError, AioRpcError

from svckit.grpc_server import MAX_MESSAGE_BYTES, Services

WINDOW_MESSAGES = 64
WINDOW_BYTES = 1024 * 1024
CLEANUP_SECONDS = 5.0

Q = TypeVar("Q")
R = TypeVar("R")
Pairs: TypeAlias = grpc.aio.Metadata | Sequence[tuple[str, str | bytes]]
Serve: TypeAlias = "Callable[[object, grpc.aio.ServicerContext[object, object]], Awaitable[object]]"


class HandsOver:
    """A stream of replies whose reader may have them the moment the handler gives them, instead of in its own turn.

    `take` has each reply that would have to wait for its reader, and says whether it takes it; it runs where the handler gives it.
    """

    take: Callable[..., bool] | None = None

    @property
    def is_behind(self) -> bool:
        """Are there replies that its reader has not had yet?"""
        return False

    @property
    def is_at_end(self) -> bool:
        """Has the call ended well, and has its reader had all replies?"""
        return False


class _Sized(Protocol):
    """What a reply can say of itself; the name is protobuf's."""

    def ByteSize(self) -> int: ...


_KEY = re.compile(r"[0-9a-z_.\-]+\Z")


class LocalChannel(grpc.aio.Channel):
    """Calls the handlers of `services`. With `copying`, messages are written and parsed as on a wire, which shows who relies on sharing.

    A stream that is neither read to its end nor cancelled stays open until the channel stops.
    """

    def __init__(self, services: Services, copying: bool = False) -> None:
        self.handlers = services.handlers
        self.copying = copying
        self.stopped = False
        self.calls: dict[asyncio.Task[None], _Call] = {}

    async def stop(self, grace: float | None) -> None:
        """Refuses new calls, waits `grace` seconds for those that run, then ends them as UNAVAILABLE and lets their handlers clean up."""
        self.stopped = True
        await self._handlers_end(grace or 0.0)
        for call in tuple(self.calls.values()):
            call.break_off(StatusCode.UNAVAILABLE, "the service has stopped")
        await self._handlers_end(CLEANUP_SECONDS)

    async def _handlers_end(self, seconds: float) -> None:
        if self.calls:
            await asyncio.wait(tuple(self.calls), timeout=seconds)

    async def close(self, grace: float | None = None) -> None:
        await self.stop(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.SHUTDOWN if self.stopped else grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        raise NotImplementedError("a local channel has no connection to watch")

    async def channel_ready(self) -> None:
        return None

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Q], bytes] | None = None,
        response_deserializer: Callable[[bytes], R] | None = None,
        _registered_method: bool | None = False,
    ) -> "_UnaryUnary[Q, R]":
        return _UnaryUnary(_Route(self, method, request_serializer, response_deserializer))

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Q], bytes] | None = None,
        response_deserializer: Callable[[bytes], R] | None = None,
        _registered_method: bool | None = False,
    ) -> "_UnaryStream[Q, R]":
        return _UnaryStream(_Route(self, method, request_serializer, response_deserializer))

    def stream_unary(self, method: str, *args: object, **kwargs: object) -> Never:
        raise NotImplementedError("a local channel carries no streams of requests")

    def stream_stream(self, method: str, *args: object, **kwargs: object) -> Never:
        raise NotImplementedError("a local channel carries no streams of requests")


class _Route:
    """What all calls of one method have in common."""

    __slots__ = ("channel", "path", "read_reply", "write_request")

    def __init__(
        self, channel: LocalChannel, path: str, write_request: Callable[[Q], bytes] | None, read_reply: Callable[[bytes], R] | None
    ) -> None:
        self.channel = channel
        self.path = path
        self.write_request = cast("Callable[[object], bytes]", write_request or bytes)
        self.read_reply = cast("Callable[[bytes], object]", read_reply or bytes)

    def copied(self, handler: "grpc.RpcMethodHandler[object, object]", reply: object) -> object:
        """The reply as the caller gets it: itself, or what a wire would have made of it."""
        if not self.channel.copying:
            return reply
        return self.read_reply(cast("Callable[[object], bytes]", handler.response_serializer)(reply))


class _UnaryUnary(grpc.aio.UnaryUnaryMultiCallable[Q, R]):
    def __init__(self, route: _Route) -> None:
        self._route = route

    def __call__(
        self,
        request: Q,
        *,
        timeout: float | None = None,
        metadata: Pairs | None = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> "_UnaryCall[Q, R]":
        return _UnaryCall(self._route, request, timeout, metadata)


class _UnaryStream(grpc.aio.UnaryStreamMultiCallable[Q, R]):
    def __init__(self, route: _Route) -> None:
        self._route = route

    def __call__(
        self,
        request: Q,
        *,
        timeout: float | None = None,
        metadata: Pairs | None = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> "_StreamCall[Q, R]":
        return _StreamCall(self._route, request, timeout, metadata)


class _Call(grpc.aio.Call):
    """The client's side of a call, and what stands between it and the handler's task."""

    def __init__(self, route: _Route, request: object, timeout: float | None, metadata: Pairs | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._route = route
        self._status: StatusCode | None = None
        self._details = ""
        self._is_cancelled = False
        self._news: asyncio.Future[None] | None = None
        self._callbacks: list[Callable[[_Call], object]] = []
        self.sent: tuple[tuple[str, str | bytes], ...] = _checked(metadata)
        self.initial: grpc.aio.Metadata = grpc.aio.Metadata()
        self.trailing: grpc.aio.Metadata = grpc.aio.Metadata()
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._start(request)

    def _start(self, request: object) -> None:
        channel = self._route.channel
        handler = channel.handlers.get(self._route.path)
        written = self._route.write_request(request)
        if channel.stopped:
            return self._end(StatusCode.UNAVAILABLE, "the service has stopped")
        if handler is None:
            return self._end(StatusCode.UNIMPLEMENTED, "Method not found!")
        if len(written) > MAX_MESSAGE_BYTES:
            return self._end(StatusCode.RESOURCE_EXHAUSTED, _too_large(len(written)))
        if self._deadline is not None:
            self._timer = self._loop.call_at(self._deadline, self.break_off, StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._task = self._loop.create_task(self._serve(handler, request, written), context=Context())
        channel.calls[self._task] = self
        self._task.add_done_callback(channel.calls.pop)
        return None

    async def _serve(self, handler: "grpc.RpcMethodHandler[object, object]", request: object, written: bytes) -> None:
        context = _Context(self)
        try:
            if self._route.channel.copying and handler.request_deserializer:
                request = handler.request_deserializer(written)
            await self._answer(handler, request, context)
            if self._route.write_request(request) != written:
                return self._end(StatusCode.INTERNAL, "the request was changed while it was served; messages are shared and must not be")
            self._end(context.status or StatusCode.OK, context.status_details)
        except AbortError:
            self._end(context.status or StatusCode.UNKNOWN, context.status_details)
        except asyncio.CancelledError:
            self._end(StatusCode.CANCELLED, "the handler's task was cancelled")
        except Exception as error:
            self._end(StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
        return None

    async def _answer(self, handler: "grpc.RpcMethodHandler[object, object]", request: object, context: "_Context") -> None:
        raise NotImplementedError

    async def put(self, message: object) -> None:
        """Takes a streamed reply from the handler."""
        raise NotImplementedError

    def _end(self, status: StatusCode, details: str) -> None:
        """The call ends, once: later ends change nothing."""
        if self._status is not None:
            return
        self._status, self._details = status, details
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        for callback in self._callbacks:
            self._loop.call_soon(callback, self)

    def break_off(self, status: StatusCode, details: str) -> None:
        """The call ends from outside, and its handler is cancelled."""
        if self._status is None and self._task is not None:
            self._task.cancel()
        self._end(status, details)

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    async def _wait(self) -> None:
        """Until there is news; when the caller is cancelled meanwhile, so is the call."""
        if self._news is None:
            self._news = self._loop.create_future()
        try:
            await self._news
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise_unless_ok(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._status is not StatusCode.OK and self._status is not None:
            raise AioRpcError(self._status, self.initial, self.trailing, self._details)

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._is_cancelled = True
        self.break_off(StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._status is StatusCode.CANCELLED

    def done(self) -> bool:
        return self._status is not None

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - self._loop.time(), 0.0)

    def add_done_callback(self, callback: "Callable[[_Call], object]") -> None:
        if self._status is not None:
            self._loop.call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    async def _ended(self) -> None:
        ended = asyncio.Event()
        self.add_done_callback(lambda call: ended.set())
        await ended.wait()

    async def code(self) -> StatusCode:
        await self._ended()
        return cast("StatusCode", self._status)

    async def details(self) -> str:
        await self._ended()
        return self._details

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return self.initial

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        await self._ended()
        return self.trailing

    async def wait_for_connection(self) -> None:
        return None


class _UnaryCall(_Call, grpc.aio.UnaryUnaryCall[Q, R]):
    _reply: object = None

    async def _answer(self, handler: "grpc.RpcMethodHandler[object, object]", request: object, context: "_Context") -> None:
        reply = await cast("Serve", handler.unary_unary)(request, context)
        if context.status is not None and context.status is not StatusCode.OK:
            return None
        size = cast("_Sized", reply).ByteSize()
        if size > MAX_MESSAGE_BYTES:
            return self._end(StatusCode.RESOURCE_EXHAUSTED, _too_large(size))
        self._reply = self._route.copied(handler, reply)
        return None

    def __await__(self) -> Generator[None, None, R]:
        while self._status is None:
            yield from self._wait().__await__()
        self._raise_unless_ok()
        return cast("R", self._reply)


class _StreamCall(_Call, HandsOver, grpc.aio.UnaryStreamCall[Q, R]):
    """Replies wait here until they are read: at most a window of them, then the handler waits."""

    def __init__(self, route: _Route, request: object, timeout: float | None, metadata: Pairs | None) -> None:
        self._unread: deque[tuple[object, int]] = deque()
        self._unread_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._handler: grpc.RpcMethodHandler[object, object]
        super().__init__(route, request, timeout, metadata)

    async def _answer(self, handler: "grpc.RpcMethodHandler[object, object]", request: object, context: "_Context") -> None:
        self._handler = handler
        await cast("Serve", handler.unary_stream)(request, context)

    async def put(self, message: object) -> None:
        if self._status is not None:
            raise asyncio.CancelledError
        size = cast("_Sized", message).ByteSize()
        if size > MAX_MESSAGE_BYTES:
            self.break_off(StatusCode.RESOURCE_EXHAUSTED, _too_large(size))
            raise asyncio.CancelledError
        self._unread.append((self._route.copied(self._handler, message), size))
        self._unread_bytes += size
        self._wake()
        if len(self._unread) >= WINDOW_MESSAGES or self._unread_bytes >= WINDOW_BYTES:
            self._room = self._loop.create_future()
            await self._room

    @property
    def is_listening(self) -> bool:
        """Does the reader take replies the moment they are given, and has it had all that came before?"""
        return self.take is not None and not self._unread and self._status is None

    def handed_over(self, message: object) -> bool:
        """Gives a streamed reply to its reader at once, if that takes it; else it is to be put."""
        if self.take is None or not self.is_listening or cast("_Sized", message).ByteSize() > MAX_MESSAGE_BYTES:
            return False
        return self.take(self._route.copied(self._handler, message))

    @property
    def is_behind(self) -> bool:
        return bool(self._unread)

    @property
    def is_at_end(self) -> bool:
        return self._status is StatusCode.OK and not self._unread

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        while not self._unread:
            if self._status is not None:
                self._raise_unless_ok()
                raise StopAsyncIteration
            await self._wait()
        message, size = self._unread.popleft()
        self._unread_bytes -= size
        if self._room is not None and len(self._unread) <= WINDOW_MESSAGES // 2 and self._unread_bytes <= WINDOW_BYTES // 2:
            self._make_room()
        return cast("R", message)

    async def read(self) -> object:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            return grpc.aio.EOF

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _end(self, status: StatusCode, details: str) -> None:
        if self._status is None and status in (StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED):
            self._unread.clear()  # as on a socket: these two overtake what was sent, other errors come after it
        super()._end(status, details)


class _HandOver:
    __slots__ = ("_call",)

    def __init__(self, call: "_StreamCall[object, object]") -> None:
        self._call = call

    @property
    def is_open(self) -> bool:
        return self._call.is_listening

    def __call__(self, message: object) -> bool:
        return self._call.handed_over(message)


class _Context(grpc.aio.ServicerContext[object, object]):
    """The handler's side of a call."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self.hand_over = _HandOver(call) if isinstance(call, _StreamCall) else None
        self.status: StatusCode | None = None
        self.status_details = ""

    async def write(self, message: object) -> None:
        await self._call.put(message)

    async def read(self) -> Never:
        raise NotImplementedError("a local channel carries no streams of requests")

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Pairs = ()) -> Never:
        self.status, self.status_details = code, details
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        raise AbortError("Locally aborted.")

    async def abort_with_status(self, status: grpc.Status) -> Never:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def send_initial_metadata(self, initial_metadata: Pairs) -> None:
        self._call.initial = grpc.aio.Metadata(*_checked(initial_metadata))

    def set_trailing_metadata(self, trailing_metadata: Pairs) -> None:
        self._call.trailing = grpc.aio.Metadata(*_checked(trailing_metadata))

    def trailing_metadata(self) -> grpc.aio.Metadata:
        return self._call.trailing

    def invocation_metadata(self) -> grpc.aio.Metadata:
        return cast("grpc.aio.Metadata", self._call.sent)  # pairs, as on a socket, where they are no Metadata either

    def set_code(self, code: StatusCode) -> None:
        self.status = code

    def set_details(self, details: str) -> None:
        self.status_details = details

    def code(self) -> StatusCode:
        return self.status or StatusCode.OK

    def details(self) -> str:
        return self.status_details

    def cancelled(self) -> bool:
        return self._call.cancelled()

    def time_remaining(self) -> float:
        return cast("float", self._call.time_remaining())

    def set_compression(self, compression: grpc.Compression) -> None:
        return None

    def disable_next_message_compression(self) -> None:
        return None

    def peer(self) -> str:
        return "local"

    def peer_identities(self) -> Iterable[bytes] | None:
        return None

    def peer_identity_key(self) -> str | None:
        return None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}


def _checked(metadata: Pairs | None) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata as pairs, if gRPC would carry it: the same ValueError on every channel."""
    pairs = tuple(metadata or ())
    for key, value in pairs:
        is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
        if not _is_key(key) or not (isinstance(value, bytes) if key.endswith("-bin") else is_plain):
            raise ValueError(f"metadata was invalid: {key}")
    return pairs


@lru_cache(maxsize=64)
def _is_key(text: str) -> bool:
    return bool(_KEY.match(text))


def _too_large(size: int) -> str:
    return f"message larger than max ({size} vs. {MAX_MESSAGE_BYTES})"
