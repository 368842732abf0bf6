"""Asking history for a response as it is stored. What is done with it, and what it means that there is none, its users say."""

from aiohttp import web

from http_edge.clients import CLIENTS
from http_edge.middlewares import OWNER
from http_edge.settings import EDGE_SETTINGS
from turnkeep.history.v1.history_pb2 import GetResponseReply, GetResponseRequest


async def stored_response(request: web.Request, response_id: str) -> GetResponseReply:
    """The response of the request's owner. Raises RemoteError, `response_not_found` among its reasons."""
    clients, asked = request.app[CLIENTS], GetResponseRequest(owner=request[OWNER], response_id=response_id)
    deadline = request.app[EDGE_SETTINGS].history_timeout_seconds
    return await clients.caller.unary(clients.history.GetResponse, asked, deadline=deadline, idempotent=True)
