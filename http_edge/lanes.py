"""The turns of one WebSocket: one at a time in each lane, in the order in which they were asked for, and lanes side by side.

A turn's events go out as they come; its failure is an error frame before the first of them, and `response.failed` after it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from http_edge.clients import CLIENTS
from http_edge.errors import TurnInterrupted, WebSocketQueueFull, masked
from http_edge.frames import CreateFrame, error_frame, event_frame
from http_edge.metrics import WEBSOCKET_TURNS
from http_edge.retained import Shelf
from http_edge.settings import EDGE_SETTINGS
from http_edge.tape import Event, Tape, response_in
from svckit.errors import ServiceError

Send = Callable[[bytes], Awaitable[None]]


class Lanes:
    """Runs the turns of a connection as tasks of its group, until it is closed."""

    def __init__(self, request: web.Request, send: Send, shelf: Shelf, tasks: asyncio.TaskGroup) -> None:
        self._clients = request.app[CLIENTS]
        self._settings = request.app[EDGE_SETTINGS]
        self._send = send
        self._shelf = shelf
        self._tasks = tasks
        self._waiting: dict[str | None, deque[CreateFrame]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._closed_by: ServiceError | None = None
        self._interrupted_by: ServiceError | None = None

    @property
    def closed(self) -> bool:
        """Is nothing taken any more?"""
        return self._closed_by is not None

    def ask(self, frame: CreateFrame) -> None:
        """Puts a turn into its lane. Raises what closed the lanes, or WebSocketQueueFull."""
        if self._closed_by is not None:
            raise self._closed_by
        self._check_room(frame)
        if frame.lane in self._waiting:
            self._waiting[frame.lane].append(frame)
            return
        self._waiting[frame.lane] = deque([frame])
        task = self._tasks.create_task(self._work(frame.lane))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def close(self, error: ServiceError) -> None:
        """Takes no further turns, refuses those that wait, and lets those that run finish."""
        self._closed_by = error
        await self._refuse_waiting(error)
        await self._idle()

    async def interrupt(self, error: ServiceError) -> None:
        """Ends the turns that run, with a last word."""
        self._closed_by = self._interrupted_by = error
        await self._refuse_waiting(error)
        self.cancel()
        await self._idle()

    def cancel(self) -> None:
        """Cancels the turns that run."""
        for task in self._working:
            task.cancel()

    def _check_room(self, frame: CreateFrame) -> None:
        if frame.lane not in self._waiting and len(self._waiting) >= self._settings.websocket_lanes:
            raise WebSocketQueueFull(limit=self._settings.websocket_lanes)
        waiting = [one.size for lane in self._waiting.values() for one in lane]
        if len(waiting) >= self._settings.websocket_queue or sum(waiting) + frame.size > self._settings.body_limit_bytes:
            raise WebSocketQueueFull(limit=self._settings.websocket_queue)

    async def _refuse_waiting(self, error: ServiceError) -> None:
        waiting = [frame for lane in self._waiting.values() for frame in lane]
        for lane in self._waiting.values():
            lane.clear()
        for frame in waiting:
            await self._send(error_frame(error, frame.lane))

    async def _idle(self) -> None:
        while self._working:
            await asyncio.wait(set(self._working))

    async def _work(self, lane: str | None) -> None:
        waiting = self._waiting[lane]
        try:
            while waiting:
                await self._run(waiting.popleft())
        except ConnectionError:
            return  # whoever reads from the client notices too
        finally:
            del self._waiting[lane]

    async def _run(self, frame: CreateFrame) -> None:
        message = frame.asked.message
        message.continuation = self._shelf.get(message.previous_response_id) or b""
        tape, end = Tape(padded=frame.asked.padded), "left"
        try:
            broken_by = await self._play(frame, tape)
            if broken_by is not None or tape.has_failed:
                # A continuation that failed takes its parent with it, as the protocol has it.
                self._shelf.drop(message.previous_response_id)
            if broken_by is not None:
                await self._tell(frame, tape, broken_by)
            end = "refused" if not tape.begun else "failed" if tape.has_failed else "ended"
        finally:
            WEBSOCKET_TURNS.labels(end).inc()

    async def _play(self, frame: CreateFrame, tape: Tape) -> ServiceError | None:
        """Sends a turn's events until its last; gives what to blame should there be no terminal one among them."""
        caller, create = self._clients.caller, self._clients.orchestrator.CreateResponse
        try:
            async with caller.stream(create, frame.asked.message, deadline=None) as replies:
                async for reply in replies:
                    if reply.continuation:
                        self._shelf.put(_response_id(reply.events[-1]), reply.continuation)
                    for event in reply.events:
                        await self._send(event_frame(tape.played(event), frame.lane))
                    if tape.ended:
                        return None
        except ServiceError as error:
            return error
        except ConnectionError:
            raise
        except asyncio.CancelledError:
            if self._interrupted_by is None:
                raise
            _go_on()
            return self._interrupted_by
        except Exception as exc:
            return masked(exc)
        return TurnInterrupted()

    async def _tell(self, frame: CreateFrame, tape: Tape, error: ServiceError) -> None:
        told = event_frame(tape.played(tape.failed(error)), frame.lane) if tape.begun else error_frame(error, frame.lane)
        await self._send(told)


def _go_on() -> None:
    """Takes the cancellation of the current task back, for a last word."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


class _Named(msgspec.Struct):
    id: str


def _response_id(event: Event) -> str:
    return msgspec.json.decode(response_in(event), type=_Named).id
