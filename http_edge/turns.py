"""A checked create request, answered: run in the foreground, or started in the background and perhaps watched."""

from aiohttp import web

from http_edge import render, sse
from http_edge.clients import CLIENTS
from http_edge.middlewares import OWNER
from http_edge.requests import AskedTurn
from http_edge.settings import EDGE_SETTINGS
from http_edge.viewing import view
from turnkeep.orchestrator.v1.orchestrator_pb2 import StartResponseRequest


async def answer(request: web.Request, asked: AskedTurn) -> web.StreamResponse:
    """Runs or starts the turn, and answers in the form that was asked for."""
    return await (_start(request, asked) if asked.background else _run(request, asked))


async def _run(request: web.Request, asked: AskedTurn) -> web.StreamResponse:
    clients = request.app[CLIENTS]
    async with clients.caller.stream(clients.orchestrator.CreateResponse, asked.message, deadline=None) as replies:
        return await sse.send(request, replies, padded=asked.padded) if asked.stream else render.answer(await sse.fold(replies))


async def _start(request: web.Request, asked: AskedTurn) -> web.StreamResponse:
    clients = request.app[CLIENTS]
    queued = await clients.caller.unary(
        clients.orchestrator.StartResponse,
        StartResponseRequest(owner=request[OWNER], turn=asked.message),
        deadline=request.app[EDGE_SETTINGS].start_timeout_seconds,
    )
    if asked.stream:
        return await view(request, queued.response_id, padded=asked.padded)
    return render.answer(queued.response)
