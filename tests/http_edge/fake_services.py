"""Stand-ins for the two services, behind LocalChannels, and an edge in front of them: what tests of the edge talk to.

The fakes do what a script says and remember what they were asked; they keep no rules of the real services.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import msgspec
from grpc import StatusCode
from openai import AsyncOpenAI

from http_edge.app import open_edge
from http_edge.settings import EdgeSettings, Settings
from svckit.errors import RemoteError, ServiceError
from svckit.grpc_server import Services, add_health
from svckit.local_channel import LocalChannel
from svckit.settings import GrpcSettings
from turnkeep.common.v1.common_pb2 import RESPONSE_STATUS_COMPLETED, Item, ResponseStatus
from turnkeep.history.v1 import history_pb2, history_pb2_grpc
from turnkeep.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseReply, Header, RelayHead, RelayReply, StreamEvent

RESPONSE_ID = "resp_0123456789abcdef0000018f0000000000000001"
MESSAGE_ID = "msg_0123456789abcdef0000018f0000000000000002"
WAIT_SECONDS = 10.0

CONVERSATION_ID = "conv_0123456789abcdef0000018f0000000000000003"

CreateScript = Callable[[orchestrator_pb2.CreateResponseRequest], AsyncIterator[CreateResponseReply]]
RelayScript = Callable[[orchestrator_pb2.RelayRequest], AsyncIterator[RelayReply]]
WatchScript = Callable[[history_pb2.WatchEventsRequest], AsyncIterator[history_pb2.WatchEventsReply]]


class ResponseMissing(ServiceError):
    """Response with id '{response_id}' not found."""

    code = StatusCode.NOT_FOUND
    reason = "response_not_found"


class ConversationMissing(ServiceError):
    """Conversation with id '{conversation_id}' not found."""

    code = StatusCode.NOT_FOUND
    reason = "conversation_not_found"


class ItemMissing(ServiceError):
    """Item with id '{item_id}' not found."""

    code = StatusCode.NOT_FOUND
    reason = "item_not_found"


class KeyMismatch(ServiceError):
    """The key was used for another request."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "idempotency_mismatch"


@dataclass
class Call:
    """How one scripted call went."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class Played:
    """What plays scripts, and remembers how each call went."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.next_call = Call()

    async def _played(self, script):
        call, self.next_call = self.next_call, Call()
        self.calls.append(call)
        call.started.set()
        try:
            async for reply in script:
                yield reply
            call.finished.set()
        finally:
            if not call.finished.is_set():
                call.cancelled.set()


class FakeHistory(Played, history_pb2_grpc.HistoryServiceServicer):
    """Responses, conversations and what they hold, by (owner, id); event logs are a script."""

    def __init__(self) -> None:
        super().__init__()
        self.responses: dict[tuple[str, str], history_pb2.GetResponseReply] = {}
        self.inputs: dict[tuple[str, str], list[Item]] = {}
        self.conversations: dict[tuple[str, str], history_pb2.Conversation] = {}
        self.items: dict[tuple[str, str], list[Item]] = {}
        self.keys: dict[tuple[str, str], history_pb2.ClaimIdempotencyKeyRequest] = {}
        self.asked: list[object] = []
        self.looked_up = asyncio.Event()
        self.error: Exception | None = None
        self.loses_claims = False
        self.watch: WatchScript = lambda request: playing()
        self.is_serving = True

    async def GetResponse(self, request, context):
        self.looked_up.set()
        self._look(request)
        return self.responses[request.owner, request.response_id]

    async def DeleteResponse(self, request, context):
        self._look(request)
        del self.responses[request.owner, request.response_id]
        return history_pb2.DeleteResponseReply()

    async def ListInputItems(self, request, context):
        self._look(request)
        for reply in _paged(self.inputs[request.owner, request.response_id], request, history_pb2.ListInputItemsReply):
            yield reply

    async def CancelTurn(self, request, context):
        self._look(request)
        return history_pb2.CancelTurnReply(response=self.responses[request.owner, request.response_id])

    async def WatchEvents(self, request, context):
        self._look(request)
        async for reply in self._played(self.watch(request)):
            yield reply

    async def ClaimIdempotencyKey(self, request, context):
        self._ask(request)
        held = self.keys.setdefault((request.owner, request.key), request)
        if held.request_hash != request.request_hash:
            raise KeyMismatch()
        if self.loses_claims:
            raise RemoteError(StatusCode.INTERNAL, "internal_error", "Its answer was lost.")
        return history_pb2.ClaimIdempotencyKeyReply(granted=held is request, response_id=held.response_id)

    async def GetConversation(self, request, context):
        return history_pb2.GetConversationReply(conversation=self._conversation(request))

    async def UpdateConversation(self, request, context):
        kept = self._conversation(request)
        new = history_pb2.Conversation(id=kept.id, created_at=kept.created_at, metadata=request.metadata)
        self.conversations[request.owner, request.conversation_id] = new
        return history_pb2.UpdateConversationReply(conversation=new)

    async def DeleteConversation(self, request, context):
        self._conversation(request)
        del self.conversations[request.owner, request.conversation_id]
        return history_pb2.DeleteConversationReply()

    async def ListConversationItems(self, request, context):
        self._conversation(request)
        for reply in _paged(self.items[request.owner, request.conversation_id], request, history_pb2.ListConversationItemsReply):
            yield reply

    async def GetConversationItem(self, request, context):
        self._conversation(request)
        return history_pb2.GetConversationItemReply(item=self._item(request))

    async def DeleteConversationItem(self, request, context):
        kept, item = self._conversation(request), self._item(request)
        self.items[request.owner, request.conversation_id].remove(item)
        return history_pb2.DeleteConversationItemReply(conversation=kept)

    def _look(self, request) -> None:
        self._ask(request)
        if (request.owner, request.response_id) not in self.responses:
            raise ResponseMissing(response_id=request.response_id)

    def _conversation(self, request) -> history_pb2.Conversation:
        self._ask(request)
        if (request.owner, request.conversation_id) not in self.conversations:
            raise ConversationMissing(conversation_id=request.conversation_id)
        return self.conversations[request.owner, request.conversation_id]

    def _item(self, request) -> Item:
        for item in self.items[request.owner, request.conversation_id]:
            if item.id == request.item_id:
                return item
        raise ItemMissing(item_id=request.item_id)

    def _ask(self, request) -> None:
        self.asked.append(request)
        if self.error is not None:
            raise self.error

    async def probe(self) -> bool:
        return self.is_serving


def _paged(items, request, kind):
    """One page, an item a message."""
    ordered = items if request.order == history_pb2.ORDER_ASC else items[::-1]
    start = 1 + [item.id for item in ordered].index(request.page_token) if request.page_token else 0
    page = ordered[start : start + request.page_size]
    yield from (kind(items=[item]) for item in page[:-1])
    has_more = start + request.page_size < len(ordered)
    yield kind(items=page[-1:], next_page_token=page[-1].id if has_more else "")


class FakeOrchestrator(Played, orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Plays a script per call, and answers what is no stream with what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[orchestrator_pb2.CreateResponseRequest] = []
        self.started: list[orchestrator_pb2.StartResponseRequest] = []
        self.asked: list[object] = []
        self.relayed: list[orchestrator_pb2.RelayRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.create: CreateScript = lambda request: playing(*turn("Hello"))
        self.relay: RelayScript = lambda request: playing(head(200, {"content-type": "application/json"}), chunk(b"{}"))
        self.error: Exception | None = None
        self.compaction = b'{"id":"cmp_1","object":"response.compaction","created_at":1,"output":[],"usage":null}'
        self.is_serving = True

    async def CreateResponse(self, request, context):
        self.turns.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        async for reply in self._played(self.create(request)):
            yield reply

    async def StartResponse(self, request, context):
        self._ask(request)
        self.started.append(request)
        response_id = request.turn.response_id or RESPONSE_ID
        response = msgspec.json.encode(response_object(response_id, "queued") | {"background": True})
        return orchestrator_pb2.StartResponseReply(response_id=response_id, response=response)

    async def CountInputTokens(self, request, context):
        self._ask(request)
        return orchestrator_pb2.CountInputTokensReply(input_tokens=42)

    async def CompactContext(self, request, context):
        self._ask(request)
        return orchestrator_pb2.CompactContextReply(compaction=self.compaction)

    async def CreateConversation(self, request, context):
        self._ask(request)
        return orchestrator_pb2.CreateConversationReply(conversation_id=CONVERSATION_ID, created_at=7)

    async def AddConversationItems(self, request, context):
        self._ask(request)
        items = [Item(id=f"msg_{n}", type="message", body=body) for n, body in enumerate(request.items)]
        return orchestrator_pb2.AddConversationItemsReply(items=items)

    async def Relay(self, request, context):
        self.relayed.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        async for reply in self._played(self.relay(request)):
            yield reply

    def _ask(self, request) -> None:
        self.asked.append(request)
        if self.error is not None:
            raise self.error

    async def probe(self) -> bool:
        return self.is_serving


@dataclass
class House:
    """A running edge, the fakes behind it and a client in front of it."""

    url: str
    history: FakeHistory
    orchestrator: FakeOrchestrator
    http: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def create(self, body: object, **options: object) -> aiohttp.ClientResponse:
        """POST /v1/responses with a JSON body, or with bytes as they are."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.http.post("/v1/responses", data=data, **options)

    def connect(self, **options: object) -> aiohttp.client._WSRequestContextManager:
        """A WebSocket at /v1/responses."""
        return self.http.ws_connect("/v1/responses", **options)

    def sdk(self, key: str = "any") -> AsyncOpenAI:
        """The official client."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)


@asynccontextmanager
async def open_house(api_keys: Mapping[str, str] | None = None, **edge: object) -> AsyncIterator[House]:
    """An edge on a free port with fakes behind it."""
    history, orchestrator = FakeHistory(), FakeOrchestrator()
    settings = Settings(edge=EdgeSettings(**{"port": 0, "drain_seconds": 0.2} | edge), api_keys=dict(api_keys or {}))
    channels = LocalChannel(history_services(history)), LocalChannel(orchestrator_services(orchestrator))
    try:
        async with open_edge(settings, *channels) as running, aiohttp.ClientSession(running.url, auto_decompress=False) as http:
            yield House(running.url, history, orchestrator, http)
    finally:
        for channel in channels:
            await channel.stop(0)


def history_services(history: FakeHistory) -> Services:
    services = Services(GrpcSettings())
    services.add(history_pb2_grpc.add_HistoryServiceServicer_to_server, history)
    add_health(services, {"turnkeep.history.v1.HistoryService": history.probe})
    return services


def orchestrator_services(orchestrator: FakeOrchestrator) -> Services:
    services = Services(GrpcSettings())
    services.add(orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server, orchestrator)
    add_health(services, {"turnkeep.orchestrator.v1.OrchestratorService": orchestrator.probe})
    return services


async def playing(*steps: object) -> AsyncIterator[object]:
    """A script: messages are sent, exceptions raised, events and coroutines awaited."""
    for step in steps:
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, asyncio.Event):
            await step.wait()
        else:
            yield step


def for_ever() -> asyncio.Event:
    """A step that never ends by itself."""
    return asyncio.Event()


def turn(*deltas: str, response_id: str = RESPONSE_ID) -> list[CreateResponseReply]:
    """A turn with one message, each event in a message of its own."""
    return [reply(event) for event in turn_events(*deltas, response_id=response_id)]


def reply(*events: StreamEvent) -> CreateResponseReply:
    return CreateResponseReply(events=events)


def logged(*events: StreamEvent) -> history_pb2.WatchEventsReply:
    """Events as they come from a log."""
    return history_pb2.WatchEventsReply(
        events=[history_pb2.LoggedEvent(type=e.type, sequence_number=e.sequence_number, data=e.data) for e in events]
    )


def turn_events(*deltas: str, response_id: str = RESPONSE_ID) -> list[StreamEvent]:
    text = "".join(deltas)
    place = {"item_id": MESSAGE_ID, "output_index": 0}
    part = {"type": "output_text", "text": text, "annotations": []}
    done = {"type": "message", "id": MESSAGE_ID, "status": "completed", "role": "assistant", "content": [part]}
    bodies = [
        {"type": "response.created", "response": response_object(response_id, "in_progress")},
        {"type": "response.in_progress", "response": response_object(response_id, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": done | {"status": "in_progress", "content": []}},
        {"type": "response.content_part.added", **place, "content_index": 0, "part": part | {"text": ""}},
        *({"type": "response.output_text.delta", **place, "content_index": 0, "delta": delta, "logprobs": []} for delta in deltas),
        {"type": "response.output_text.done", **place, "content_index": 0, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "content_index": 0, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": response_object(response_id, "completed") | {"output": [done]}},
    ]
    return [event(number, body) for number, body in enumerate(bodies)]


def event(number: int, body: dict[str, object]) -> StreamEvent:
    data = msgspec.json.encode(body | {"sequence_number": number})
    return StreamEvent(type=str(body["type"]), sequence_number=number, data=data)


def response_object(response_id: str, status: str) -> dict[str, object]:
    return {"id": response_id, "object": "response", "created_at": 1, "status": status, "error": None, "model": "m", "output": []}


def stored(
    body: dict[str, object], *output: Item, status: ResponseStatus.ValueType = RESPONSE_STATUS_COMPLETED
) -> history_pb2.GetResponseReply:
    return history_pb2.GetResponseReply(body=msgspec.json.encode(body), status=status, output=output)


def head(status: int, headers: Mapping[str, str] | None = None) -> RelayReply:
    pairs = [Header(name=name, value=value) for name, value in (headers or {}).items()]
    return RelayReply(head=RelayHead(status=status, headers=pairs))


def chunk(data: bytes) -> RelayReply:
    return RelayReply(chunk=data)


async def within(event: asyncio.Event) -> None:
    """Waits for an event, but not for ever."""
    async with asyncio.timeout(WAIT_SECONDS):
        await event.wait()
