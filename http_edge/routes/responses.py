"""/v1/responses: create, get, watch, cancel and delete a response, list its input; count the tokens of an input, and compact it."""

import msgspec
from aiohttp import web
from structlog.contextvars import bind_contextvars

from http_edge import render, turns
from http_edge.clients import CLIENTS
from http_edge.errors import InvalidRequest, NotBackground, ResponseNotFound, printable
from http_edge.idempotency import answer_once, key_of
from http_edge.incoming import read_body
from http_edge.middlewares import OWNER
from http_edge.queries import check_include, flag, page_of, sequence_number
from http_edge.relay import relay
from http_edge.requests import is_response_id, is_stateless, read_compaction, read_fields, read_measured_turn, read_turn
from http_edge.settings import EDGE_SETTINGS
from http_edge.stored import stored_response
from http_edge.viewing import FROM_THE_START, view
from svckit.errors import ServiceError
from turnkeep.common.v1.common_pb2 import Item
from turnkeep.history.v1.history_pb2 import CancelTurnRequest, DeleteResponseRequest, ListInputItemsRequest
from turnkeep.orchestrator.v1.orchestrator_pb2 import CompactContextRequest, CountInputTokensRequest


async def create(request: web.Request) -> web.StreamResponse:
    """Runs a turn, or passes on what needs nothing of ours."""
    body = await read_body(request)
    fields = read_fields(body)
    if is_stateless(fields):
        return await relay(request, body)
    asked = read_turn(fields, request[OWNER])
    key = key_of(request, asked)
    return await (turns.answer(request, asked) if key is None else answer_once(request, asked, key, fields))


async def get(request: web.Request) -> web.StreamResponse:
    """One stored response, or the events of a background response."""
    check_include(request)
    starting_after = sequence_number(request, "starting_after", FROM_THE_START)
    padded = flag(request, "include_obfuscation")
    if flag(request, "stream"):
        return await view(request, _response_id(request), starting_after=starting_after, padded=padded)
    if starting_after != FROM_THE_START:
        raise InvalidRequest("starting_after is only allowed with stream=true.", param="starting_after")
    return await _get_whole(request)


async def _get_whole(request: web.Request) -> web.Response:
    response_id = _response_id(request)
    return render.answer(render.response(response_id, await stored_response(request, response_id)))


async def cancel(request: web.Request) -> web.Response:
    """Cancels a background response; one that has ended is given as it is."""
    clients, response_id = request.app[CLIENTS], _response_id(request)
    asked = CancelTurnRequest(owner=request[OWNER], response_id=response_id)
    try:
        reply = await clients.caller.unary(clients.history.CancelTurn, asked, deadline=_deadline(request), idempotent=True)
    except ServiceError as error:
        if error.reason == NotBackground.reason:
            raise NotBackground() from error
        raise
    return render.answer(render.response(response_id, reply.response))


async def delete(request: web.Request) -> web.Response:
    """Deletes one response."""
    clients, response_id = request.app[CLIENTS], _response_id(request)
    asked = DeleteResponseRequest(owner=request[OWNER], response_id=response_id)
    await clients.caller.unary(clients.history.DeleteResponse, asked, deadline=_deadline(request))
    return render.answer(render.deleted(response_id, "response"))


async def list_input_items(request: web.Request) -> web.Response:
    """One page of what a response was given."""
    clients, page = request.app[CLIENTS], page_of(request)
    asked = ListInputItemsRequest(
        owner=request[OWNER], response_id=_response_id(request), page_size=page.size, page_token=page.after, order=page.order
    )
    items: list[Item] = []
    next_page = ""
    async with clients.caller.stream(clients.history.ListInputItems, asked, deadline=_deadline(request), idempotent=True) as replies:
        async for reply in replies:
            items += reply.items
            next_page = reply.next_page_token
    return render.answer(render.page(items, has_more=bool(next_page)))


async def count_input_tokens(request: web.Request) -> web.Response:
    """How many input tokens a turn would have."""
    clients, owner = request.app[CLIENTS], request[OWNER]
    turn = read_measured_turn(read_fields(await read_body(request)), owner)
    asked = CountInputTokensRequest(owner=owner, turn=turn)
    deadline = request.app[EDGE_SETTINGS].start_timeout_seconds
    reply = await clients.caller.unary(clients.orchestrator.CountInputTokens, asked, deadline=deadline, idempotent=True)
    return render.answer(msgspec.json.encode({"object": "response.input_tokens", "input_tokens": reply.input_tokens}))


async def compact(request: web.Request) -> web.Response:
    """A context, compacted; nothing of it is stored."""
    clients, owner = request.app[CLIENTS], request[OWNER]
    asked = CompactContextRequest(owner=owner, turn=read_compaction(read_fields(await read_body(request)), owner))
    deadline = request.app[EDGE_SETTINGS].compact_timeout_seconds
    reply = await clients.caller.unary(clients.orchestrator.CompactContext, asked, deadline=deadline)
    return render.answer(reply.compaction)


_COUNT, _COMPACT = "input_tokens", "compact"
# What has a meaning of its own at this place is no id.
_ONE = "/v1/responses/{response_id:(?!(?:" + f"{_COUNT}|{_COMPACT}" + ")$)[^{}/]+}"

ROUTES = (
    web.post("/v1/responses", create),
    web.post(f"/v1/responses/{_COUNT}", count_input_tokens),
    web.post(f"/v1/responses/{_COMPACT}", compact),
    web.get(_ONE, get, allow_head=False),
    web.delete(_ONE, delete),
    web.post(f"{_ONE}/cancel", cancel),
    web.get(f"{_ONE}/input_items", list_input_items, allow_head=False),
)


def _response_id(request: web.Request) -> str:
    response_id = request.match_info["response_id"]
    if not is_response_id(response_id):
        raise ResponseNotFound(response_id=printable(response_id))
    bind_contextvars(response_id=response_id)
    return response_id


def _deadline(request: web.Request) -> float:
    return request.app[EDGE_SETTINGS].history_timeout_seconds
