"""The gRPC face of the orchestrator: check, convert, call, convert back. Errors are raised; the guard translates them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc

from orchestrator_svc.convert import asked_of, check_relayed, reply_of
from orchestrator_svc.providers.base import Provider
from orchestrator_svc.turn.desk import Desk
from turnkeep.orchestrator.v1 import orchestrator_pb2 as wire
from turnkeep.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceServicer

Context = grpc.aio.ServicerContext[object, object]


class Orchestrator(OrchestratorServiceServicer):
    """Serves `turnkeep.orchestrator.v1.OrchestratorService`."""

    def __init__(self, desk: Desk, provider: Provider) -> None:
        self._desk = desk
        self._provider = provider

    async def CreateResponse(self, request: wire.CreateResponseRequest, context: Context) -> AsyncGenerator[wire.CreateResponseReply, None]:
        async with aclosing(self._desk.respond(asked_of(request))) as batches:
            async for events in batches:
                yield reply_of(events)

    async def Relay(self, request: wire.RelayRequest, context: Context) -> AsyncGenerator[wire.RelayReply, None]:
        check_relayed(request)
        headers = {header.name.lower(): header.value for header in request.headers}
        async with self._provider.relay(request.method, request.path, headers, request.body) as (head, chunks):
            passed = [wire.Header(name=name, value=value) for name, value in head.headers]
            yield wire.RelayReply(head=wire.RelayHead(status=head.status, headers=passed))
            async for chunk in chunks:
                yield wire.RelayReply(chunk=chunk)
