"""A turn's events on their way to the client: streamed as server-sent events, or folded into one object.

What is ready together is written together, an event is never split over two writes, and no stream ends without a terminal event. What the
events say is the orchestrator's business.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from http_edge.client_watch import ClientWatch
from http_edge.drain import DRAIN, Drain
from http_edge.errors import ServerShutdown, TurnInterrupted, masked
from http_edge.metrics import EVENT_GAP_SECONDS, FIRST_EVENT_SECONDS, STREAM_BYTES
from http_edge.middlewares import STARTED_AT
from http_edge.settings import EDGE_SETTINGS
from http_edge.streamed_answer import StreamedAnswer
from http_edge.tape import TAPE, TERMINAL, Event, Tape, response_in
from svckit.errors import ServiceError
from svckit.grpc_client import Replies
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseReply

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"
# No blank line behind it: a parser that saw one would dispatch an empty event.
KEEP_ALIVE = b": keep-alive\n"


async def fold(replies: Replies[CreateResponseReply]) -> bytes:
    """The response object of the terminal event. Raises TurnInterrupted where there is none."""
    last = None
    async for reply in replies:
        replies.hand_to(_is_under_way)
        last = reply
    if last is None or not last.events or last.events[-1].type not in TERMINAL:
        raise TurnInterrupted()
    return response_in(last.events[-1])


def _is_under_way(reply: CreateResponseReply) -> bool:
    return not reply.events or reply.events[-1].type not in TERMINAL


async def send(request: web.Request, replies: Replies[CreateResponseReply], *, padded: bool = False) -> web.StreamResponse:
    """Streams a turn. What fails before its first event is raised, for an HTTP status of its own."""
    first = await anext(replies, None)
    if first is None:
        raise TurnInterrupted()
    async with open_stream(request, padded=padded) as stream:
        FIRST_EVENT_SECONDS.observe(stream.heartbeat.last_write - request[STARTED_AT])
        await stream.write(first.events)
        broken_by = TurnInterrupted() if stream.held else await _copy(replies, stream, request.app[DRAIN])
        if not stream.tape.ended:
            await stream.write((stream.tape.failed(broken_by),))
    return stream.response


async def _copy(replies: Replies[CreateResponseReply], stream: "Stream", drain: Drain) -> ServiceError:
    """Copies events until the last one; gives what to blame should the turn not have ended by then."""
    try:
        replies.hand_to(stream.take)
        async for reply in replies:
            await stream.write(reply.events)
            if stream.held:
                break
    except ServiceError as error:
        return error
    except ConnectionError:
        raise
    except asyncio.CancelledError:
        if not drain.takes_back_cancel():
            raise
        return ServerShutdown()
    except Exception as exc:
        return masked(exc)
    return TurnInterrupted()


async def replay(request: web.Request, events: Iterable[Event], *, padded: bool = False) -> web.StreamResponse:
    """Streams events that are there already."""
    async with open_stream(request, padded=padded) as stream:
        await stream.write(events)
    return stream.response


@dataclass(slots=True)
class Stream:
    """An answer of events that has begun; `held` is its last piece, once there is one."""

    response: StreamedAnswer
    tape: Tape
    heartbeat: "Heartbeat"
    held: bytes = b""

    def take(self, reply: CreateResponseReply) -> bool:
        """Writes the events of a reply at once, unless the client is behind or the last event is among them: those are `write`'s."""
        events = reply.events
        response, tape = self.response, self.tape
        if not response.flows or tape.ended or events[-1].type in TERMINAL:
            return False
        self.heartbeat.touch()
        response.write_now(tape.framed(events))
        return True

    async def write(self, events: Iterable[Event]) -> None:
        """Writes the events as one piece. The piece with the terminal event waits for `end`, to leave in one send with it."""
        self.heartbeat.touch()
        piece = self.tape.framed(events)
        if self.tape.ended:
            self.held += piece
        elif self.response.flows:
            self.response.write_now(piece)
        else:
            await self.response.write(piece)

    async def end(self) -> None:
        """Writes what was held, and that there is no more."""
        # Some clients hang up as soon as they have the terminal event.
        with suppress(ConnectionError):
            await self.response.write_eof(self.held + DONE)


@asynccontextmanager
async def open_stream(request: web.Request, *, padded: bool) -> AsyncIterator[Stream]:
    """Begins an answer of events, and ends it; meanwhile silence is filled, and a client that takes nothing is cut off to the last byte."""
    settings = request.app[EDGE_SETTINGS]
    tape = request[TAPE] = Tape(padded=padded)
    response = StreamedAnswer(headers=HEADERS)
    await response.prepare(request)
    with ClientWatch(request, settings.client_timeout_seconds):
        with Heartbeat(response, settings.keep_alive_seconds) as heartbeat:
            stream = Stream(response, tape, heartbeat)
            yield stream
        await stream.end()
    EVENT_GAP_SECONDS.observe(heartbeat.longest_silence)
    STREAM_BYTES.inc(request.writer.output_size)


class Heartbeat:
    """Writes a comment into a stream that has been silent for `seconds`. The timer is re-armed only when it fires, not per event."""

    def __init__(self, response: web.StreamResponse, seconds: float) -> None:
        self._response = response
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._beat: asyncio.Task[None] | None = None
        self.last_write = self._loop.time()
        self.longest_silence = 0.0

    def touch(self) -> None:
        """Something is written now."""
        now = self._loop.time()
        silence, self.last_write = now - self.last_write, now
        if silence > self.longest_silence:
            self.longest_silence = silence

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
