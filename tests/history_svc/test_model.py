"""Counting, paging and putting prompts together, held against the plain list of what is meant."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from history_svc.model import (
    MESSAGE_BYTES,
    PIECE_BYTES,
    Event,
    Piece,
    Span,
    Spans,
    StoredItem,
    body_with,
    call_id_of,
    count_of,
    events_behind,
    gathered,
    in_groups,
    newest_shown,
    other_half,
    part_of,
    places_behind,
    places_of,
    spans_of,
    spellings_of,
    taken_apart,
)

SPANS = st.lists(st.builds(lambda first, length: Span(first, first + length), st.integers(1, 50), st.integers(1, 9)), max_size=8).map(tuple)
SIZES = st.one_of(st.integers(1, 2000), st.integers(PIECE_BYTES - 5, PIECE_BYTES + 5))


def numbers(spans: Spans) -> list[int]:
    """What a list of spans stands for."""
    return [number for span in spans for number in range(*span)]


@given(SPANS)
def test_spans_are_counted_without_being_written_out(spans: Spans) -> None:
    assert count_of(spans) == len(numbers(spans))
    assert spans_of([span.first for span in spans], [span.end for span in spans]) == spans


@given(SPANS, st.lists(st.integers(1, 60), max_size=3, unique=True))
def test_places_are_those_in_the_list(spans: Spans, wanted: list[int]) -> None:
    assert sorted(places_of(spans, wanted)) == [place for place, number in enumerate(numbers(spans)) if number in wanted]


@given(SPANS, st.integers(0, 80), st.integers(0, 80))
def test_a_part_of_spans_is_a_part_of_the_list(spans: Spans, start: int, stop: int) -> None:
    assert numbers(part_of(spans, start, stop)) == numbers(spans)[start:stop]


@given(st.integers(0, 60), st.integers(1, 25), st.booleans())
def test_pages_cover_a_list_once(total: int, limit: int, descending: bool) -> None:
    walked = list(places_behind(total, [], descending)[:limit])
    while rest := places_behind(total, walked[-1:], descending) if walked else ():
        walked += rest[:limit]
    assert walked == (list(range(total))[::-1] if descending else list(range(total)))


def test_an_id_at_several_places_counts_at_the_farthest() -> None:
    assert list(places_behind(6, [1, 3], descending=False)) == [4, 5]
    assert list(places_behind(6, [1, 3], descending=True)) == [0]


@given(st.lists(st.tuples(st.binary(max_size=5), st.sampled_from(["", "acme"]))))
def test_a_joined_row_comes_apart_into_what_was_joined(prompts: list[tuple[bytes, str]]) -> None:
    joined = b",".join(prompt for prompt, _ in prompts if prompt)

    pieces = list(taken_apart(joined, [len(prompt) for prompt, _ in prompts], [origin for _, origin in prompts]))

    assert pieces == [Piece(prompt, origin) for prompt, origin in prompts if prompt]


@given(st.lists(st.tuples(SIZES, st.sampled_from(["", "", "", "acme"])), max_size=12))
def test_gathering_keeps_every_byte_and_leaves_opaque_prompts_alone(sizes: list[tuple[int, str]]) -> None:
    pieces = [Piece(bytes([n % 256]) * size, origin) for n, (size, origin) in enumerate(sizes)]

    fewer = gathered(pieces)

    assert b",".join(piece.prompt for piece in fewer) == b",".join(piece.prompt for piece in pieces)
    assert [piece for piece in fewer if piece.origin] == [piece for piece in pieces if piece.origin]
    assert all(len(piece.prompt) <= PIECE_BYTES + len(pieces) or piece in pieces for piece in fewer)


@given(st.lists(st.integers(1, MESSAGE_BYTES + 10), max_size=12))
def test_groups_are_small_unless_one_part_is_large(sizes: list[int]) -> None:
    groups = list(in_groups(sizes, lambda size: size))

    assert [size for group in groups for size in group] == sizes
    assert all(sum(group) <= MESSAGE_BYTES or len(group) == 1 for group in groups)
    assert all(sum(left) + right[0] > MESSAGE_BYTES for left, right in pairwise(groups))


@given(st.text(min_size=1))
def test_a_call_id_is_found_however_it_is_spelled(call_id: str) -> None:
    for spelling in spellings_of(call_id):
        assert call_id_of(b'{"type":"function_call","call_id":%b,"name":"f"}' % spelling) == call_id
        assert call_id_of(b'{"type":"message"},{"call_id":%b}' % spelling) == call_id


def test_what_has_no_call_id_has_an_empty_one() -> None:
    assert [call_id_of(content) for content in (b"", b"{}", b"no JSON", b'{"call_id":7}', b"\xff")] == [""] * 5


def test_the_other_half_is_the_nearest_that_has_the_very_call_id() -> None:
    candidates = [(4, b'{"call_id":"call_10"}'), (5, b'{"call_id":"call_1"}'), (9, b'{"call_id":"call_1"}')]

    assert other_half(candidates, "call_1", last=False) == 5
    assert other_half(candidates, "call_1", last=True) == 9
    assert other_half(candidates, "call_2", last=True) is None


def test_the_newest_item_that_is_listed_and_shown_is_meant() -> None:
    items = [
        StoredItem(9, "a", "m", b"x", b""),
        StoredItem(7, "a", "m", b"", b"y"),
        StoredItem(5, "a", "m", b"x", b""),
        StoredItem(3, "a", "m", b"x", b""),
    ]

    assert newest_shown(items, (Span(1, 8),)) == items[2]
    assert newest_shown(items, (Span(1, 3),)) is None


def test_a_body_keeps_what_is_not_changed_byte_for_byte() -> None:
    body = b'{"b":1.50,"status":"queued","a":{"z":1e3,"y":"\\u00e9"}}'

    assert body_with(body, status="failed", error=None) == b'{"b":1.50,"status":"failed","a":{"z":1e3,"y":"\\u00e9"},"error":null}'
    assert body_with(b"no JSON", status="failed") == b"no JSON"


def test_events_of_a_batch_are_those_behind_a_number() -> None:
    assert events_behind(5, ["a", "b", "c"], [b"1", b"2", b"3"], 5) == [Event(6, "b", b"2"), Event(7, "c", b"3")]
