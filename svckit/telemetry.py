"""What lets one request be followed: its trace, carried from service to service, and the page of metrics.

Each metric itself stands in the file that records it. Logs are `logs.py`; nothing here exports spans.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from random import getrandbits

from aiohttp import web
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from svckit.settings import environment

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"

_REQUEST_ID = re.compile(r"[!-~]{1,128}\Z")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


class Trace(Struct, frozen=True):
    """Which request the work belongs to; `traceparent` is the caller's W3C trace context, passed on as it came."""

    request_id: str
    traceparent: str | None = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What travels with a call to another service."""
        first = ((REQUEST_ID_KEY, self.request_id),) if self.request_id else ()
        return (*first, (TRACEPARENT_KEY, self.traceparent)) if self.traceparent else first


_NO_TRACE = Trace("")
_trace: ContextVar[Trace] = ContextVar("trace", default=_NO_TRACE)


def _new_request_id() -> str:
    """Names a request and hides nothing: who has seen some hundred of these in a row can tell the next."""
    return f"req_{getrandbits(128):032x}"


def trace_of(headers: Mapping[str, str]) -> Trace:
    """The trace that a request's headers or metadata carry; what is missing or not well formed is made anew or left out."""
    request_id = headers.get(REQUEST_ID_KEY)
    traceparent = headers.get(TRACEPARENT_KEY)
    return Trace(
        request_id if request_id and _REQUEST_ID.match(request_id) else _new_request_id(),
        traceparent if traceparent and _TRACEPARENT.match(traceparent) else None,
    )


def bind_trace(trace: Trace) -> None:
    """Makes `trace` the current one for this task and the tasks it starts."""
    _trace.set(trace)


def current_trace() -> Trace:
    """The trace that this task works for; an empty one outside of any request."""
    return _trace.get()


def metrics_page() -> bytes:
    """All metrics in Prometheus' text format; with PROMETHEUS_MULTIPROC_DIR set, those of all processes that share the directory."""
    if not environment().get("PROMETHEUS_MULTIPROC_DIR"):
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


@asynccontextmanager
async def open_metrics_listener(address: str) -> AsyncIterator[str]:
    """Serves /metrics and /healthz on `host:port` for a service that runs alone; yields the bound address."""
    app = web.Application()
    app.add_routes([web.get("/metrics", _metrics), web.get("/healthz", _healthz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        host, _, port = address.rpartition(":")
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=metrics_page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")
