"""An orchestrator between two fakes: a scripted engine over HTTP and a history service, in memory and scripted, over a local channel."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import grpc
import msgspec

from orchestrator_svc.app import Orchestrator, open_orchestrator
from orchestrator_svc.items import JsonObject
from orchestrator_svc.request import Asked
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings, Settings
from orchestrator_svc.turn.actions import Batch
from svckit.errors import ServiceError
from svckit.grpc_server import HandOver, Services
from svckit.local_channel import LocalChannel
from svckit.settings import GrpcSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.turns import HELLO, asked
from turnkeep.common.v1.common_pb2 import ResponseStatus
from turnkeep.history.v1 import history_pb2
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceServicer, add_HistoryServiceServicer_to_server

PATIENCE = 10.0
Commit = history_pb2.CommitTurnRequest
Part = Callable[[], Awaitable[None]]


class NotFound(ServiceError):
    """Not found."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "previous_response_not_found"


class Unavailable(ServiceError):
    """The database is not there."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "database_unavailable"


class Conflict(ServiceError):
    """The id is stored with other content."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "response_conflict"


class Incomplete(ServiceError):
    """Items of the checkpoint are missing."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "history_incomplete"


@dataclass
class Stored:
    """A response as the fake keeps it."""

    commit: Commit
    prompts: list[tuple[bytes, str]]
    status: int
    tree_full: bool = False


class FakeHistory(HistoryServiceServicer):
    """Keeps what is committed, and gives it back as contexts. `before_load`, `before_save` and `after_save` are what a test lets happen
    there: each is called once for each call, in order, and may wait or raise."""

    def __init__(self) -> None:
        self.asked: list[Commit] = []
        self.stored: dict[tuple[str, str], Stored] = {}
        self.before_load: list[Part] = []
        self.before_save: list[Part] = []
        self.after_save: list[Part] = []
        self.loading = asyncio.Event()
        self.saving = asyncio.Event()
        self.saved = asyncio.Event()

    async def LoadContext(self, request: history_pb2.LoadContextRequest, context: object) -> AsyncIterator[history_pb2.LoadContextReply]:
        self.loading.set()
        await _next_of(self.before_load)
        kept = self.stored.get((request.owner, request.response_id))
        if kept is None:
            raise NotFound
        commit = kept.commit
        head = history_pb2.ContextHead(
            status=kept.status,  # type: ignore[arg-type]
            parent_response_id=commit.parent_response_id,
            open_call_ids=commit.open_call_ids,
            carried=commit.carried,
            tree_full=kept.tree_full,
        )
        yield history_pb2.LoadContextReply(head=head)
        for prompt, origin in kept.prompts:
            yield history_pb2.LoadContextReply(items=[history_pb2.ContextItem(prompt=prompt, origin=origin)])

    async def CommitTurn(self, request: Commit, context: object) -> history_pb2.CommitTurnReply:
        self.asked.append(request)
        self.saving.set()
        await _next_of(self.before_save)
        repeated = (request.owner, request.response_id) in self.stored
        if not repeated:
            self._keep(request)
        await _next_of(self.after_save)
        self.saved.set()
        return history_pb2.CommitTurnReply(repeated_save=repeated)

    def _keep(self, request: Commit) -> None:
        parent = self.stored.get((request.owner, request.parent_response_id))
        own = [(new.prompt if new.HasField("prompt") else new.item.body, new.origin) for new in request.items]
        kept = Stored(request, [*(parent.prompts if parent else ()), *own], request.status)
        self.stored[request.owner, request.response_id] = kept

    def body(self, response_id: object) -> JsonObject:
        """The response as GET would show it."""
        kept = self.stored["ada", str(response_id)]
        output = [new.item for new in kept.commit.items[kept.commit.input_count :]]
        shown = [{"id": item.id} | msgspec.json.decode(item.body) for item in output]
        body: JsonObject = {"id": response_id} | msgspec.json.decode(kept.commit.body) | {"output": shown}
        return body


async def _next_of(parts: list[Part]) -> None:
    if parts:
        await parts.pop(0)()


def fails(error: Exception) -> Part:
    """The call fails with this error."""

    async def fail() -> None:
        raise error

    return fail


@dataclass
class House:
    """The orchestrator and its neighbours."""

    orchestrator: Orchestrator
    engine: FakeEngine
    history: FakeHistory
    tasks: set["asyncio.Task[list[JsonObject]]"] = field(default_factory=set)

    def respond(self, *input: JsonObject, hand_over: HandOver | None = None, **given: object) -> AsyncGenerator[Batch, None]:
        return self.orchestrator.desk.respond(asked_for(*input, **given), hand_over)

    async def events(self, *input: JsonObject, **given: object) -> list[JsonObject]:
        """The events of a turn that runs to its end; the stream is checked."""
        async with aclosing(self.respond(*input, **given)) as batches:
            events = [msgspec.json.decode(event.data) async for batch in batches for event in batch.events]
        check_stream(events)
        return events

    async def response(self, *input: JsonObject, **given: object) -> JsonObject:
        """The response object of a turn."""
        events = await self.events(*input, **given)
        response = events[-1]["response"]
        assert isinstance(response, dict)
        return response

    def start(self, *input: JsonObject, **given: object) -> "asyncio.Task[list[JsonObject]]":
        """A client in a task of its own."""
        task = asyncio.create_task(self.events(*input, **given))
        self.tasks.add(task)
        return task


def asked_for(*input: JsonObject, **given: object) -> Asked:
    return asked(*(input or ((HELLO,) if "previous_response_id" not in given else ())), **given)  # type: ignore[arg-type]


@asynccontextmanager
async def open_house(**settings: object) -> AsyncIterator[House]:
    """The house; `settings` are the orchestrator's."""
    history, services = FakeHistory(), Services(GrpcSettings())
    services.add(add_HistoryServiceServicer_to_server, history)
    channel = LocalChannel(services, copying=True)
    async with FakeEngine(strict=True) as engine:
        given = OrchestratorSettings(listen="", **({"drain_seconds": 0.0, "background_turns": 0} | settings))  # type: ignore[arg-type]
        async with open_orchestrator(Settings(engine=EngineSettings(url=engine.url), orchestrator=given), history=channel) as orchestrator:
            house = House(orchestrator, engine, history)
            yield house
            for task in house.tasks:
                task.cancel()
            await asyncio.gather(*house.tasks, return_exceptions=True)
        await channel.stop(None)


async def soon(work: Awaitable[object]) -> None:
    """Waits for what must happen; a test fails when it does not."""
    await asyncio.wait_for(work, PATIENCE)


STATUSES = {name.removeprefix("RESPONSE_STATUS_").lower(): number for name, number in ResponseStatus.items()}
