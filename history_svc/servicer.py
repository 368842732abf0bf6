"""The gRPC face of history: each method checks, converts, calls the store and converts back. Errors are raised; svckit translates them."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeAlias, cast

import grpc

from history_svc.budget import ByteBudget
from history_svc.convert import (
    ContextPart,
    additions_of,
    checked_owner,
    claim_of,
    claim_reply,
    commit_reply,
    context_parts,
    context_reply,
    conversation_message,
    events_of,
    found_replies,
    found_size,
    holder_of,
    item_ids_of,
    item_message,
    key_claim_of,
    lifetime_of,
    new_conversation_of,
    page_parts,
    page_request_of,
    response_reply,
    settled_of,
    taken_reply,
    turn_of,
    watch_replies,
    with_tree_key,
    work_of,
)
from history_svc.errors import InvalidRequest
from history_svc.settings import HistorySettings
from history_svc.stores import Stores
from turnkeep.history.v1 import history_pb2 as pb
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceServicer

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


MESSAGES = {ContextPart: context_reply}


class HistoryServicer(HistoryServiceServicer):
    """`turnkeep.history.v1.HistoryService` over the stores of one database."""

    def __init__(self, stores: Stores, settings: HistorySettings) -> None:
        self._turns = stores.turns
        self._conversations = stores.conversations
        self._queue = stores.queue
        self._events = stores.events
        self._budget = ByteBudget(settings.load_budget_bytes, settings.pool_wait_seconds)
        self._context_limit = settings.context_limit_bytes

    async def LoadContext(self, request: pb.LoadContextRequest, context: Context) -> AsyncIterator[pb.LoadContextReply]:
        """Holds no connection while it sends; what it has loaded counts against the budget until it is sent."""
        owner = checked_owner(request.owner)
        if request.response_id and request.conversation_id:
            raise InvalidRequest(why="a response and a conversation are asked for at once", param="conversation_id")
        async with self._budget.hold(self._context_limit) as held:
            if request.conversation_id:
                loaded = await self._turns.load_conversation(owner, request.conversation_id)
            else:
                loaded = await self._turns.load_context(owner, request.response_id)
            held.shrink(loaded.bytes)
            for part in context_parts(loaded):
                yield cast("pb.LoadContextReply", part)  # MESSAGES says what it is on a wire

    async def CommitTurn(self, request: pb.CommitTurnRequest, context: Context) -> pb.CommitTurnReply:
        return commit_reply(await self._turns.commit_turn(turn_of(request)))

    async def GetResponse(self, request: pb.GetResponseRequest, context: Context) -> pb.GetResponseReply:
        return response_reply(await self._turns.response(checked_owner(request.owner), request.response_id))

    async def DeleteResponse(self, request: pb.DeleteResponseRequest, context: Context) -> pb.DeleteResponseReply:
        await self._turns.delete_response(checked_owner(request.owner), request.response_id)
        return pb.DeleteResponseReply()

    async def ListInputItems(self, request: pb.ListInputItemsRequest, context: Context) -> AsyncIterator[pb.ListInputItemsReply]:
        page = await self._turns.input_page(checked_owner(request.owner), request.response_id, page_request_of(request))
        for items, token in page_parts(page):
            yield pb.ListInputItemsReply(items=items, next_page_token=token)

    async def FindItems(self, request: pb.FindItemsRequest, context: Context) -> AsyncIterator[pb.FindItemsReply]:
        owner, item_ids = checked_owner(request.owner), item_ids_of(request)
        async with self._budget.hold(self._context_limit) as held:
            found = await self._turns.find_items(owner, item_ids)
            held.shrink(sum(map(found_size, found)))
            for reply in found_replies(found):
                yield reply

    async def ClaimCall(self, request: pb.ClaimCallRequest, context: Context) -> pb.ClaimCallReply:
        return claim_reply(await self._turns.claim_call(*claim_of(request)))

    async def SettleClaim(self, request: pb.SettleClaimRequest, context: Context) -> pb.SettleClaimReply:
        await self._turns.settle_claim(*settled_of(request))
        return pb.SettleClaimReply()

    async def CreateConversation(self, request: pb.CreateConversationRequest, context: Context) -> pb.CreateConversationReply:
        made = await self._conversations.create(new_conversation_of(request))
        return pb.CreateConversationReply(conversation=conversation_message(made))

    async def GetConversation(self, request: pb.GetConversationRequest, context: Context) -> pb.GetConversationReply:
        found = await self._conversations.get(checked_owner(request.owner), request.conversation_id)
        return pb.GetConversationReply(conversation=conversation_message(found))

    async def UpdateConversation(self, request: pb.UpdateConversationRequest, context: Context) -> pb.UpdateConversationReply:
        updated = await self._conversations.update(checked_owner(request.owner), request.conversation_id, request.metadata)
        return pb.UpdateConversationReply(conversation=conversation_message(updated))

    async def DeleteConversation(self, request: pb.DeleteConversationRequest, context: Context) -> pb.DeleteConversationReply:
        await self._conversations.delete(checked_owner(request.owner), request.conversation_id)
        return pb.DeleteConversationReply()

    async def AddConversationItems(self, request: pb.AddConversationItemsRequest, context: Context) -> pb.AddConversationItemsReply:
        await self._conversations.add_items(checked_owner(request.owner), request.conversation_id, additions_of(request))
        return pb.AddConversationItemsReply()

    async def ListConversationItems(
        self, request: pb.ListConversationItemsRequest, context: Context
    ) -> AsyncIterator[pb.ListConversationItemsReply]:
        page = await self._conversations.page(checked_owner(request.owner), request.conversation_id, page_request_of(request))
        for items, token in page_parts(page):
            yield pb.ListConversationItemsReply(items=items, next_page_token=token)

    async def GetConversationItem(self, request: pb.GetConversationItemRequest, context: Context) -> pb.GetConversationItemReply:
        item = await self._conversations.item(checked_owner(request.owner), request.conversation_id, request.item_id)
        return pb.GetConversationItemReply(item=item_message(item))

    async def DeleteConversationItem(self, request: pb.DeleteConversationItemRequest, context: Context) -> pb.DeleteConversationItemReply:
        left = await self._conversations.delete_item(checked_owner(request.owner), request.conversation_id, request.item_id)
        return pb.DeleteConversationItemReply(conversation=conversation_message(left))

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, context: Context) -> pb.AcquireLeaseReply:
        owner, holder, seconds = checked_owner(request.owner), holder_of(request), lifetime_of(request)
        token = await self._conversations.acquire_lease(owner, request.conversation_id, holder, seconds)
        return pb.AcquireLeaseReply(fencing_token=token)

    async def RenewLease(self, request: pb.RenewLeaseRequest, context: Context) -> pb.RenewLeaseReply:
        owner, seconds = checked_owner(request.owner), lifetime_of(request)
        await self._conversations.renew_lease(owner, request.conversation_id, request.fencing_token, seconds)
        return pb.RenewLeaseReply()

    async def ReleaseLease(self, request: pb.ReleaseLeaseRequest, context: Context) -> pb.ReleaseLeaseReply:
        owner, conversation_id = checked_owner(request.owner), with_tree_key(request.conversation_id, "conversation_id")
        await self._conversations.release_lease(owner, conversation_id, request.fencing_token)
        return pb.ReleaseLeaseReply()

    async def EnqueueTurn(self, request: pb.EnqueueTurnRequest, context: Context) -> pb.EnqueueTurnReply:
        await self._queue.enqueue(work_of(request))
        return pb.EnqueueTurnReply()

    async def TakeTurn(self, request: pb.TakeTurnRequest, context: Context) -> pb.TakeTurnReply:
        return taken_reply(await self._queue.take(holder_of(request), lifetime_of(request)))

    async def KeepTurn(self, request: pb.KeepTurnRequest, context: Context) -> pb.KeepTurnReply:
        owner, seconds = checked_owner(request.owner), lifetime_of(request)
        asked = await self._queue.keep(owner, request.response_id, request.fencing_token, seconds)
        return pb.KeepTurnReply(cancel_requested=asked)

    async def ReturnTurn(self, request: pb.ReturnTurnRequest, context: Context) -> pb.ReturnTurnReply:
        owner, response_id = checked_owner(request.owner), with_tree_key(request.response_id, "response_id")
        await self._queue.give_back(owner, response_id, request.fencing_token)
        return pb.ReturnTurnReply()

    async def CancelTurn(self, request: pb.CancelTurnRequest, context: Context) -> pb.CancelTurnReply:
        response = await self._queue.cancel(checked_owner(request.owner), request.response_id)
        return pb.CancelTurnReply(response=response_reply(response))

    async def AppendEvents(self, request: pb.AppendEventsRequest, context: Context) -> pb.AppendEventsReply:
        owner, events = checked_owner(request.owner), events_of(request)
        await self._events.append(owner, request.response_id, request.fencing_token, events)
        return pb.AppendEventsReply()

    async def WatchEvents(self, request: pb.WatchEventsRequest, context: Context) -> AsyncIterator[pb.WatchEventsReply]:
        """Holds no connection while it sends or waits, and no more than one part of the log in memory."""
        owner, only_logged = checked_owner(request.owner), request.only_logged
        watching = self._events.watch(owner, request.response_id, request.starting_after, only_logged=only_logged)
        async with aclosing(watching) as parts:
            async for part in parts:
                for reply in watch_replies(part):
                    yield reply

    async def ClaimIdempotencyKey(self, request: pb.ClaimIdempotencyKeyRequest, context: Context) -> pb.ClaimIdempotencyKeyReply:
        response_id = await self._turns.claim_key(key_claim_of(request))
        return pb.ClaimIdempotencyKeyReply(granted=response_id == request.response_id, response_id=response_id)
