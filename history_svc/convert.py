"""Between the messages of `turnkeep.history.v1` and the values of `model.py`. Says what a valid request is; asks no database."""

from collections.abc import Iterable, Iterator

from history_svc.errors import InvalidRequest
from history_svc.model import (
    ClaimState,
    Context,
    FoundItem,
    Item,
    NewItems,
    Page,
    PageRequest,
    Piece,
    Saved,
    Span,
    Spans,
    StoredResponse,
    Turn,
    in_groups,
)
from svckit.ids import tree_key_of
from turnkeep.common.v1 import common_pb2 as common
from turnkeep.history.v1 import history_pb2 as pb

DEFAULT_PAGE = 20
LARGEST_PAGE = 100
MOST_ITEM_IDS = 1000

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
        base=_base(request.base),
        base_tree_key=_tree_key(request.base_response_id, "base_response_id") if request.base_response_id else tree_key,
        items=_new_items(request.items),
        inputs=request.input_count,
        status=_STATUSES[request.status],
        model=_text(request.model, "model"),
        open_calls=[_text(call_id, "open_call_ids") for call_id in request.open_call_ids],
        body=request.body,
        carried=request.carried,
        created_at=request.created_at,
        completed_at=request.completed_at or None,
    )


def page_request_of(request: pb.ListInputItemsRequest) -> PageRequest:
    """The page that a request asks for. Raises InvalidRequest."""
    limit = request.page_size or DEFAULT_PAGE
    _check(1 <= limit <= LARGEST_PAGE, "limit", f"the page size is not in 1..{LARGEST_PAGE}")
    return PageRequest(limit, _text(request.page_token, "after"), request.order != pb.ORDER_ASC)


def context_replies(context: Context) -> Iterator[pb.LoadContextReply]:
    """A context in messages of about 1 MiB, the first with the head."""
    head: pb.ContextHead | None = _head(context)
    for pieces in in_groups(context.pieces, _piece_size):
        yield pb.LoadContextReply(head=head, items=[pb.ContextItem(prompt=prompt, origin=origin) for prompt, origin in pieces])
        head = None
    if head is not None:
        yield pb.LoadContextReply(head=head)


def commit_reply(saved: Saved) -> pb.CommitTurnReply:
    """What became of a commit."""
    return pb.CommitTurnReply(checkpoint=_spans(saved.checkpoint), repeated_save=saved.repeated)


def response_reply(response: StoredResponse) -> pb.GetResponseReply:
    """A stored response."""
    return pb.GetResponseReply(body=response.body, status=_STATUS_NUMBERS[response.status], output=_items(response.output))


def page_replies(page: Page) -> Iterator[pb.ListInputItemsReply]:
    """A page in messages of about 1 MiB, the last with the token of the next page."""
    groups = list(in_groups(page.items, _item_size)) or [[]]
    token = page.items[-1].id if page.more else ""
    for place, group in enumerate(groups, start=1):
        yield pb.ListInputItemsReply(items=_items(group), next_page_token=token if place == len(groups) else "")


def item_ids_of(request: pb.FindItemsRequest) -> list[str]:
    """The ids that a request asks for. Raises InvalidRequest."""
    _check(len(request.item_ids) <= MOST_ITEM_IDS, "item_ids", f"more than {MOST_ITEM_IDS} ids are asked for")
    return list(request.item_ids)


def found_replies(items: list[FoundItem]) -> Iterator[pb.FindItemsReply]:
    """Found items in messages of about 1 MiB."""
    for group in in_groups(items, found_size):
        yield pb.FindItemsReply(items=map(_found_item, group))


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


def _base(spans: Iterable[common.Span]) -> Spans:
    base = tuple(Span(span.first, span.end) for span in spans)
    _check(all(1 <= span.first < span.end for span in base), "base", "base has a span that is empty or no span")
    return base


def _new_items(items: Iterable[pb.NewItem]) -> NewItems:
    columns = NewItems([], [], [], [], [], [])
    for new in items:
        columns.ids.append(_text(new.item.id, "items"))
        columns.types.append(_text(new.item.type, "items"))
        columns.origins.append(_text(new.origin, "items"))
        columns.bodies.append(new.item.body)
        columns.prompts.append(new.prompt if new.HasField("prompt") else None)
        columns.tokens.append(new.tokens)
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
    )


def _spans(spans: Spans) -> list[common.Span]:
    return [common.Span(first=span.first, end=span.end) for span in spans]


def _items(items: Iterable[Item]) -> list[common.Item]:
    return [common.Item(id=item.id, type=item.type, body=item.body) for item in items]


def _found_item(item: FoundItem) -> pb.NewItem:
    shown = common.Item(id=item.id, type=item.type, body=item.body)
    return pb.NewItem(item=shown, prompt=item.prompt, origin=item.origin, tokens=item.tokens)


def _piece_size(piece: Piece) -> int:
    return len(piece.prompt)


def _item_size(item: Item) -> int:
    return len(item.body)
