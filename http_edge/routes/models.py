"""/v1/models: the engine's list of models, whole and by id."""

import msgspec
from aiohttp import web
from msgspec import Raw

from http_edge.clients import CLIENTS
from http_edge.errors import ModelListUnreadable, ModelNotFound, printable
from http_edge.middlewares import OWNER
from http_edge.relay import head_of, relay
from turnkeep.orchestrator.v1.orchestrator_pb2 import Header, RelayRequest

LIST_PATH = "/v1/models"


class _Model(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[Raw]


async def list_models(request: web.Request) -> web.StreamResponse:
    """The engine's answer as it is."""
    return await relay(request, b"")


async def get_model(request: web.Request) -> web.Response:
    """One entry of the engine's list; whatever else the engine answers is passed on."""
    status, body = await _listed(request)
    if status != 200:
        return web.Response(status=status, body=body, content_type="application/json")
    return web.Response(body=_entry(body, request.match_info["model"]), content_type="application/json")


def _entry(body: bytes, model: str) -> bytes:
    try:
        for entry in msgspec.json.decode(body, type=_List).data:
            if msgspec.json.decode(entry, type=_Model).id == model:
                return bytes(entry)
    except msgspec.DecodeError as exc:
        raise ModelListUnreadable() from exc
    raise ModelNotFound(model=printable(model))


async def _listed(request: web.Request) -> tuple[int, bytes]:
    clients = request.app[CLIENTS]
    asked = RelayRequest(owner=request[OWNER], method="GET", path=LIST_PATH, headers=[Header(name="accept-encoding", value="identity")])
    async with clients.caller.stream(clients.orchestrator.Relay, asked, deadline=None) as replies:
        head = await head_of(replies)
        return head.status, b"".join([reply.chunk async for reply in replies])


ROUTES = (web.get(LIST_PATH, list_models, allow_head=False), web.get(LIST_PATH + "/{model:.+}", get_model, allow_head=False))
