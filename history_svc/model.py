"""The values of history, and what can be said of them without a database: counting, paging, putting prompts together. No IO, no protos."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from history_svc.columns import Blobs, Flags, Ints, Texts

PIECE_BYTES = 64 * 1024
MESSAGE_BYTES = 1024 * 1024

T = TypeVar("T")


class Span(NamedTuple):
    """Consecutive item numbers; `end` is one past the last."""

    first: int
    end: int


Spans = tuple[Span, ...]


class Piece(NamedTuple):
    """One or several neighbouring prompts, joined with commas; those of one provider stand alone."""

    prompt: bytes
    origin: str


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of the response that a turn continues from."""

    status: str
    model: str
    parent_id: str
    open_calls: tuple[str, ...]
    checkpoint: Spans
    tokens: int
    tree_full: bool
    carried: bytes
    resume_state: bytes

    @property
    def item_count(self) -> int:
        """How many items the checkpoint names."""
        return count_of(self.checkpoint)


@dataclass(frozen=True, slots=True)
class Context:
    """A loaded context: `bytes` is what its prompts take."""

    head: Head
    pieces: list[Piece]
    bytes: int


class Item(NamedTuple):
    """An item as the API shows it; the body has no id, and an empty one is not shown."""

    id: str
    type: str
    body: bytes


class FoundItem(NamedTuple):
    """A stored item with what the model sees of it; a prompt of None is the body."""

    id: str
    type: str
    body: bytes
    origin: str
    prompt: bytes | None
    tokens: int
    seq: int


@dataclass(frozen=True, slots=True)
class NewItems:
    """Items to save, one column each; a prompt of None is the body's own, and what is left out stands in no checkpoint and no head."""

    ids: list[str]
    types: list[str]
    origins: list[str]
    bodies: list[bytes]
    prompts: list[bytes | None]
    tokens: list[int]
    left_out: list[bool]

    def columns(self) -> dict[str, object]:
        """The columns by the names that the statements know them under."""
        return {
            "item_ids": Texts(self.ids),
            "types": Texts(self.types),
            "origins": Texts(self.origins),
            "bodies": Blobs(self.bodies),
            "prompts": Blobs(self.prompts),
            "item_tokens": Ints(self.tokens),
            "left_out": Flags(self.left_out),
        }

    def answered_calls(self) -> list[str]:
        """The call_ids of the outputs among the items."""
        outputs = ((body, prompt) for type, body, prompt in zip(self.types, self.bodies, self.prompts, strict=True) if is_output(type))
        return [call_id for body, prompt in outputs if (call_id := call_id_of(body or prompt or b""))]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn to save; its first `inputs` items are input. Times are seconds since 1970."""

    owner: str
    tree_key: int
    response_id: str
    round: int
    fencing_token: int
    must_hold: bool
    content_hash: bytes
    parent_id: str
    conversation_id: str
    base: Spans
    base_tree_key: int
    items: NewItems
    inputs: int
    status: str
    model: str
    open_calls: list[str]
    closed_calls: list[str]
    body: bytes
    carried: bytes
    resume_state: bytes
    unlisted: bool
    head_removed: Spans
    created_at: int
    completed_at: int | None


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a commit."""

    checkpoint: Spans
    repeated: bool


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response with its output items; the body has neither id nor output."""

    status: str
    body: bytes
    output: list[Item]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page of a list; `after` is the id of the last item of the page before, or empty."""

    limit: int
    after: str
    descending: bool


@dataclass(frozen=True, slots=True)
class Page:
    """A page of items in the order asked for."""

    items: list[Item]
    more: bool


class ClaimState(NamedTuple):
    """What a claim has come to; the outcome is empty until it is settled."""

    granted: bool
    settled: bool
    outcome: bytes


@dataclass(frozen=True, slots=True)
class NewConversation:
    """A conversation to make, with its first items."""

    owner: str
    tree_key: int
    id: str
    metadata: bytes
    items: NewItems
    open_calls: list[str]
    created_at: int


class Conversation(NamedTuple):
    """A conversation as the API shows it."""

    id: str
    created_at: int
    metadata: bytes


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation with what it lists and with its head, as they were at a revision."""

    conversation: Conversation
    revision: int
    listed: Spans
    head: Spans

    @property
    def length(self) -> int:
        """How many items the head names."""
        return count_of(self.head)


@dataclass(frozen=True, slots=True)
class Additions:
    """Items to append to a conversation, with the calls that they open and close."""

    items: NewItems
    opened_calls: list[str]
    closed_calls: list[str]


class StoredItem(NamedTuple):
    """An item with its number in the tree; an empty body is not shown."""

    number: int
    id: str
    type: str
    body: bytes
    prompt: bytes


class Removal(NamedTuple):
    """What goes out of a conversation that is at a revision."""

    revision: int
    listed_removed: list[int]
    head_removed: list[int]
    closed_calls: list[str]


@dataclass(frozen=True, slots=True)
class NewWork:
    """A turn to queue, with the response object that shows it."""

    owner: str
    tree_key: int
    response_id: str
    parent_id: str
    conversation_id: str
    model: str
    body: bytes
    request: bytes
    request_hash: bytes
    created_at: int


class TakenTurn(NamedTuple):
    """A turn that was taken, with the token of its lease and the last round that was saved."""

    owner: str
    response_id: str
    request: bytes
    attempt: int
    token: int
    round: int


class Event(NamedTuple):
    """One stream event of a turn."""

    number: int
    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class NewEvents:
    """Neighbouring events to append to a log; with `ended` the last is the turn's last."""

    first_number: int
    types: list[str]
    events: list[bytes]
    ended: bool


@dataclass(frozen=True, slots=True)
class LogPart:
    """The next events of a log; `ended` when no other will come behind them; a turn ends a little before its log.

    `lost_behind` is the number of the last event where the turn's own last ones will never come.
    """

    events: list[Event]
    ended: bool
    turn_ended: bool
    lost_behind: int | None = None


class KeyClaim(NamedTuple):
    """An idempotency key and the response that its caller would make."""

    owner: str
    key: str
    request_hash: bytes
    response_id: str
    seconds: int


def columns_of(spans: Spans) -> tuple[Ints, Ints]:
    """The first numbers and the ends of a list of spans."""
    return Ints([span.first for span in spans]), Ints([span.end for span in spans])


def spans_of(firsts: Sequence[int], ends: Sequence[int]) -> Spans:
    """A list of spans from its two columns."""
    return tuple(map(Span, firsts, ends))


def count_of(spans: Iterable[Span]) -> int:
    """How many items a list of spans names."""
    return sum(span.end - span.first for span in spans)


def places_of(spans: Spans, numbers: Iterable[int]) -> list[int]:
    """The places, from 0, at which a list of spans names any of `numbers`."""
    wanted = list(numbers)
    places = []
    passed = 0
    for span in spans:
        places += [passed + number - span.first for number in wanted if span.first <= number < span.end]
        passed += span.end - span.first
    return places


def part_of(spans: Spans, start: int, stop: int) -> Spans:
    """The part of a list of spans between two places; `stop` is one past the last."""
    part = []
    passed = 0
    for span in spans:
        first = max(span.first, span.first + start - passed)
        end = min(span.end, span.first + stop - passed)
        if first < end:
            part.append(Span(first, end))
        passed += span.end - span.first
    return tuple(part)


def places_behind(total: int, after: Sequence[int], descending: bool) -> range:
    """The places of a list in the order of a walk, behind the item at the places `after`; all of them for the first page.

    An id that stands at several places counts at the one farthest along, so that walking the pages always ends.
    """
    if descending:
        return range((min(after) if after else total) - 1, -1, -1)
    return range(max(after) + 1 if after else 0, total)


def newest_shown(items: Iterable[StoredItem], listed: Spans) -> StoredItem | None:
    """The newest of some items that a list has and the API shows."""
    shown = [item for item in items if item.body and places_of(listed, [item.number])]
    return max(shown, default=None)


def is_output(type: str) -> bool:
    """Is an item of this type the output of a call?"""
    return type.endswith("_output")


class _WithCallId(msgspec.Struct):
    call_id: str = ""


def call_id_of(content: bytes) -> str:
    """The call_id in an item's body or prompt; empty where there is none."""
    try:
        elements = msgspec.json.decode(b"[%b]" % content, type=list[_WithCallId])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return next((element.call_id for element in elements if element.call_id), "")


def spellings_of(call_id: str) -> tuple[bytes, bytes]:
    """How a call_id stands in JSON: as it is, and in ASCII."""
    return msgspec.json.encode(call_id), json.dumps(call_id).encode()


def other_half(candidates: Sequence[tuple[int, bytes]], call_id: str, *, last: bool) -> int | None:
    """The number of the first, or last, item that has a call_id; ids of calls may come again, and the nearest one belongs together."""
    numbers = [number for number, content in candidates if call_id_of(content) == call_id]
    return numbers[-1 if last else 0] if numbers else None


def body_with(body: bytes, **fields: object) -> bytes:
    """A response's body with other values for some of its fields; a body that is no JSON object stays as it is."""
    try:
        known = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    return msgspec.json.encode({**known, **fields})


def events_behind(first_number: int, types: Sequence[str], events: Sequence[bytes], after: int) -> list[Event]:
    """The events of a batch behind a number."""
    batch = (Event(first_number + place, *event) for place, event in enumerate(zip(types, events, strict=True)))
    return [event for event in batch if event.number > after]


def taken_apart(prompts: bytes, lengths: Sequence[int], origins: Sequence[str]) -> Iterator[Piece]:
    """The single prompts of a joined row; empty ones were not joined."""
    offset = 0
    for length, origin in zip(lengths, origins, strict=True):
        if length:
            yield Piece(prompts[offset : offset + length], origin)
            offset += length + 1


def gathered(pieces: Iterable[Piece]) -> list[Piece]:
    """The same prompts in fewer pieces: neighbours of no provider are joined up to 64 KiB."""
    fewer: list[Piece] = []
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        if waiting and (piece.origin or size + len(piece.prompt) > PIECE_BYTES):
            fewer.append(Piece(b",".join(waiting), ""))
            waiting, size = [], 0
        if piece.origin:
            fewer.append(piece)
        else:
            waiting.append(piece.prompt)
            size += len(piece.prompt)
    if waiting:
        fewer.append(Piece(b",".join(waiting), ""))
    return fewer


def in_groups(parts: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """The parts in groups of about 1 MiB; a larger part is a group of its own."""
    group: list[T] = []
    size = 0
    for part in parts:
        if group and size + size_of(part) > MESSAGE_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += size_of(part)
    if group:
        yield group
