"""Watching a background turn: its event log as a stream, from any event on and to its end.

A viewer only looks. When it leaves, the turn goes on; when the view breaks off, so does the connection, and nothing is made up: the
viewer comes back with the number of the last event that it has. Where the last events of a turn were lost, its stored response ends the
stream.
"""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from http_edge import render
from http_edge.clients import CLIENTS
from http_edge.metrics import VIEWERS
from http_edge.middlewares import OWNER
from http_edge.replay import end_of
from http_edge.sse import open_stream
from http_edge.stored import stored_response
from turnkeep.history.v1.history_pb2 import WatchEventsReply, WatchEventsRequest
from turnkeep.orchestrator.v1.orchestrator_pb2 import StreamEvent

FROM_THE_START = -1
# A log without an event for so long is taken for one that has none yet: the answer begins, and silence is filled with heartbeats.
_GRACE_SECONDS = 1.0

Replies = AsyncIterator[WatchEventsReply]


async def view(request: web.Request, response_id: str, *, starting_after: int = FROM_THE_START, padded: bool = False) -> web.StreamResponse:
    """Streams the events behind a number. What fails at once is raised, for an HTTP status of its own."""
    clients = request.app[CLIENTS]
    asked = WatchEventsRequest(owner=request[OWNER], response_id=response_id, starting_after=starting_after)
    with VIEWERS.track_inprogress():
        async with clients.caller.stream(clients.history.WatchEvents, asked, deadline=None) as replies:
            return await _copied(request, response_id, replies, padded)


async def _copied(request: web.Request, response_id: str, replies: Replies, padded: bool) -> web.StreamResponse:
    first = asyncio.ensure_future(_next(replies))
    try:
        await asyncio.wait({first}, timeout=_GRACE_SECONDS)
        if first.done():
            first.result()
        async with open_stream(request, padded=padded) as stream:
            stream.response.send_head_soon()
            reply = await first
            while reply is not None:
                lost = reply.HasField("lost_behind")
                await stream.write(await _stored_end(request, response_id, reply.lost_behind + 1) if lost else reply.events)
                reply = None if stream.tape.ended else await anext(replies, None)
        return stream.response
    finally:
        first.cancel()
        await asyncio.wait({first})


async def _stored_end(request: web.Request, response_id: str, number: int) -> list[StreamEvent]:
    return end_of(render.response(response_id, await stored_response(request, response_id)), number)


async def _next(replies: Replies) -> WatchEventsReply | None:
    return await anext(replies, None)
