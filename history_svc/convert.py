"""Between the messages of `turnkeep.history.v1` and the values of `model.py`. Says what a valid request is; asks no database."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from history_svc.errors import InvalidRequest
from history_svc.model import (
    Additions,
    ClaimState,
    Context,
    Conversation,
    Event,
    FoundItem,
    Item,
    KeyClaim,
    LogPart,
    NewConversation,
    NewEvents,
    NewItems,
    NewWork,
    Page,
    PageRequest,
    Piece,
    Saved,
    Span,
    Spans,
    StoredResponse,
    TakenTurn,
    Turn,
    in_groups,
)
from svckit.ids import tree_key_of
from turnkeep.common.v1 import common_pb2 as common
from turnkeep.history.v1 import history_pb2 as pb

DEFAULT_PAGE = 20
LARGEST_PAGE = 100
MOST_ITEM_IDS = 1000
LONGEST_KEY = 255

_STATUSES = {
    common.RESPONSE_STATUS_QUEUED: "queued",
    common.RESPONSE_STATUS_IN_PROGRESS: "in_progress",
    common.RESPONSE_STATUS_COMPLETED: "completed",
    common.RESPONSE_STATUS_INCOMPLETE: "incomplete",
    common.RESPONSE_STATUS_FAILED: "failed",
    common.RESPONSE_STATUS_CANCELLED: "cancelled",
}
_STATUS_NUMBERS = {name: number for number, name in _STATUSES.items()}


def turn_of(request: pb.CommitTurnRequest) -> Turn:
    """The turn that a request asks to save. Raises InvalidRequest."""
    tree_key = _tree_key(request.response_id, "response_id")
    _check(0 <= request.input_count <= len(request.items), "input_count", "input_count is not a number of the items given")
    _check(request.status in _STATUSES, "status", "status is missing")
    _check(bool(request.content_hash), "content_hash", "content_hash is missing")
    items = _new_items(request.items)
    return Turn(
        owner=_text(request.owner, "owner"),
        tree_key=tree_key,
        response_id=request.response_id,
        round=request.round,
        fencing_token=request.fencing_token,
        must_hold=request.must_hold,
        content_hash=request.content_hash,
        parent_id=_text(request.parent_response_id, "parent_response_id"),
        conversation_id=_text(request.conversation_id, "conversation_id"),
        base=_checked_spans(request.base, "base"),
        base_tree_key=_tree_key(request.base_response_id, "base_response_id") if request.base_response_id else tree_key,
        items=items,
        inputs=request.input_count,
        status=_STATUSES[request.status],
        model=_text(request.model, "model"),
        open_calls=_texts(request.open_call_ids, "open_call_ids"),
        closed_calls=items.answered_calls() if request.conversation_id else [],
        body=request.body,
        carried=request.carried,
        resume_state=request.resume_state,
        unlisted=request.unlisted,
        head_removed=_checked_spans(request.head_removed, "head_removed"),
        created_at=request.created_at,
        completed_at=request.completed_at or None,
    )


def page_request_of(request: pb.ListInputItemsRequest | pb.ListConversationItemsRequest) -> PageRequest:
    """The page that a request asks for. Raises InvalidRequest."""
    limit = request.page_size or DEFAULT_PAGE
    _check(1 <= limit <= LARGEST_PAGE, "limit", f"the page size is not in 1..{LARGEST_PAGE}")
    return PageRequest(limit, _text(request.page_token, "after"), request.order != pb.ORDER_ASC)


@dataclass(frozen=True, slots=True)
class ContextPart:
    """A part of a context, with the fields of a `LoadContextReply`: a caller in this process reads it as one."""

    head: pb.ContextHead | None
    items: list[Piece]

    def ByteSize(self) -> int:  # protobuf's name for it
        """How large the message would be, or a little less."""
        return sum(map(_piece_size, self.items))


def context_parts(context: Context) -> Iterator[ContextPart]:
    """A context in parts of about 1 MiB, the first with the head."""
    head: pb.ContextHead | None = _head(context)
    for pieces in in_groups(context.pieces, _piece_size):
        yield ContextPart(head, pieces)
        head = None
    if head is not None:
        yield ContextPart(head, [])


def context_reply(part: ContextPart) -> pb.LoadContextReply:
    """A part as a message."""
    reply = pb.LoadContextReply(head=part.head)
    for prompt, origin in part.items:
        reply.items.add(prompt=prompt, origin=origin)  # a list of messages would be copied once more, and dearly
    return reply


def commit_reply(saved: Saved) -> pb.CommitTurnReply:
    """What became of a commit."""
    return pb.CommitTurnReply(checkpoint=_spans(saved.checkpoint), repeated_save=saved.repeated)


def response_reply(response: StoredResponse) -> pb.GetResponseReply:
    """A stored response."""
    return pb.GetResponseReply(body=response.body, status=_STATUS_NUMBERS[response.status], output=_items(response.output))


def page_parts(page: Page) -> Iterator[tuple[list[common.Item], str]]:
    """A page in parts of about 1 MiB, the last with the token of the next page."""
    groups = list(in_groups(page.items, _item_size)) or [[]]
    token = page.items[-1].id if page.more else ""
    for place, group in enumerate(groups, start=1):
        yield _items(group), token if place == len(groups) else ""


def item_ids_of(request: pb.FindItemsRequest) -> list[str]:
    """The ids that a request asks for. Raises InvalidRequest."""
    _check(len(request.item_ids) <= MOST_ITEM_IDS, "item_ids", f"more than {MOST_ITEM_IDS} ids are asked for")
    return list(request.item_ids)


def found_replies(items: list[FoundItem]) -> Iterator[pb.FindItemsReply]:
    """Found items in messages of about 1 MiB."""
    for group in in_groups(items, found_size):
        yield pb.FindItemsReply(items=map(_found_item, group), numbers=[item.seq for item in group])


def found_size(item: FoundItem) -> int:
    """The bytes that a found item takes."""
    return len(item.body) + len(item.prompt or b"")


def claim_of(request: pb.ClaimCallRequest) -> tuple[str, str, str]:
    """Owner, claim and response of a request. Raises InvalidRequest."""
    _tree_key(request.claim_id, "claim_id")
    return _text(request.owner, "owner"), request.claim_id, _text(request.response_id, "response_id")


def claim_reply(state: ClaimState) -> pb.ClaimCallReply:
    """What a claim has come to."""
    return pb.ClaimCallReply(granted=state.granted, settled=state.settled, outcome=state.outcome)


def settled_of(request: pb.SettleClaimRequest) -> tuple[str, str, str, bytes]:
    """Owner, claim, response and outcome of a request. Raises InvalidRequest."""
    return _text(request.owner, "owner"), request.claim_id, _text(request.response_id, "response_id"), request.outcome


def new_conversation_of(request: pb.CreateConversationRequest) -> NewConversation:
    """The conversation that a request asks to make. Raises InvalidRequest."""
    return NewConversation(
        owner=_text(request.owner, "owner"),
        tree_key=_tree_key(request.conversation_id, "conversation_id"),
        id=request.conversation_id,
        metadata=request.metadata,
        items=_new_items(request.items),
        open_calls=_texts(request.open_call_ids, "open_call_ids"),
        created_at=request.created_at,
    )


def additions_of(request: pb.AddConversationItemsRequest) -> Additions:
    """The items that a request asks to append. Raises InvalidRequest."""
    return Additions(
        items=_new_items(request.items),
        opened_calls=_texts(request.opened_call_ids, "opened_call_ids"),
        closed_calls=_texts(request.closed_call_ids, "closed_call_ids"),
    )


def conversation_message(conversation: Conversation) -> pb.Conversation:
    """A conversation."""
    return pb.Conversation(id=conversation.id, created_at=conversation.created_at, metadata=conversation.metadata)


def item_message(item: Item) -> common.Item:
    """An item as the API shows it."""
    return common.Item(id=item.id, type=item.type, body=item.body)


def lifetime_of(request: pb.AcquireLeaseRequest | pb.RenewLeaseRequest | pb.TakeTurnRequest | pb.KeepTurnRequest) -> float:
    """The seconds that a lease is asked for. Raises InvalidRequest."""
    _check(request.lifetime_ms > 0, "lifetime_ms", "a lease without a lifetime is none")
    return request.lifetime_ms / 1000


def holder_of(request: pb.AcquireLeaseRequest | pb.TakeTurnRequest) -> str:
    """Who asks for a lease. Raises InvalidRequest."""
    _check(bool(request.holder), "holder", "holder is missing")
    return _text(request.holder, "holder")


def work_of(request: pb.EnqueueTurnRequest) -> NewWork:
    """The turn that a request asks to queue. Raises InvalidRequest."""
    return NewWork(
        owner=_text(request.owner, "owner"),
        tree_key=_tree_key(request.response_id, "response_id"),
        response_id=request.response_id,
        parent_id=_text(request.parent_response_id, "parent_response_id"),
        conversation_id=_text(request.conversation_id, "conversation_id"),
        model=_text(request.model, "model"),
        body=request.body,
        request=request.request,
        request_hash=hashlib.sha256(request.request).digest(),
        created_at=request.created_at,
    )


def taken_reply(turn: TakenTurn | None) -> pb.TakeTurnReply:
    """A turn that was taken, or that there was none."""
    if turn is None:
        return pb.TakeTurnReply()
    return pb.TakeTurnReply(
        taken=True,
        owner=turn.owner,
        response_id=turn.response_id,
        request=turn.request,
        attempt=turn.attempt,
        fencing_token=turn.token,
        round=turn.round,
    )


def events_of(request: pb.AppendEventsRequest) -> NewEvents:
    """The events that a request asks to append. Raises InvalidRequest."""
    numbers = [event.sequence_number for event in request.events]
    first = numbers[0] if numbers else 0
    _check(first >= 0, "events", "a sequence number is negative")
    _check(numbers == list(range(first, first + len(numbers))), "events", "the sequence numbers do not rise by one")
    types = [_text(event.type, "events") for event in request.events]
    return NewEvents(first, types, [event.data for event in request.events], request.ended)


def watch_replies(part: LogPart) -> Iterator[pb.WatchEventsReply]:
    """Events in messages of about 1 MiB, or that there will be no more of them."""
    if not part.events:
        yield pb.WatchEventsReply(lost_behind=part.lost_behind)
    for group in in_groups(part.events, _event_size):
        yield pb.WatchEventsReply(events=[pb.LoggedEvent(type=type, sequence_number=number, data=data) for number, type, data in group])


def key_claim_of(request: pb.ClaimIdempotencyKeyRequest) -> KeyClaim:
    """The claim of an idempotency key. Raises InvalidRequest."""
    _check(0 < len(request.key) <= LONGEST_KEY, "key", f"the key does not have 1..{LONGEST_KEY} characters")
    _check(request.lifetime_seconds > 0, "lifetime_seconds", "a key without a lifetime stands for nothing")
    return KeyClaim(
        owner=_text(request.owner, "owner"),
        key=_text(request.key, "key"),
        request_hash=request.request_hash,
        response_id=_text(request.response_id, "response_id"),
        seconds=request.lifetime_seconds,
    )


def with_tree_key(id: str, param: str) -> str:
    """An id that carries a tree key. Raises InvalidRequest."""
    _tree_key(id, param)
    return id


def checked_owner(owner: str) -> str:
    """The owner that a request names. Raises InvalidRequest."""
    return _text(owner, "owner")


def _check(holds: bool, param: str, why: str) -> None:
    if not holds:
        raise InvalidRequest(why=why, param=param)


def _text(value: str, param: str) -> str:
    """Postgres stores every character but one in text; bodies and prompts are bytes and have no such rule."""
    _check("\0" not in value, param, f"{param} has a NUL character")
    return value


def _tree_key(id: str, param: str) -> int:
    tree_key = tree_key_of(id)
    if tree_key is None:
        raise InvalidRequest(why=f"{param} carries no tree key", param=param)
    return tree_key


def _texts(values: Iterable[str], param: str) -> list[str]:
    return [_text(value, param) for value in values]


def _checked_spans(spans: Iterable[common.Span], param: str) -> Spans:
    checked = tuple(Span(span.first, span.end) for span in spans)
    _check(all(1 <= span.first < span.end for span in checked), param, f"{param} has a span that is empty or no span")
    return checked


def _new_items(items: Iterable[pb.NewItem]) -> NewItems:
    columns = NewItems([], [], [], [], [], [], [])
    for new in items:
        columns.ids.append(_text(new.item.id, "items"))
        columns.types.append(_text(new.item.type, "items"))
        columns.origins.append(_text(new.origin, "items"))
        columns.bodies.append(new.item.body)
        columns.prompts.append(new.prompt if new.HasField("prompt") else None)
        columns.tokens.append(new.tokens)
        columns.left_out.append(new.left_out)
    return columns


def _head(context: Context) -> pb.ContextHead:
    head = context.head
    return pb.ContextHead(
        status=_STATUS_NUMBERS[head.status],
        model=head.model,
        parent_response_id=head.parent_id,
        checkpoint=_spans(head.checkpoint),
        open_call_ids=head.open_calls,
        tokens=head.tokens,
        item_count=head.item_count,
        tree_full=head.tree_full,
        carried=head.carried,
        resume_state=head.resume_state,
    )


def _spans(spans: Spans) -> list[common.Span]:
    return [common.Span(first=span.first, end=span.end) for span in spans]


def _items(items: Iterable[Item]) -> list[common.Item]:
    return list(map(item_message, items))


def _found_item(item: FoundItem) -> pb.NewItem:
    shown = common.Item(id=item.id, type=item.type, body=item.body)
    return pb.NewItem(item=shown, prompt=item.prompt, origin=item.origin, tokens=item.tokens)


def _piece_size(piece: Piece) -> int:
    return len(piece.prompt)


def _item_size(item: Item) -> int:
    return len(item.body)


def _event_size(event: Event) -> int:
    return len(event.data)
