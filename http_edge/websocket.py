"""One WebSocket from its handshake to its end: frames in, turns in lanes, events out. The turns themselves are the same as over HTTP.

It ends when the client leaves (its turns are cancelled), when it is too old or the process stops (its turns finish, what waits is refused),
and when the time to finish is over (its turns end in `response.failed`).
"""

import asyncio
from contextlib import suppress

from aiohttp import WSCloseCode, WSMsgType, web

from http_edge.client_watch import ClientWatch
from http_edge.drain import DRAIN
from http_edge.errors import ServerShutdown, WebSocketLimitReached, masked
from http_edge.frames import error_frame, fields_of, lane_of, read_create
from http_edge.lanes import Lanes
from http_edge.metrics import WEBSOCKETS
from http_edge.middlewares import OWNER
from http_edge.retained import RETAINED, Shelf
from http_edge.settings import EDGE_SETTINGS
from svckit.errors import ServiceError, forget_frames


async def serve(request: web.Request, websocket: web.WebSocketResponse[bool]) -> None:
    """Serves a connection whose handshake is done, until it is closed."""
    wire = _Wire(websocket)
    patience = request.app[EDGE_SETTINGS].client_timeout_seconds
    with (
        WEBSOCKETS.track_inprogress(),
        ClientWatch(request, patience, lambda: wire.written),
        request.app[RETAINED].shelf() as shelf,
    ):
        try:
            await _play(request, wire, shelf)
        except asyncio.CancelledError as cancelled:
            forget_frames(cancelled)  # a TaskGroup's frame holds what it raises, and with that all that was played with
            raise


async def _play(request: web.Request, wire: "_Wire", shelf: Shelf) -> None:
    async with asyncio.TaskGroup() as tasks:
        lanes = Lanes(request, wire.send, shelf, tasks)
        ending = tasks.create_task(_end_in_time(request, wire, lanes))
        try:
            with suppress(ConnectionError):  # the client has left, which is no error
                await _read(request, wire, lanes)
        except asyncio.CancelledError:
            if not request.app[DRAIN].takes_back_cancel():
                raise
            with suppress(ConnectionError):
                await lanes.interrupt(ServerShutdown())
        if not lanes.closed:
            ending.cancel()
        lanes.cancel()


class _Wire:
    """The sending side of a connection, and how much was written to it."""

    def __init__(self, websocket: web.WebSocketResponse[bool]) -> None:
        self.websocket = websocket
        self.written = 0

    async def send(self, frame: bytes) -> None:
        """Sends one text frame; waits while the client takes too little. Raises ConnectionError."""
        self.written += len(frame)
        await self.websocket.send_frame(frame, WSMsgType.TEXT)


async def _read(request: web.Request, wire: _Wire, lanes: Lanes) -> None:
    """Hands frames to their lanes until the client, or we, close the connection."""
    async for message in wire.websocket:
        if message.type is WSMsgType.ERROR:
            return
        lane = None
        try:
            fields = fields_of(message.data if message.type is WSMsgType.TEXT else None)
            lane = lane_of(fields)
            lanes.ask(read_create(fields, request[OWNER], len(message.data)))
            continue
        except ServiceError as exc:
            error = exc
        except Exception as exc:
            error = masked(exc)
        await wire.send(error_frame(error, lane))
        forget_frames(error)


async def _end_in_time(request: web.Request, wire: _Wire, lanes: Lanes) -> None:
    """Closes the connection at the end of its time, or of the process's."""
    seconds = request.app[EDGE_SETTINGS].websocket_lifetime_seconds
    try:
        async with asyncio.timeout(seconds):
            await request.app[DRAIN].begun.wait()
        await _close(wire, lanes, ServerShutdown(), WSCloseCode.GOING_AWAY)
    except TimeoutError:
        await _close(wire, lanes, WebSocketLimitReached(seconds=seconds), WSCloseCode.OK)


async def _close(wire: _Wire, lanes: Lanes, error: ServiceError, code: WSCloseCode) -> None:
    try:
        await lanes.close(error)
        if code is WSCloseCode.OK:
            await wire.send(error_frame(error, None))
    except ConnectionError:
        return
    await wire.websocket.close(code=code)
