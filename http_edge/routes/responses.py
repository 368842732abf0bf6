"""/v1/responses: create, get, delete, and list the input of a response."""

from typing import get_args

from aiohttp import web
from structlog.contextvars import bind_contextvars

from http_edge import render, sse
from http_edge.clients import CLIENTS
from http_edge.errors import InvalidRequest, ResponseNotFound, Unsupported, printable
from http_edge.incoming import read_body
from http_edge.middlewares import OWNER
from http_edge.relay import relay
from http_edge.requests import AskedTurn, Includable, is_response_id, is_stateless, read_fields, read_turn
from http_edge.settings import EDGE_SETTINGS
from turnkeep.common.v1.common_pb2 import Item
from turnkeep.history.v1.history_pb2 import ORDER_ASC, ORDER_DESC, DeleteResponseRequest, GetResponseRequest, ListInputItemsRequest, Order

_MAX_CURSOR_CHARS = 128
_ORDERS = {"asc": ORDER_ASC, "desc": ORDER_DESC}


async def create(request: web.Request) -> web.StreamResponse:
    """Runs a turn, or passes on what needs nothing of ours."""
    body = await read_body(request)
    fields = read_fields(body)
    if is_stateless(fields):
        return await relay(request, body)
    return await _run(request, read_turn(fields, request[OWNER]))


async def _run(request: web.Request, asked: AskedTurn) -> web.StreamResponse:
    clients = request.app[CLIENTS]
    async with clients.caller.stream(clients.orchestrator.CreateResponse, asked.message, deadline=None) as replies:
        return await sse.send(request, replies) if asked.stream else _json(await sse.fold(replies))


async def get(request: web.Request) -> web.Response:
    """One stored response."""
    _check_get_query(request)
    clients, response_id = request.app[CLIENTS], _response_id(request)
    asked = GetResponseRequest(owner=request[OWNER], response_id=response_id)
    reply = await clients.caller.unary(clients.history.GetResponse, asked, deadline=_deadline(request), idempotent=True)
    return _json(render.response(response_id, reply))


async def delete(request: web.Request) -> web.Response:
    """Deletes one response."""
    clients, response_id = request.app[CLIENTS], _response_id(request)
    asked = DeleteResponseRequest(owner=request[OWNER], response_id=response_id)
    await clients.caller.unary(clients.history.DeleteResponse, asked, deadline=_deadline(request))
    return _json(render.deleted(response_id))


async def list_input_items(request: web.Request) -> web.Response:
    """One page of what a response was given."""
    clients, asked = request.app[CLIENTS], _asked_page(request)
    items: list[Item] = []
    next_page = ""
    async with clients.caller.stream(clients.history.ListInputItems, asked, deadline=_deadline(request), idempotent=True) as replies:
        async for reply in replies:
            items += reply.items
            next_page = reply.next_page_token
    return _json(render.page(items, has_more=bool(next_page)))


ROUTES = (
    web.post("/v1/responses", create),
    web.get("/v1/responses/{response_id}", get, allow_head=False),
    web.delete("/v1/responses/{response_id}", delete),
    web.get("/v1/responses/{response_id}/input_items", list_input_items, allow_head=False),
)


def _response_id(request: web.Request) -> str:
    response_id = request.match_info["response_id"]
    if not is_response_id(response_id):
        raise ResponseNotFound(response_id=printable(response_id))
    bind_contextvars(response_id=response_id)
    return response_id


def _asked_page(request: web.Request) -> ListInputItemsRequest:
    _check_include(request)
    return ListInputItemsRequest(
        owner=request[OWNER],
        response_id=_response_id(request),
        page_size=_limit(request.query.get("limit", "20")),
        page_token=_cursor(request.query.get("after", "")),
        order=_order(request.query.get("order", "desc")),
    )


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= 100):
        raise InvalidRequest("limit must be an integer from 1 to 100.", param="limit")
    return int(text)


def _cursor(text: str) -> str:
    if len(text) > _MAX_CURSOR_CHARS or not text.isprintable():
        raise InvalidRequest("after must be the id of an item of the list.", param="after")
    return text


def _order(text: str) -> Order.ValueType:
    if text not in _ORDERS:
        raise InvalidRequest("order must be 'asc' or 'desc'.", param="order")
    return _ORDERS[text]


def _check_get_query(request: web.Request) -> None:
    _check_include(request)
    for name, harmless in (("stream", ("false", "")), ("starting_after", ())):
        if request.query.get(name, "false") not in ("false", *harmless):
            raise Unsupported(what=f"The parameter '{name}'", param=name)


def _check_include(request: web.Request) -> None:
    # The official Python SDK writes lists with brackets.
    for value in (*request.query.getall("include[]", ()), *request.query.getall("include", ())):
        if value not in get_args(Includable):
            raise InvalidRequest(f"'{printable(value)}' cannot be included.", param="include")


def _deadline(request: web.Request) -> float:
    return request.app[EDGE_SETTINGS].history_timeout_seconds


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
