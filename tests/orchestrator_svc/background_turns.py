"""Background turns for tests: processes that share one queue, and die without a word when they are told to.

    async with open_queue(queue_database) as queue, queue.process() as process:
        started = await process.start(HELLO, tools=[server()])
        events = await queue.events(started)

History, engine and streams are real or strict; tools are fakes. A process that is killed reaches the history no more, and stops.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import grpc
import msgspec

from history_svc.app import open_history
from history_svc.settings import HistorySettings
from history_svc.settings import Settings as HistoryRoom
from orchestrator_svc.conversations import Conversations
from orchestrator_svc.history import History
from orchestrator_svc.items import JsonObject
from orchestrator_svc.providers.registry import open_provider
from orchestrator_svc.request import ToolKinds
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings
from orchestrator_svc.tools.toolbox import Toolbox
from orchestrator_svc.turn.background import BackgroundTurns
from orchestrator_svc.turn.desk import Desk
from orchestrator_svc.turn.opening import Opening
from orchestrator_svc.turn_queue import TurnQueue
from svckit.errors import RemoteError
from svckit.grpc_client import Caller
from svckit.local_channel import LocalChannel
from svckit.settings import GrpcSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.streams import check_response, check_stream
from tests.orchestrator_svc.tool_turns import SPECS, FakeLister, FakeTool, World
from tests.orchestrator_svc.turns import RULES, asked
from turnkeep.history.v1 import history_pb2
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceStub

PATIENCE = 30.0
LEASE_SECONDS = 1.0

T = TypeVar("T")
Before = Callable[[], Awaitable[None]]


class MortalCaller(Caller):
    """Reaches the history until its process is killed; `away`: the history cannot be reached for now.

    `before` is what a test lets happen before a call of a method, by its name.
    """

    def __init__(self) -> None:
        super().__init__(GrpcSettings())
        self.is_dead = False
        self.is_away = False
        self.before: dict[str, Before] = {}
        self.called: list[str] = []
        self.news = asyncio.Event()

    async def unary(self, method: object, request: object, deadline: float, idempotent: bool = False) -> object:  # type: ignore[override]
        """See Caller."""
        name = type(request).__name__.removesuffix("Request")
        self.called.append(name)
        self.news.set()
        if name in self.before:
            await self.before.pop(name)()
        self._check()
        return await super().unary(method, request, deadline, idempotent)  # type: ignore[arg-type]

    def stream(self, method: object, request: object, deadline: float | None, idempotent: bool = False) -> object:  # type: ignore[override]
        """See Caller."""
        self._check()
        return super().stream(method, request, deadline, idempotent)  # type: ignore[arg-type]

    def _check(self) -> None:
        if self.is_dead:
            raise RemoteError(grpc.StatusCode.FAILED_PRECONDITION, "lease_lost", "This process is dead.")
        if self.is_away:
            raise RemoteError(grpc.StatusCode.UNAVAILABLE, "database_unavailable", "The database is not there.")

    async def until_called(self, name: str, times: int = 1) -> None:
        """Waits until a method was called so often."""
        async with asyncio.timeout(PATIENCE):
            while self.called.count(name) < times:
                self.news.clear()
                await self.news.wait()


@dataclass(frozen=True, slots=True)
class Started:
    """A turn that was queued."""

    id: str
    response: JsonObject


@dataclass(eq=False)
class Process:
    """One process that runs background turns."""

    turns: BackgroundTurns
    desk: Desk
    caller: MortalCaller
    store: History

    async def start(self, *input: JsonObject, owner: str = "ada", **fields: object) -> Started:
        """Queues a turn."""
        request = replace(asked(*input, **fields), owner=owner, background=True)  # type: ignore[arg-type]
        id, response = await self.turns.start(request)
        return Started(id, msgspec.json.decode(response))

    async def kill(self) -> None:
        """From now on nothing of this process reaches the history, and its model calls and tools end."""
        self.caller.is_dead = True
        running = list(self.turns._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@dataclass
class Queue:
    """What the processes share."""

    engine: FakeEngine
    search: FakeTool
    mcp: FakeTool
    lister: FakeLister
    history: HistoryServiceStub
    channel: LocalChannel
    processes: list[Process] = field(default_factory=list)

    @asynccontextmanager
    async def process(self, servers: frozenset[str] = frozenset({"configured"}), **settings: object) -> AsyncIterator[Process]:
        """A process that takes turns; `servers` are the MCP servers of its configuration, `settings` are those of `[orchestrator]`."""
        given = {"drain_seconds": 0.0, "background_lease_seconds": LEASE_SECONDS, "commit_timeout_seconds": 10.0, **settings}
        orchestrator = OrchestratorSettings(**given)  # type: ignore[arg-type]
        caller = MortalCaller()
        store = History(self.channel, caller, orchestrator)
        kinds = ToolKinds(SPECS, servers)
        toolbox = Toolbox(kinds, {"web_search": self.search, "mcp": self.mcp}, self.lister, orchestrator)
        opening = Opening(store, kinds, RULES, {}, "engine", orchestrator)
        async with (
            open_provider(EngineSettings(url=self.engine.url), orchestrator) as provider,
            Desk(provider, store, toolbox, opening, orchestrator) as desk,
            BackgroundTurns(desk, opening, store, TurnQueue(self.channel, caller, orchestrator), orchestrator) as turns,
        ):
            yield Process(turns, desk, caller, store)
            await asyncio.gather(desk.drain(), turns.drain())

    def world(self, process: Process) -> World:
        """For turns in the foreground."""
        conversations = Conversations(process.store, RULES.seals)
        return World(self.engine, process.desk, self.search, self.mcp, self.lister, self.history, conversations)

    async def watched(self, started: Started, behind: int = -1, upto: int | None = None, owner: str = "ada") -> list[JsonObject]:
        """The events behind a number, as a viewer sees them: to the end, or up to a number."""
        request = history_pb2.WatchEventsRequest(owner=owner, response_id=started.id, starting_after=behind)
        events: list[JsonObject] = []
        async with asyncio.timeout(PATIENCE):
            call = self.history.WatchEvents(request)
            async for reply in call:
                events += [msgspec.json.decode(event.data) for event in reply.events]
                if upto is not None and events[-1]["sequence_number"] >= upto:  # type: ignore[operator]
                    call.cancel()
                    break
        return events

    async def seen(self, started: Started, type: str, times: int = 1) -> list[JsonObject]:
        """The events until one of a type was seen so often."""
        request = history_pb2.WatchEventsRequest(owner="ada", response_id=started.id, starting_after=-1)
        events: list[JsonObject] = []
        async with asyncio.timeout(PATIENCE):
            call = self.history.WatchEvents(request)
            async for reply in call:
                events += [msgspec.json.decode(event.data) for event in reply.events]
                if sum(event["type"] == type for event in events) >= times:
                    call.cancel()
                    break
        return events

    async def ended(self, started: Started, *, taken_over: bool = False) -> JsonObject:
        """The response of a turn that has ended: its whole stream is checked, and GET gives what its terminal event has."""
        response = check_stream(await self.watched(started), taken_over=taken_over)
        assert response == await self.stored(started, taken_over=taken_over)
        return response

    async def stored(self, started: Started, *, taken_over: bool = False) -> JsonObject:
        """The response as GET gives it."""
        reply = await self.history.GetResponse(history_pb2.GetResponseRequest(owner="ada", response_id=started.id))
        output = [{"id": item.id, **msgspec.json.decode(item.body)} for item in reply.output]
        return check_response({"id": started.id, **msgspec.json.decode(reply.body), "output": output}, taken_over=taken_over)

    async def cancel(self, started: Started) -> str:
        """Asks for the end of a turn; gives the status at that time."""
        reply = await self.history.CancelTurn(history_pb2.CancelTurnRequest(owner="ada", response_id=started.id))
        return str(msgspec.json.decode(reply.response.body, type=JsonObject)["status"])

    def inputs(self) -> list[list[JsonObject]]:
        """What the engine was given, request by request."""
        return [post.input for post in self.engine.posts]


@asynccontextmanager
async def open_queue(database: str, **settings: object) -> AsyncIterator[Queue]:
    """The history over a database of its own, an engine, and tools; `settings` are those of `[history]`."""
    own = HistorySettings(listen="", database_url=database, migrate_at_start=False, sweep_interval_seconds=0, **settings)  # type: ignore[arg-type]
    async with FakeEngine(strict=True) as engine, open_history(HistoryRoom(history=own)) as history:
        channel = LocalChannel(history.services)
        yield Queue(engine, FakeTool(), FakeTool(), FakeLister(), HistoryServiceStub(channel), channel)
        await channel.stop(1)
        assert [post.refused for post in engine.posts if post.refused] == []
