"""GET /v1/responses: the handshake of a WebSocket."""

import logging

from aiohttp import web
from aiohttp.log import ws_logger

from http_edge.errors import BadHttp, OriginNotAllowed, UpgradeRequired
from http_edge.listener import Connection
from http_edge.middlewares import allowed_origin
from http_edge.settings import EDGE_SETTINGS
from http_edge.websocket import serve

_CLOSE_SECONDS = 2.0
# A ping after two beats of silence; aiohttp gives the client half of that for its pong.
_BEATS_PER_PING = 2

# aiohttp's warning repeats the subprotocols that a client offers, and some clients put their key there.
ws_logger.setLevel(logging.ERROR)


async def open_websocket(request: web.Request) -> web.StreamResponse:
    """Opens a WebSocket; whoever asks for something else at this path is told what it is for."""
    settings = request.app[EDGE_SETTINGS]
    # Deltas are small and many: compressing them costs more than it saves, and a context per connection.
    websocket = web.WebSocketResponse(
        timeout=_CLOSE_SECONDS,
        heartbeat=_BEATS_PER_PING * settings.keep_alive_seconds,
        compress=False,
        max_msg_size=settings.body_limit_bytes,
        decode_text=False,
    )
    _check_handshake(request, websocket)
    _check_origin(request)
    await websocket.prepare(request)
    if isinstance(request.protocol, Connection):
        request.protocol.read_on()
    await serve(request, websocket)
    return websocket


def _check_handshake(request: web.Request, websocket: web.WebSocketResponse[bool]) -> None:
    if websocket.can_prepare(request):
        return
    if request.headers.get("upgrade", "").strip().lower() == "websocket":
        raise BadHttp()
    raise UpgradeRequired(headers={"upgrade": "websocket"})


def _check_origin(request: web.Request) -> None:
    # Browsers let any page open a WebSocket to anywhere, and leave it to the server to look where the page is from.
    if "Origin" in request.headers and allowed_origin(request) is None:
        raise OriginNotAllowed()


ROUTES = (web.get("/v1/responses", open_websocket, allow_head=False),)
