"""The gRPC face of the orchestrator: check, convert, call, convert back. Errors are raised; the guard translates them."""

from collections.abc import AsyncGenerator
from typing import cast

import grpc

from orchestrator_svc.conversations import Conversations
from orchestrator_svc.convert import (
    Chunk,
    HeadPart,
    asked_of,
    check_owner,
    check_relayed,
    chunk_reply,
    head_part,
    head_reply,
    item_of,
    queued_of,
    reply_of,
)
from orchestrator_svc.providers.base import Provider
from orchestrator_svc.turn.actions import Batch
from orchestrator_svc.turn.background import BackgroundTurns
from orchestrator_svc.turn.desk import Desk
from svckit.grpc_server import Messages, hand_over_of
from turnkeep.orchestrator.v1 import orchestrator_pb2 as wire
from turnkeep.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceServicer

Context = grpc.aio.ServicerContext[object, object]

# what handlers give in place of messages
MESSAGES: Messages = {Batch: reply_of, HeadPart: head_reply, Chunk: chunk_reply}


class Orchestrator(OrchestratorServiceServicer):
    """Serves `turnkeep.orchestrator.v1.OrchestratorService`."""

    def __init__(self, desk: Desk, background: BackgroundTurns, conversations: Conversations, provider: Provider) -> None:
        self._desk = desk
        self._background = background
        self._conversations = conversations
        self._provider = provider

    def CreateResponse(self, request: wire.CreateResponseRequest, context: Context) -> AsyncGenerator[wire.CreateResponseReply, None]:
        # the batches as they are: MESSAGES says what each is on a wire
        return cast("AsyncGenerator[wire.CreateResponseReply, None]", self._desk.respond(asked_of(request), hand_over_of(context)))

    async def StartResponse(self, request: wire.StartResponseRequest, context: Context) -> wire.StartResponseReply:
        response_id, response = await self._background.start(queued_of(request))
        return wire.StartResponseReply(response_id=response_id, response=response)

    async def CountInputTokens(self, request: wire.CountInputTokensRequest, context: Context) -> wire.CountInputTokensReply:
        return wire.CountInputTokensReply(input_tokens=await self._desk.count(asked_of(request.turn)))

    async def CompactContext(self, request: wire.CompactContextRequest, context: Context) -> wire.CompactContextReply:
        return wire.CompactContextReply(compaction=await self._desk.compact(asked_of(request.turn)))

    async def CreateConversation(self, request: wire.CreateConversationRequest, context: Context) -> wire.CreateConversationReply:
        check_owner(request.owner)
        created = await self._conversations.create(request.owner, request.metadata, request.items)
        return wire.CreateConversationReply(conversation_id=created.id, created_at=created.created_at)

    async def AddConversationItems(self, request: wire.AddConversationItemsRequest, context: Context) -> wire.AddConversationItemsReply:
        check_owner(request.owner)
        added = await self._conversations.add(request.owner, request.conversation_id, request.items)
        return wire.AddConversationItemsReply(items=[item_of(item) for item in added])

    async def Relay(self, request: wire.RelayRequest, context: Context) -> AsyncGenerator[wire.RelayReply, None]:
        check_relayed(request)
        headers = {header.name.lower(): header.value for header in request.headers}
        with await self._provider.relay(request.method, request.path, headers, request.body) as answer:
            yield cast("wire.RelayReply", head_part(answer.status, answer.headers))
            if hand_over := hand_over_of(context):
                answer.hand_to(lambda chunk: hand_over(Chunk(chunk)))
            async for chunk in answer:
                yield cast("wire.RelayReply", Chunk(chunk))
