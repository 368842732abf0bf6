"""The values of history, and what can be said of them without a database: counting, paging, putting prompts together. No IO, no protos."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

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


@dataclass(frozen=True, slots=True)
class NewItems:
    """Items to save, one column each; a prompt of None is the body's own."""

    ids: list[str]
    types: list[str]
    origins: list[str]
    bodies: list[bytes]
    prompts: list[bytes | None]
    tokens: list[int]


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
    body: bytes
    carried: bytes
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
