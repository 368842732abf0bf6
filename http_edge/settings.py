"""The settings of the HTTP edge: the sections `[log]`, `[grpc]`, `[edge]` and `[api_keys]` of turnkeep.toml."""

import ipaddress
from typing import Annotated

import msgspec
from aiohttp import web

from svckit.settings import GrpcSettings, LogSettings, SettingsError

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Bytes = Annotated[int, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class EdgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[edge]`: where it listens, whom it calls, what it bears from clients."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    # Several processes may share the port.
    reuse_port: bool = False
    # Listen beyond this machine although no API keys are set.
    insecure: bool = False
    history: str = "127.0.0.1:9001"
    orchestrator: str = "127.0.0.1:9002"
    keys_file: str = ""
    cors_origins: tuple[str, ...] = ()
    body_limit_bytes: Bytes = 32 * 1024 * 1024
    header_limit_bytes: Bytes = 16 * 1024
    # How long the body of a request may take to arrive.
    body_timeout_seconds: Seconds = 120.0
    # How long a connection may wait for the head of its next request.
    idle_timeout_seconds: Seconds = 75.0
    # A stream that is silent for so long gets a comment.
    keep_alive_seconds: Seconds = 15.0
    # A client that takes no byte for so long has left.
    client_timeout_seconds: Seconds = 30.0
    history_timeout_seconds: Seconds = 10.0
    # Starting a background turn, counting tokens, creating a conversation and adding to it.
    start_timeout_seconds: Seconds = 30.0
    compact_timeout_seconds: Seconds = 600.0
    health_timeout_seconds: Seconds = 5.0
    # How long running requests may go on after SIGTERM.
    drain_seconds: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    # How long an Idempotency-Key is remembered.
    idempotency_lifetime_seconds: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 86_400
    # How long a repeated request waits for the response of the first.
    idempotency_wait_seconds: Seconds = 60.0
    websocket_lifetime_seconds: Seconds = 3600.0
    # How many responses may run side by side on one connection, and how many more may wait.
    websocket_lanes: Count = 8
    websocket_queue: Count = 32
    # What a connection keeps of responses that are not stored, and all connections together.
    websocket_retained_responses: Count = 16
    websocket_retained_bytes: Bytes = 32 * 1024 * 1024
    websocket_total_retained_bytes: Bytes = 256 * 1024 * 1024
    access_log: bool = False


class Settings(msgspec.Struct, frozen=True):
    """All sections that the edge reads."""

    log: LogSettings = msgspec.field(default_factory=LogSettings)
    grpc: GrpcSettings = msgspec.field(default_factory=GrpcSettings)
    edge: EdgeSettings = msgspec.field(default_factory=EdgeSettings)
    # `owner = "sk-..."`, `owner = "sha256:<hex>"`, or a list of such.
    api_keys: dict[str, str | tuple[str, ...]] = {}


EDGE_SETTINGS = web.AppKey("edge_settings", EdgeSettings)


def refuse_open_door(settings: EdgeSettings, *, has_keys: bool) -> None:
    """Raises SettingsError where anybody on the network could use the edge without a key."""
    if not (has_keys or settings.insecure or _is_loopback(settings.host)):
        raise SettingsError(
            "settings", "edge.host", f"{settings.host} is reachable from other machines: set [api_keys], or insecure = true"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
