"""Counting, paging and putting prompts together, held against the plain list of what is meant."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from history_svc.model import (
    MESSAGE_BYTES,
    PIECE_BYTES,
    Piece,
    Span,
    Spans,
    count_of,
    gathered,
    in_groups,
    part_of,
    places_behind,
    places_of,
    spans_of,
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
