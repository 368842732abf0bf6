"""/v1/conversations: conversations and their items.

What needs items translated goes through the orchestrator, everything else to the history service.
"""

from aiohttp import web
from structlog.contextvars import bind_contextvars

from http_edge import render
from http_edge.clients import CLIENTS
from http_edge.conversation_bodies import read_addition, read_new, read_update
from http_edge.errors import ConversationNotFound, ItemNotFound, printable
from http_edge.incoming import read_body
from http_edge.middlewares import OWNER
from http_edge.queries import check_include, page_of
from http_edge.requests import is_conversation_id
from http_edge.settings import EDGE_SETTINGS
from turnkeep.common.v1.common_pb2 import Item
from turnkeep.history.v1.history_pb2 import (
    Conversation,
    DeleteConversationItemRequest,
    DeleteConversationRequest,
    GetConversationItemRequest,
    GetConversationRequest,
    ListConversationItemsRequest,
    UpdateConversationRequest,
)
from turnkeep.orchestrator.v1.orchestrator_pb2 import AddConversationItemsRequest, CreateConversationRequest

_MAX_ITEM_ID_CHARS = 128


async def create(request: web.Request) -> web.Response:
    """A new conversation, with its first items."""
    clients, new = request.app[CLIENTS], read_new(await read_body(request))
    asked = CreateConversationRequest(owner=request[OWNER], metadata=new.metadata, items=new.items)
    reply = await clients.caller.unary(clients.orchestrator.CreateConversation, asked, deadline=_long_deadline(request))
    made = Conversation(id=reply.conversation_id, created_at=reply.created_at, metadata=new.metadata)
    return render.answer(render.conversation(made))


async def get(request: web.Request) -> web.Response:
    """One conversation."""
    clients = request.app[CLIENTS]
    asked = GetConversationRequest(owner=request[OWNER], conversation_id=_conversation_id(request))
    reply = await clients.caller.unary(clients.history.GetConversation, asked, deadline=_deadline(request), idempotent=True)
    return render.answer(render.conversation(reply.conversation))


async def update(request: web.Request) -> web.Response:
    """Replaces the metadata."""
    clients, conversation_id = request.app[CLIENTS], _conversation_id(request)
    metadata = read_update(await read_body(request))
    asked = UpdateConversationRequest(owner=request[OWNER], conversation_id=conversation_id, metadata=metadata)
    reply = await clients.caller.unary(clients.history.UpdateConversation, asked, deadline=_deadline(request), idempotent=True)
    return render.answer(render.conversation(reply.conversation))


async def delete(request: web.Request) -> web.Response:
    """Deletes a conversation; responses that were made in it stay."""
    clients, conversation_id = request.app[CLIENTS], _conversation_id(request)
    asked = DeleteConversationRequest(owner=request[OWNER], conversation_id=conversation_id)
    await clients.caller.unary(clients.history.DeleteConversation, asked, deadline=_deadline(request))
    return render.answer(render.deleted(conversation_id, "conversation"))


async def add_items(request: web.Request) -> web.Response:
    """Appends items; gives those that were added."""
    check_include(request)
    clients, conversation_id = request.app[CLIENTS], _conversation_id(request)
    items = read_addition(await read_body(request))
    asked = AddConversationItemsRequest(owner=request[OWNER], conversation_id=conversation_id, items=items)
    reply = await clients.caller.unary(clients.orchestrator.AddConversationItems, asked, deadline=_long_deadline(request))
    return render.answer(render.page(reply.items, has_more=False))


async def list_items(request: web.Request) -> web.Response:
    """One page of a conversation's items."""
    clients, page = request.app[CLIENTS], page_of(request)
    asked = ListConversationItemsRequest(
        owner=request[OWNER],
        conversation_id=_conversation_id(request),
        page_size=page.size,
        page_token=page.after,
        order=page.order,
    )
    items: list[Item] = []
    next_page = ""
    async with clients.caller.stream(clients.history.ListConversationItems, asked, deadline=_deadline(request), idempotent=True) as replies:
        async for reply in replies:
            items += reply.items
            next_page = reply.next_page_token
    return render.answer(render.page(items, has_more=bool(next_page)))


async def get_item(request: web.Request) -> web.Response:
    """One item of a conversation."""
    check_include(request)
    clients, conversation_id = request.app[CLIENTS], _conversation_id(request)
    asked = GetConversationItemRequest(owner=request[OWNER], conversation_id=conversation_id, item_id=_item_id(request))
    reply = await clients.caller.unary(clients.history.GetConversationItem, asked, deadline=_deadline(request), idempotent=True)
    return render.answer(render.given_item(reply.item))


async def delete_item(request: web.Request) -> web.Response:
    """Takes one item out; gives the conversation."""
    clients, conversation_id = request.app[CLIENTS], _conversation_id(request)
    asked = DeleteConversationItemRequest(owner=request[OWNER], conversation_id=conversation_id, item_id=_item_id(request))
    reply = await clients.caller.unary(clients.history.DeleteConversationItem, asked, deadline=_deadline(request))
    return render.answer(render.conversation(reply.conversation))


_ONE = "/v1/conversations/{conversation_id}"
_ITEM = f"{_ONE}/items/{{item_id}}"

ROUTES = (
    web.post("/v1/conversations", create),
    web.get(_ONE, get, allow_head=False),
    web.post(_ONE, update),
    web.delete(_ONE, delete),
    web.post(f"{_ONE}/items", add_items),
    web.get(f"{_ONE}/items", list_items, allow_head=False),
    web.get(_ITEM, get_item, allow_head=False),
    web.delete(_ITEM, delete_item),
)


def _conversation_id(request: web.Request) -> str:
    conversation_id = request.match_info["conversation_id"]
    if not is_conversation_id(conversation_id):
        raise ConversationNotFound(conversation_id=printable(conversation_id))
    bind_contextvars(conversation_id=conversation_id)
    return conversation_id


def _item_id(request: web.Request) -> str:
    """An id of a client's own making may have any form."""
    item_id = request.match_info["item_id"]
    if len(item_id) > _MAX_ITEM_ID_CHARS or not item_id.isprintable():
        raise ItemNotFound(item_id=printable(item_id))
    return item_id


def _deadline(request: web.Request) -> float:
    return request.app[EDGE_SETTINGS].history_timeout_seconds


def _long_deadline(request: web.Request) -> float:
    return request.app[EDGE_SETTINGS].start_timeout_seconds
