"""A turn's events on their way to the client: framed as server-sent events, or folded into one object.

What is ready together is written together, an event is never split over two writes, and no stream ends without a terminal event: where the
turn breaks off without one, `response.failed` is made up here from what has gone out. What the events say is the orchestrator's business.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web
from msgspec import Raw

from http_edge.client_watch import ClientWatch
from http_edge.drain import DRAIN
from http_edge.errors import ServerShutdown, TurnInterrupted, error_object, masked
from http_edge.metrics import EVENT_GAP_SECONDS, FIRST_EVENT_SECONDS, STREAM_BYTES
from http_edge.middlewares import STARTED_AT, TURN_ENDED
from http_edge.settings import EDGE_SETTINGS
from svckit.errors import ServiceError
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseReply, StreamEvent

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"
# No blank line behind it: a parser that saw one would dispatch an empty event.
KEEP_ALIVE = b": keep-alive\n"
TERMINAL = frozenset(["response.completed", "response.incomplete", "response.failed"])
ITEM_DONE = "response.output_item.done"

Replies = AsyncIterator[CreateResponseReply]


class _Lifecycle(msgspec.Struct):
    response: Raw


class _ItemDone(msgspec.Struct):
    item: Raw


async def fold(replies: Replies) -> bytes:
    """The response object of the terminal event. Raises TurnInterrupted where there is none."""
    last = None
    async for reply in replies:
        last = reply
    if last is None or not last.events or last.events[-1].type not in TERMINAL:
        raise TurnInterrupted()
    return bytes(msgspec.json.decode(last.events[-1].data, type=_Lifecycle).response)


async def send(request: web.Request, replies: Replies) -> web.StreamResponse:
    """Streams a turn. What fails before its first event is raised, for an HTTP status of its own."""
    first = await anext(replies, None)
    if first is None:
        raise TurnInterrupted()
    settings = request.app[EDGE_SETTINGS]
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    tape = Tape()
    with ClientWatch(request, settings.client_timeout_seconds), Heartbeat(response, settings.keep_alive_seconds) as heartbeat:
        FIRST_EVENT_SECONDS.observe(heartbeat.last_write - request[STARTED_AT])
        await response.write(tape.framed(first.events))
        broken_by = await _copy(request, replies, response, tape, heartbeat)
    STREAM_BYTES.inc(request.writer.output_size)
    await _end(request, response, tape, broken_by)
    return response


async def _copy(request: web.Request, replies: Replies, response: web.StreamResponse, tape: "Tape", heartbeat: "Heartbeat") -> ServiceError:
    """Copies events until the last one; gives what to blame should the turn not have ended by then."""
    try:
        async for reply in replies:
            EVENT_GAP_SECONDS.observe(heartbeat.touch())
            await response.write(tape.framed(reply.events))
    except ServiceError as error:
        return error
    except ConnectionError:
        request[TURN_ENDED] = tape.ended
        raise
    except asyncio.CancelledError:
        request[TURN_ENDED] = tape.ended
        if not request.app[DRAIN].takes_back_cancel():
            raise
        return ServerShutdown()
    except Exception as exc:
        return masked(exc)
    return TurnInterrupted()


async def _end(request: web.Request, response: web.StreamResponse, tape: "Tape", broken_by: ServiceError) -> None:
    # Some clients hang up as soon as they have the terminal event.
    request[TURN_ENDED] = tape.ended
    with suppress(ConnectionError):
        await response.write_eof((b"" if tape.ended else tape.failed(broken_by)) + DONE)


class Tape:
    """Frames events, and remembers as much of them as a made-up end needs."""

    def __init__(self) -> None:
        self._first: StreamEvent | None = None
        self._last: StreamEvent | None = None
        self._items: list[bytes] = []

    @property
    def ended(self) -> bool:
        """Has the terminal event gone by?"""
        return self._last is not None and self._last.type in TERMINAL

    def framed(self, events: Iterable[StreamEvent]) -> bytes:
        """The events as one piece of bytes."""
        parts: list[bytes] = []
        for event in events:
            kind, data = event.type, event.data
            parts += (b"event: ", kind.encode(), b"\ndata: ", data, b"\n\n")
            if kind == ITEM_DONE:
                self._items.append(data)
            self._last = event
            if self._first is None:
                self._first = event
        return b"".join(parts)

    def failed(self, error: ServiceError) -> bytes:
        """`response.failed` with the items so far, for a turn that broke off."""
        told = error_object(error)
        number = 0 if self._last is None else self._last.sequence_number + 1
        known = {} if self._first is None else msgspec.json.decode(_response_in(self._first), type=dict[str, Raw])
        output = [msgspec.json.decode(data, type=_ItemDone).item for data in self._items]
        response = known | {"status": "failed", "error": {"code": told["code"], "message": told["message"]}, "output": output}
        data = msgspec.json.encode({"type": "response.failed", "sequence_number": number, "response": response})
        return self.framed([StreamEvent(type="response.failed", sequence_number=number, data=data)])


def _response_in(event: StreamEvent) -> bytes:
    try:
        return bytes(msgspec.json.decode(event.data, type=_Lifecycle).response)
    except msgspec.ValidationError:
        return b"{}"


class Heartbeat:
    """Writes a comment into a stream that has been silent for `seconds`. The timer is re-armed only when it fires, not per event."""

    def __init__(self, response: web.StreamResponse, seconds: float) -> None:
        self._response = response
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._beat: asyncio.Task[None] | None = None
        self.last_write = self._loop.time()

    def touch(self) -> float:
        """Something is written now; gives the seconds since the last time."""
        now = self._loop.time()
        silence, self.last_write = now - self.last_write, now
        return silence

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._seconds, self._fire)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()

    def _fire(self) -> None:
        if self._loop.time() >= self.last_write + self._seconds:
            self.last_write = self._loop.time()
            if self._beat is None or self._beat.done():
                self._beat = self._loop.create_task(self._write())
        self._timer = self._loop.call_at(self.last_write + self._seconds, self._fire)

    async def _write(self) -> None:
        with suppress(ConnectionError):
            await self._response.write(KEEP_ALIVE)
