"""The gRPC face of history: each method checks, converts, calls the store and converts back. Errors are raised; svckit translates them."""

from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc

from history_svc.budget import ByteBudget
from history_svc.convert import (
    checked_owner,
    claim_of,
    claim_reply,
    commit_reply,
    context_replies,
    found_replies,
    found_size,
    item_ids_of,
    page_replies,
    page_request_of,
    response_reply,
    settled_of,
    turn_of,
)
from history_svc.settings import HistorySettings
from history_svc.store import Store
from turnkeep.history.v1 import history_pb2 as pb
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceServicer

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class HistoryServicer(HistoryServiceServicer):
    """`turnkeep.history.v1.HistoryService` over one store."""

    def __init__(self, store: Store, settings: HistorySettings) -> None:
        self._store = store
        self._budget = ByteBudget(settings.load_budget_bytes, settings.pool_wait_seconds)
        self._context_limit = settings.context_limit_bytes

    async def LoadContext(self, request: pb.LoadContextRequest, context: Context) -> AsyncIterator[pb.LoadContextReply]:
        """Holds no connection while it sends; what it has loaded counts against the budget until it is sent."""
        owner = checked_owner(request.owner)
        async with self._budget.hold(self._context_limit) as held:
            loaded = await self._store.load_context(owner, request.response_id)
            held.shrink(loaded.bytes)
            for reply in context_replies(loaded):
                yield reply

    async def CommitTurn(self, request: pb.CommitTurnRequest, context: Context) -> pb.CommitTurnReply:
        return commit_reply(await self._store.commit_turn(turn_of(request)))

    async def GetResponse(self, request: pb.GetResponseRequest, context: Context) -> pb.GetResponseReply:
        return response_reply(await self._store.response(checked_owner(request.owner), request.response_id))

    async def DeleteResponse(self, request: pb.DeleteResponseRequest, context: Context) -> pb.DeleteResponseReply:
        await self._store.delete_response(checked_owner(request.owner), request.response_id)
        return pb.DeleteResponseReply()

    async def ListInputItems(self, request: pb.ListInputItemsRequest, context: Context) -> AsyncIterator[pb.ListInputItemsReply]:
        page = await self._store.input_page(checked_owner(request.owner), request.response_id, page_request_of(request))
        for reply in page_replies(page):
            yield reply

    async def FindItems(self, request: pb.FindItemsRequest, context: Context) -> AsyncIterator[pb.FindItemsReply]:
        owner, item_ids = checked_owner(request.owner), item_ids_of(request)
        async with self._budget.hold(self._context_limit) as held:
            found = await self._store.find_items(owner, item_ids)
            held.shrink(sum(map(found_size, found)))
            for reply in found_replies(found):
                yield reply

    async def ClaimCall(self, request: pb.ClaimCallRequest, context: Context) -> pb.ClaimCallReply:
        return claim_reply(await self._store.claim_call(*claim_of(request)))

    async def SettleClaim(self, request: pb.SettleClaimRequest, context: Context) -> pb.SettleClaimReply:
        await self._store.settle_claim(*settled_of(request))
        return pb.SettleClaimReply()
