"""Turns with tools, run for real but for the tools: a desk over a real history and a strict engine, with fake handlers and a fake lister.

    async with open_world(database) as world:
        world.engine.play(function_call("web_search", {"query": "x"}), text("Found."))
        turned = await world.turn(HELLO, tools=[SEARCH])

Every turn's stream is checked before a test sees it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

import msgspec

from history_svc.app import open_history
from history_svc.settings import HistorySettings
from history_svc.settings import Settings as HistoryRoom
from orchestrator_svc.conversations import Conversations
from orchestrator_svc.history import History
from orchestrator_svc.items import JsonObject
from orchestrator_svc.providers.registry import open_provider
from orchestrator_svc.request import CompactionRules, ToolKinds
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings
from orchestrator_svc.tools import web_search
from orchestrator_svc.tools.base import ListedTool, McpServer, ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.toolbox import Toolbox
from orchestrator_svc.turn.desk import Desk
from orchestrator_svc.turn.opening import Opening
from svckit.grpc_client import Caller
from svckit.local_channel import LocalChannel
from svckit.settings import GrpcSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.streams import check_response, check_stream
from tests.orchestrator_svc.turns import RULES, asked
from turnkeep.history.v1 import history_pb2
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceStub

SEARCH: JsonObject = {"type": "web_search"}
LOOK: JsonObject = {"type": "function", "name": "look", "parameters": {"type": "object"}}
PATCH: JsonObject = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
CRM: JsonObject = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{**LOOK, "name": "lookup"}]}
SPECS = dict.fromkeys(web_search.SPEC.kinds, web_search.SPEC)
SCHEMA: JsonObject = {"type": "object", "properties": {}}
PATIENCE = 20.0

Answer = Callable[[ToolCall], Awaitable[ToolResult]]


def server(label: str = "docs", **more: object) -> JsonObject:
    """An `mcp` tool of a request."""
    return {"type": "mcp", "server_label": label, "server_url": f"https://{label}.example/mcp", "require_approval": "never", **more}


def listed(*names: str, read_only: bool = False) -> tuple[ListedTool, ...]:
    """Tools as a server lists them."""
    annotations: JsonObject | None = {"readOnlyHint": True} if read_only else None
    return tuple(ListedTool(name, SCHEMA, f"Does {name}.", annotations) for name in names)


async def say_so(call: ToolCall) -> ToolResult:
    """The result of a call that nobody has fixed another one for."""
    said = f"result of {call.tool.name}"
    if call.tool.kind == "web_search":
        return ToolResult(said, public={"action": {"type": "search", "query": str(call.arguments.get("query", "")), "sources": []}})
    return ToolResult(said, public={"output": said})


@dataclass
class FakeTool:
    """A handler that writes down its calls; `answer` may be replaced. `ended` says of each call whether it ended or was cancelled."""

    answer: Answer = say_so
    calls: list[ToolCall] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, call: ToolCall) -> ToolResult:
        """See Handler."""
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await self._tell()
        try:
            result = await self.answer(call)
            self.ended.append("ended")
            return result
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        finally:
            self.running -= 1
            await self._tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a state that calls bring about."""
        async with asyncio.timeout(PATIENCE), self.news:
            await self.news.wait_for(condition)

    async def _tell(self) -> None:
        async with self.news:
            self.news.notify_all()

    @property
    def names(self) -> list[str]:
        return [call.tool.name for call in self.calls]


@dataclass
class FakeLister:
    """Lists what a test has set for each label; a ToolFailed is raised."""

    tools_of: dict[str, tuple[ListedTool, ...] | ToolFailed] = field(default_factory=dict)
    asked: list[McpServer] = field(default_factory=list)
    held: asyncio.Event | None = None

    async def tools(self, server: McpServer) -> tuple[ListedTool, ...]:
        """See Lister."""
        self.asked.append(server)
        if self.held is not None:
            await self.held.wait()
        found = self.tools_of.get(server.label, ())
        if isinstance(found, ToolFailed):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class Turned:
    """A turn that has ended: its events and its last response."""

    events: tuple[JsonObject, ...]
    response: JsonObject

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def output(self) -> list[JsonObject]:
        return cast(list[JsonObject], self.response["output"])

    @property
    def types(self) -> list[str]:
        return [str(item["type"]) for item in self.output]

    @property
    def story(self) -> list[str]:
        """The types of all events between the first two and the last, without `response.`."""
        return [str(event["type"]).removeprefix("response.") for event in self.events[2:-1]]

    def of_type(self, kind: str) -> list[JsonObject]:
        return [event for event in self.events if event["type"] == kind]


@dataclass(frozen=True, slots=True)
class World:
    """Everything around a desk that a test may look at."""

    engine: FakeEngine
    desk: Desk
    search: FakeTool
    mcp: FakeTool
    lister: FakeLister
    history: HistoryServiceStub
    conversations: Conversations

    async def turn(self, *input: JsonObject, owner: str = "ada", **fields: object) -> Turned:
        """Runs a turn to its end."""
        request = replace(asked(*input, **fields), owner=owner)  # type: ignore[arg-type]
        events: list[JsonObject] = []
        async with aclosing(self.desk.respond(request)) as batches:
            async for batch in batches:
                events += [msgspec.json.decode(event.data) for event in batch.events]
        return Turned(tuple(events), check_stream(events))

    async def stored(self, response_id: str, owner: str = "ada") -> JsonObject:
        """The stored response, as GET shows it."""
        reply = await self.history.GetResponse(history_pb2.GetResponseRequest(owner=owner, response_id=response_id))
        output = [{"id": item.id, **msgspec.json.decode(item.body)} for item in reply.output]
        return check_response({"id": response_id, **msgspec.json.decode(reply.body), "output": output})

    async def listed(self, response_id: str, owner: str = "ada") -> list[JsonObject]:
        """All that the turn was given, as input_items lists it from the first."""
        request = history_pb2.ListInputItemsRequest(owner=owner, response_id=response_id, page_size=100, order=history_pb2.ORDER_ASC)
        replies = [reply async for reply in self.history.ListInputItems(request)]
        return [{"id": item.id, **msgspec.json.decode(item.body)} for reply in replies for item in reply.items]

    def inputs(self) -> list[list[JsonObject]]:
        """What the engine was given, request by request."""
        return [post.input for post in self.engine.posts]


@asynccontextmanager
async def open_world(
    database: str,
    tools: AbstractAsyncContextManager[Toolbox] | None = None,
    rules: CompactionRules = RULES,
    thresholds: Mapping[str, int] = MappingProxyType({}),
    **settings: object,
) -> AsyncIterator[World]:
    """A desk with `web_search` and MCP tools that are fakes, or with other tools; `settings` are those of `[orchestrator]`."""
    own = HistorySettings(listen="", database_url=database, migrate_at_start=False, sweep_interval_seconds=0)
    orchestrator = OrchestratorSettings(**{"drain_seconds": 0.2, **settings})  # type: ignore[arg-type]
    search, mcp, lister = FakeTool(), FakeTool(), FakeLister()
    toolbox = Toolbox(ToolKinds(SPECS, frozenset({"configured"})), {"web_search": search, "mcp": mcp}, lister, orchestrator)
    async with FakeEngine(strict=True) as engine, open_history(HistoryRoom(history=own)) as history, tools or nullcontext(toolbox) as used:
        channel = LocalChannel(history.services)
        store = History(channel, Caller(GrpcSettings()), orchestrator)
        async with (
            open_provider(EngineSettings(url=engine.url), orchestrator) as provider,
            Desk(provider, store, used, Opening(store, used.kinds, rules, thresholds, "engine", orchestrator), orchestrator) as desk,
        ):
            yield World(engine, desk, search, mcp, lister, HistoryServiceStub(channel), Conversations(store, rules.seals))
            await desk.drain()
        await channel.stop(1)
        assert [post.refused for post in engine.posts if post.refused] == []
