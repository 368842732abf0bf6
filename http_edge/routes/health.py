"""/healthz: this process serves. /readyz: what it needs is there too."""

import asyncio

import msgspec
from aiohttp import web
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from http_edge.clients import CLIENTS
from http_edge.settings import EDGE_SETTINGS
from svckit.errors import ServiceError
from turnkeep.history.v1 import history_pb2
from turnkeep.orchestrator.v1 import orchestrator_pb2

# A service's health under its own name is that of what it needs: history's is the database, the orchestrator's the engine.
_HISTORY = history_pb2.DESCRIPTOR.services_by_name["HistoryService"].full_name
_ORCHESTRATOR = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"].full_name


async def healthz(request: web.Request) -> web.Response:
    """Answers for as long as the process serves."""
    return _json(200, {"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Asks both services; 503 while one of them, or what it needs, is missing."""
    clients = request.app[CLIENTS]
    database, engine = await asyncio.gather(
        _state(request, clients.history_health, _HISTORY), _state(request, clients.orchestrator_health, _ORCHESTRATOR)
    )
    is_ready = database == engine == "ok"
    checks = {"database": database, "engine": engine}
    return _json(200 if is_ready else 503, {"status": "ready" if is_ready else "not_ready", "checks": checks})


async def _state(request: web.Request, health: HealthStub, service: str) -> str:
    """`ok`, `not_serving` (the service answers but cannot work) or `unreachable` (it does not answer)."""
    try:
        reply = await request.app[CLIENTS].caller.unary(
            health.Check, HealthCheckRequest(service=service), deadline=request.app[EDGE_SETTINGS].health_timeout_seconds
        )
    except ServiceError:
        return "unreachable"
    return "ok" if reply.status == HealthCheckResponse.SERVING else "not_serving"


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


ROUTES = (web.get("/healthz", healthz), web.get("/readyz", readyz))
