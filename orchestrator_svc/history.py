"""The history service, as a turn uses it: load what it continues from, save what it made.

This file converts and calls. What a failed save means for the turn is the turn machine's business; whether a save that got no answer is
tried again is decided here, once: the same id and content change nothing, so it is, until the deadline.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from prometheus_client import Histogram

from orchestrator_svc.context import carried
from orchestrator_svc.context.carried import Carried
from orchestrator_svc.context.parent import Span
from orchestrator_svc.errors import ConversationNotFound, HistoryUnavailable, PreviousResponseNotFound
from orchestrator_svc.items import Item, restored
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.turn.actions import Record
from orchestrator_svc.turn.events import Saved, SaveFailed
from orchestrator_svc.turn.state import Turn
from svckit.errors import RemoteError
from svckit.grpc_client import Caller
from svckit.logs import get_logger
from turnkeep.common.v1.common_pb2 import Item as WireItem
from turnkeep.common.v1.common_pb2 import ResponseStatus
from turnkeep.common.v1.common_pb2 import Span as WireSpan
from turnkeep.history.v1 import history_pb2
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceStub

LOAD_SECONDS = Histogram("turnkeep_orchestrator_load_seconds", "Seconds to load the context of a continuation.")
COMMIT_SECONDS = Histogram("turnkeep_orchestrator_commit_seconds", "Seconds to save a turn.")

_STATUSES = {
    ResponseStatus.RESPONSE_STATUS_QUEUED: "queued",
    ResponseStatus.RESPONSE_STATUS_IN_PROGRESS: "in_progress",
    ResponseStatus.RESPONSE_STATUS_COMPLETED: "completed",
    ResponseStatus.RESPONSE_STATUS_INCOMPLETE: "incomplete",
    ResponseStatus.RESPONSE_STATUS_FAILED: "failed",
    ResponseStatus.RESPONSE_STATUS_CANCELLED: "cancelled",
}
_WIRE_STATUSES = {name: status for status, name in _STATUSES.items()}
# Codes that leave open whether the save was made.
_UNKNOWN_OUTCOME = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)

# Codes of a save that failed: nobody knows whether it was made; another process has the turn now.
OUTCOME_UNKNOWN = "storage_outcome_unknown"
LEASE_LOST = "lease_lost"
NOT_WRITTEN = SaveFailed(LEASE_LOST, "The turn has passed to another process.")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """What a turn continues from: where the parent stands, and the checkpoint to hand back. A conversation has no status."""

    response_id: str
    status: str
    parent_response_id: str
    open_call_ids: tuple[str, ...]
    checkpoint: tuple[Span, ...]
    tokens: int
    tree_full: bool
    carried: Carried
    resume_state: bytes


@dataclass(frozen=True, slots=True)
class Prompts:
    """A loaded context: the prompts in order with the provider that each is meant for (empty: all)."""

    prompts: tuple[tuple[bytes, str], ...]

    def rendered(self, provider: str) -> tuple[bytes, ...]:
        """The elements of a JSON array, in pieces of one or several, as `provider` may see them."""
        return tuple(prompt for prompt, origin in self.prompts if prompt and origin in ("", provider))


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether a call may be run; if not, its outcome, or None when nobody knows it."""

    granted: bool
    outcome: bytes | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Stored items by their ids, and their numbers in their trees."""

    items: dict[str, Item] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)


class History:
    """Loads and saves for one owner of turns."""

    def __init__(self, channel: grpc.aio.Channel, caller: Caller, settings: OrchestratorSettings) -> None:
        self._stub = HistoryServiceStub(channel)
        self._caller = caller
        self._settings = settings

    async def load(self, owner: str, response_id: str) -> tuple[Head, Prompts]:
        """What a continuation of `response_id` starts from. Raises PreviousResponseNotFound, HistoryUnavailable, RemoteError."""
        request = history_pb2.LoadContextRequest(owner=owner, response_id=response_id)
        try:
            with LOAD_SECONDS.time(), named():
                return await self._loaded(request)
        except RemoteError as error:
            if error.reason == "previous_response_not_found":
                raise PreviousResponseNotFound(response_id=response_id) from error
            raise

    async def load_conversation(self, owner: str, conversation_id: str) -> tuple[Head, Prompts]:
        """What a turn in a conversation starts from. Raises ConversationNotFound, HistoryUnavailable, RemoteError."""
        request = history_pb2.LoadContextRequest(owner=owner, conversation_id=conversation_id)
        with LOAD_SECONDS.time(), named(), _conversation_named(conversation_id):
            return await self._loaded(request)

    async def create_conversation(
        self, owner: str, conversation_id: str, metadata: bytes, items: Sequence[Item], open_call_ids: Sequence[str], created_at: int
    ) -> None:
        """Stores a new conversation. Raises HistoryUnavailable, RemoteError."""
        request = history_pb2.CreateConversationRequest(
            owner=owner,
            conversation_id=conversation_id,
            metadata=metadata,
            items=[_new_item(item) for item in items],
            open_call_ids=open_call_ids,
            created_at=created_at,
        )
        with named():
            deadline = self._settings.commit_timeout_seconds
            await self._caller.unary(self._stub.CreateConversation, request, deadline=deadline, idempotent=True)

    async def add_items(
        self, owner: str, conversation_id: str, items: Sequence[Item], opened: Sequence[str], closed: Sequence[str]
    ) -> None:
        """Appends items to a conversation. Raises ConversationNotFound, HistoryUnavailable, RemoteError."""
        request = history_pb2.AddConversationItemsRequest(
            owner=owner,
            conversation_id=conversation_id,
            items=[_new_item(item) for item in items],
            opened_call_ids=opened,
            closed_call_ids=closed,
        )
        with named(), _conversation_named(conversation_id):
            await self._caller.unary(self._stub.AddConversationItems, request, deadline=self._settings.commit_timeout_seconds)

    async def acquire(self, owner: str, conversation_id: str, holder: str, seconds: float) -> int:
        """Takes the lease of a conversation; gives its fencing token. Raises ConversationNotFound, HistoryUnavailable, RemoteError."""
        request = history_pb2.AcquireLeaseRequest(
            owner=owner, conversation_id=conversation_id, holder=holder, lifetime_ms=int(seconds * 1000)
        )
        with named(), _conversation_named(conversation_id):
            reply = await self._caller.unary(self._stub.AcquireLease, request, deadline=self._settings.load_timeout_seconds)
        return reply.fencing_token

    async def renew(self, owner: str, conversation_id: str, token: int, seconds: float) -> None:
        """Prolongs a lease. Raises HistoryUnavailable, RemoteError (lease_lost)."""
        request = history_pb2.RenewLeaseRequest(
            owner=owner, conversation_id=conversation_id, fencing_token=token, lifetime_ms=int(seconds * 1000)
        )
        with named():
            await self._caller.unary(self._stub.RenewLease, request, deadline=self._settings.load_timeout_seconds, idempotent=True)

    async def release(self, owner: str, conversation_id: str, token: int) -> None:
        """Gives a lease back; one that cannot be given back runs out by itself."""
        request = history_pb2.ReleaseLeaseRequest(owner=owner, conversation_id=conversation_id, fencing_token=token)
        try:
            await self._caller.unary(self._stub.ReleaseLease, request, deadline=self._settings.load_timeout_seconds, idempotent=True)
        except RemoteError as error:
            log.warning("a lease was not given back", reason=error.reason)

    async def find(self, owner: str, item_ids: Sequence[str]) -> Found:
        """The stored items among these ids. Raises HistoryUnavailable, RemoteError."""
        request = history_pb2.FindItemsRequest(owner=owner, item_ids=item_ids)
        items: dict[str, Item] = {}
        numbers: dict[str, int] = {}
        with named():
            deadline = self._settings.load_timeout_seconds
            async with self._caller.stream(self._stub.FindItems, request, deadline=deadline, idempotent=True) as replies:
                async for reply in replies:
                    items |= {item.item.id: _found_item(item) for item in reply.items}
                    numbers |= {item.item.id: number for item, number in zip(reply.items, reply.numbers, strict=True)}
        return Found(items, numbers)

    async def claim(self, owner: str, claim_id: str, response_id: str) -> Claim:
        """Claims a call that may run once, before it is run. Raises HistoryUnavailable, RemoteError."""
        request = history_pb2.ClaimCallRequest(owner=owner, claim_id=claim_id, response_id=response_id)
        with named():
            deadline = self._settings.load_timeout_seconds
            reply = await self._caller.unary(self._stub.ClaimCall, request, deadline=deadline, idempotent=True)
        return Claim(reply.granted, reply.outcome if reply.settled else None)

    async def settle(self, owner: str, claim_id: str, response_id: str, outcome: bytes) -> None:
        """Records what became of a claimed call. A record that fails leaves the outcome unknown: it is logged, not raised."""
        request = history_pb2.SettleClaimRequest(owner=owner, claim_id=claim_id, response_id=response_id, outcome=outcome)
        try:
            await self._caller.unary(self._stub.SettleClaim, request, deadline=self._settings.commit_timeout_seconds, idempotent=True)
        except RemoteError as error:
            log.error("the outcome of a call was not recorded", claim_id=claim_id, reason=error.reason)

    async def save(self, turn: Turn, record: Record, fencing_token: int, at: int) -> Saved | SaveFailed:
        """Saves a turn; the answer says whether it is stored for certain."""
        request = _commit_request(turn, record, fencing_token, at)
        try:
            with COMMIT_SECONDS.time():
                deadline = self._settings.commit_timeout_seconds
                reply = await self._caller.unary(self._stub.CommitTurn, request, deadline=deadline, idempotent=True)
            return Saved(tuple((span.first, span.end) for span in reply.checkpoint))
        except RemoteError as error:
            log.error("a turn was not saved", response_id=record.response_id, reason=error.reason, status=error.status.name)
            if error.status in _UNKNOWN_OUTCOME:
                told = "The response may or may not have been stored; ask for it by its id."
                return SaveFailed(OUTCOME_UNKNOWN, told, is_passing=True)
            if error.reason == LEASE_LOST:
                return NOT_WRITTEN
            is_passing = error.status is grpc.StatusCode.RESOURCE_EXHAUSTED
            return SaveFailed("storage_failed", "The response could not be stored.", is_passing=is_passing)

    async def _loaded(self, request: history_pb2.LoadContextRequest) -> tuple[Head, Prompts]:
        head: Head | None = None
        prompts: list[tuple[bytes, str]] = []
        load = self._stub.LoadContext
        async with self._caller.stream(load, request, deadline=self._settings.load_timeout_seconds, idempotent=True) as replies:
            async for reply in replies:
                if head is None:  # it is in the first
                    head = _head(request.response_id, reply.head)
                prompts += [(item.prompt, item.origin) for item in reply.items]
        if head is None:
            raise HistoryUnavailable
        return head, Prompts(tuple(prompts))


@contextmanager
def named() -> Iterator[None]:
    """A service that is not there has one name, whichever way it is not there."""
    try:
        yield
    except RemoteError as error:
        if error.status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise HistoryUnavailable from error
        raise


@contextmanager
def _conversation_named(conversation_id: str) -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        if error.reason == "conversation_not_found":
            raise ConversationNotFound(conversation_id=conversation_id) from error
        raise


def _found_item(found: history_pb2.NewItem) -> Item:
    prompt = found.prompt if found.HasField("prompt") else None
    return restored(found.item.id, found.item.type, found.item.body, prompt, found.tokens, found.origin)


def _head(response_id: str, head: history_pb2.ContextHead) -> Head:
    return Head(
        response_id=response_id,
        status=_STATUSES.get(head.status, ""),
        parent_response_id=head.parent_response_id,
        open_call_ids=tuple(head.open_call_ids),
        checkpoint=tuple((span.first, span.end) for span in head.checkpoint),
        tokens=head.tokens,
        tree_full=head.tree_full,
        carried=carried.read(head.carried),
        resume_state=head.resume_state,
    )


def _commit_request(turn: Turn, record: Record, fencing_token: int, at: int) -> history_pb2.CommitTurnRequest:
    request, parent = turn.request, turn.parent
    saved_before = turn.checkpoint is not None
    base = () if record.stands_alone else parent.base if turn.checkpoint is None else turn.checkpoint
    return history_pb2.CommitTurnRequest(
        owner=request.owner,
        response_id=record.response_id,
        round=record.round,
        fencing_token=fencing_token,
        must_hold=request.background,
        content_hash=_content_hash(record),
        parent_response_id=parent.response_id,
        conversation_id=parent.conversation_id,
        base=_spans(base),
        base_response_id=parent.response_id if parent.is_full and not (record.stands_alone or saved_before) else "",
        items=[_new_item(item, left_out=item.left_out or place < record.left_out) for place, item in enumerate(record.items)],
        input_count=record.input_count,
        status=_WIRE_STATUSES[record.status],
        model=request.model,
        open_call_ids=record.open_call_ids,
        body=record.body,
        created_at=turn.created_at,
        completed_at=0 if record.resume_state else at,
        carried=record.carried,
        resume_state=record.resume_state,
        unlisted=not request.store,
        head_removed=_spans(record.replaces),
    )


def _spans(spans: Sequence[Span]) -> list[WireSpan]:
    return [WireSpan(first=first, end=end) for first, end in spans]


def _new_item(item: Item, *, left_out: bool = False) -> history_pb2.NewItem:
    return history_pb2.NewItem(
        item=WireItem(id=item.id, type=item.type, body=item.body),
        prompt=item.prompt,
        origin=item.origin,
        tokens=item.tokens,
        left_out=left_out,
    )


def _content_hash(record: Record) -> bytes:
    """SHA-256 over the response's body and its items, each with its length before it."""
    content = hashlib.sha256()
    for part in (record.body, *(part for item in record.items for part in (item.id.encode(), item.body))):
        content.update(b"%d:" % len(part))
        content.update(part)
    return content.digest()
