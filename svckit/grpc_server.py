"""Serving gRPC: where generated code registers, the guard around every handler, the listener, health and reflection.

The guard is a plain wrapper of a handler, the same on a socket and on a `LocalChannel`. What handlers do is each room's business.
"""

import asyncio
import hmac
import ipaddress
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from prometheus_client import Histogram
from structlog.contextvars import bind_contextvars

from svckit.errors import InternalError, Metadata, PermissionMissing, ServiceError, forget_frames, status_of
from svckit.logs import get_logger
from svckit.settings import GrpcSettings, SettingsError
from svckit.telemetry import bind_trace, trace_of

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
PING_SECONDS = 60
PROBE_SECONDS = 3.0
PROBE_KEPT_SECONDS = 1.0

_SERVING: int = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

CHANNEL_LIMITS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)
_SERVER_OPTIONS = (
    *CHANNEL_LIMITS,
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a silent share
    ("grpc.keepalive_time_ms", PING_SECONDS * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_SECONDS * 1000 // 2),
    ("grpc.http2.max_ping_strikes", 0),  # pings keep a channel alive, they never end one
)

RPC_SECONDS = Histogram("turnkeep_rpc_seconds", "Seconds that a gRPC handler took, by method and status.", ["method", "code"])

Handler: TypeAlias = "grpc.RpcMethodHandler[object, object]"
Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"
Probe: TypeAlias = Callable[[], Awaitable[bool]]
Messages: TypeAlias = Mapping[type[Any], Callable[[Any], object]]
S = TypeVar("S")
_Unary: TypeAlias = "Callable[[object, Context], Awaitable[object]]"
_Stream: TypeAlias = "Callable[[object, Context], AsyncGenerator[object, None]]"

log = get_logger(__name__)


class Services:
    """The place that a generated `add_...Servicer_to_server(servicer, services)` registers at. Holds guarded handlers by path.

    `log_fields` names the request fields (ids) that every log line of a call carries.
    """

    def __init__(self, settings: GrpcSettings, log_fields: tuple[str, ...] = ()) -> None:
        self.handlers: dict[str, Handler] = {}
        self.closing = asyncio.Event()
        self._token = settings.token
        self._log_fields = log_fields
        self._messages: Messages = {}

    def add(self, register: Callable[[S, grpc.aio.Server], None], servicer: S, messages: Messages | None = None) -> None:
        """Registers a servicer with its generated function, which asks for a server but only registers handlers.

        A handler may reply with a value of one of the types in `messages` in place of a message; it has the message's fields as far as they
        are read, and `ByteSize`. Only where a reply is written to a wire is it made the message that `messages` makes of it.
        """
        self._messages = messages or {}
        register(servicer, cast("grpc.aio.Server", self))

    def names(self) -> set[str]:
        """The full names of the registered services."""
        return {path.split("/")[1] for path in self.handlers}

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Called by generated code."""
        for name, handler in handlers.items():
            path = f"/{service}/{name}"
            self.handlers[path] = _Guard(path, self._token, self._log_fields, self._messages).around(handler)

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Called by generated code, with the same handlers once more."""


@asynccontextmanager
async def open_server(services: Services, listen: str, settings: GrpcSettings, grace: float) -> AsyncIterator[str]:
    """Serves `services` on `unix:/path` or `host:port` (0 picks a port), with health and reflection; yields the bound address.

    Leaving it refuses new calls, waits `grace` seconds for those that run, then cancels them. Raises SettingsError.
    """
    _refuse_open_door(listen, settings)
    if f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/Check" not in services.handlers:
        add_health(services, {})
    _add_reflection(services)
    server = grpc.aio.server(handlers=[_ByPath(services.handlers)], options=_SERVER_OPTIONS)
    address = _bind(server, listen, settings)
    await server.start()
    try:
        yield address
    finally:
        services.closing.set()
        await server.stop(grace)


def add_health(services: Services, probes: Mapping[str, Probe]) -> None:
    """Registers grpc.health.v1: each name of `probes` is answered by its probe, the empty name by all of them."""
    services.add(health_pb2_grpc.add_HealthServicer_to_server, _Health(probes, services.closing))


class ServiceUnknown(ServiceError):
    """The service '{name}' has no health of its own."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "service_unknown"


class MethodMissing(ServiceError):
    """The method {method} is not implemented."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "unimplemented"


class CallerLeft(ServiceError):
    """The caller has left."""

    code = grpc.StatusCode.CANCELLED
    reason = "caller_left"


class _Guard:
    """Stands around one method: admits, binds the trace, translates what is raised, measures."""

    def __init__(self, path: str, token: str, log_fields: tuple[str, ...], messages: Messages) -> None:
        self._path = path
        self._messages = messages
        self._credential = f"Bearer {token}".encode() if token else b""
        self._log_fields = log_fields
        self._timers: dict[grpc.StatusCode, Histogram] = {}

    def around(self, handler: Handler) -> Handler:
        """The same handler behind the guard."""
        codec = (handler.request_deserializer, self._writer(handler.response_serializer))
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._guarded(cast("_Unary", handler.unary_unary)), *codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._guarded(_written(cast("_Stream", handler.unary_stream))), *codec)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._guarded(cast("_Unary", handler.stream_unary)), *codec)
        return grpc.stream_stream_rpc_method_handler(self._guarded(_written(cast("_Stream", handler.stream_stream))), *codec)

    def _writer(self, write: Callable[[object], bytes] | None) -> Callable[[object], bytes] | None:
        """How replies are written to a wire."""
        messages = self._messages
        if write is None or not messages:
            return write
        return lambda reply: write(messages[type(reply)](reply) if type(reply) in messages else reply)

    def _guarded(self, serve: _Unary) -> _Unary:
        async def guarded(request: object, context: Context) -> object:
            started, code = time.perf_counter(), grpc.StatusCode.OK
            try:
                self._admit(request, context)
                return await serve(request, context)
            except BaseException as error:
                if _is_final(error):
                    code = grpc.StatusCode.CANCELLED
                    raise
                code, details, trailing = self._told(error)
                forget_frames(error)
                aborting = context.abort(code, details, trailing)
                del request, context  # gRPC holds what this raises, and with it this frame
                await aborting
            finally:
                self._timer(code).observe(time.perf_counter() - started)

        return guarded

    def _admit(self, request: object, context: Context) -> None:
        metadata = cast("dict[str, str]", dict(context.invocation_metadata() or ()))  # those that are read here are text
        if self._credential and not hmac.compare_digest(metadata.get("authorization", "").encode(), self._credential):
            raise PermissionMissing()
        trace = trace_of(metadata)
        bind_trace(trace)
        fields = {name: value for name in self._log_fields if (value := getattr(request, name, None))}
        bind_contextvars(request_id=trace.request_id, **fields)

    def _told(self, error: BaseException) -> tuple[grpc.StatusCode, str, Metadata]:
        """What the caller is told about `error`: an error without a class is logged under an id, and only the id travels."""
        if isinstance(error, ServiceError):
            return status_of(error)
        if isinstance(error, NotImplementedError):
            return status_of(MethodMissing(method=self._path))
        if isinstance(error, grpc.aio.InternalError):
            # gRPC says so when a message can no longer be written; the cancellation is on its way
            return status_of(CallerLeft())
        error_id = f"err_{secrets.token_hex(8)}"
        log.error("a handler failed", method=self._path, error_id=error_id, exc_info=error)
        return status_of(InternalError(error_id=error_id))

    def _timer(self, code: grpc.StatusCode) -> Histogram:
        if code not in self._timers:
            self._timers[code] = RPC_SECONDS.labels(self._path, code.name)
        return self._timers[code]


def _is_final(error: BaseException) -> bool:
    """Has the call ended already? It has when its task was cancelled; a CancelledError that a handler raised by itself is a mere error."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, grpc.aio.AbortError) or not isinstance(error, Exception)


def _written(stream: _Stream) -> _Unary:
    """A stream handler as one coroutine that writes each message, and closes the generator at once however it ends."""

    async def serve(request: object, context: Context) -> None:
        write = context.write
        hand_over = hand_over_of(context)
        async with aclosing(stream(request, context)) as messages:
            async for message in messages:
                if hand_over is None or not hand_over(message):
                    await write(message)

    return serve


class HandOver(Protocol):
    """Gives a streamed reply to its reader at once, and says whether that took it; what it does not take is to be yielded.

    A handler may call it while the guard waits for its next reply, even from a callback of the event loop.
    """

    @property
    def is_open(self) -> bool:
        """Does the reader take replies so, and has it had all that came before? Else there is no need to make one for it."""

    def __call__(self, message: Any) -> bool: ...


def hand_over_of(context: Context) -> HandOver | None:
    """How replies are handed over; only a local channel can."""
    return getattr(context, "hand_over", None)


class _ByPath(grpc.GenericRpcHandler):
    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        return self._handlers.get(handler_call_details.method)


def _refuse_open_door(listen: str, settings: GrpcSettings) -> None:
    """Callers from other machines must present something: the shared token, or a certificate of the authority."""
    if listen.startswith("unix:") or settings.token or settings.tls_authority:
        return
    host = listen.rpartition(":")[0].strip("[]")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise SettingsError("settings", "listen", f"{listen} is open to other machines: set a token or a tls_authority in [grpc]")


def _bind(server: grpc.aio.Server, listen: str, settings: GrpcSettings) -> str:
    try:
        port = server.add_secure_port(listen, _credentials(settings)) if settings.tls_certificate else server.add_insecure_port(listen)
    except RuntimeError as exc:
        raise SettingsError("settings", "listen", f"cannot listen on {listen}: {exc}") from exc
    return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"


def _credentials(settings: GrpcSettings) -> grpc.ServerCredentials:
    key, certificate = read_file(settings.tls_key, "tls_key"), read_file(settings.tls_certificate, "tls_certificate")
    authority = read_file(settings.tls_authority, "tls_authority") if settings.tls_authority else None
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)


def read_file(path: str, key: str) -> bytes:
    """The content of a file that a setting names. Raises SettingsError."""
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise SettingsError("settings", f"grpc.{key}", f"{path or '(not set)'}: {exc.strerror}") from exc


def _add_reflection(services: Services) -> None:
    names = [*services.names(), reflection.SERVICE_NAME]
    services.add(reflection_pb2_grpc.add_ServerReflectionServicer_to_server, reflection.aio.ReflectionServicer(service_names=names))


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Asks the probes when it is asked itself; an answer is kept for a second."""

    def __init__(self, probes: Mapping[str, Probe], closing: asyncio.Event) -> None:
        self._probes = probes
        self._closing = closing
        self._kept: dict[str, tuple[float, bool]] = {}

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service and request.service not in self._probes:
            raise ServiceUnknown(name=request.service)
        return health_pb2.HealthCheckResponse(status=await self._status(request.service))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last = None
        while not self._closing.is_set():
            status = await self._status(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
            last = status
            await _set_within(self._closing, PROBE_KEPT_SECONDS)
        yield health_pb2.HealthCheckResponse(status=_NOT_SERVING)

    async def _status(self, service: str) -> int:
        if service and service not in self._probes:
            return _SERVICE_UNKNOWN
        names = [service] if service else list(self._probes)
        answers = await asyncio.gather(*(self._is_well(name) for name in names))
        well = all(answers) and not self._closing.is_set()
        return _SERVING if well else _NOT_SERVING

    async def _is_well(self, name: str) -> bool:
        now = time.monotonic()
        kept_until, well = self._kept.get(name, (now, False))
        if kept_until <= now:
            well = await _asked(self._probes[name])
            self._kept[name] = (time.monotonic() + PROBE_KEPT_SECONDS, well)
        return well


async def _asked(probe: Probe) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await probe()
    except Exception as error:
        log.warning("a health probe failed", error=repr(error))
        return False


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
