"""The functions over lists of ranges, in the database, held against plain lists of numbers."""

import random
from collections.abc import Iterator

import psycopg
import pytest

CASES = 150


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as opened:
        yield opened


def ranges(chance: random.Random, most: int = 5) -> list[tuple[int, int]]:
    """A list of ranges that share no number, in any order."""
    bounds = sorted(chance.sample(range(1, 40), 2 * chance.randint(0, most)))
    found = list(zip(bounds[::2], bounds[1::2], strict=True))
    chance.shuffle(found)
    return found


def numbers(found: list[tuple[int, int]]) -> list[int]:
    return [number for first, end in found for number in range(first, end)]


def asked(connection: psycopg.Connection, call: str, *lists: list[tuple[int, int]]) -> list[int]:
    """The numbers of the list that a function gives for some lists."""
    values = [column for found in lists for column in ([first for first, _ in found], [end for _, end in found])]
    call = call.replace("?", "ranges_of(%s::int[], %s::int[])")
    firsts, ends = connection.execute(f"select firsts_of(r), ends_of(r) from (select {call} as r)", values).fetchone()
    return numbers(list(zip(firsts, ends, strict=True)))


def test_lists_are_appended_in_order(connection: psycopg.Connection) -> None:
    chance = random.Random(1)
    for _ in range(CASES):
        one, more = ranges(chance), ranges(chance)
        assert asked(connection, "ranges_appended(?, ?)", one, more) == numbers(one) + numbers(more)


def test_neighbours_become_one_range(connection: psycopg.Connection) -> None:
    found = connection.execute("""select ranges_appended('{"[1,3)"}', '{"[3,5)","[9,10)"}')::text""").fetchone()
    assert found == ('{"[1,5)","[9,10)"}',)


def test_numbers_are_taken_out_and_the_rest_keeps_its_order(connection: psycopg.Connection) -> None:
    chance = random.Random(2)
    for _ in range(CASES):
        one, removed = ranges(chance), ranges(chance)
        gone = set(numbers(removed))
        assert asked(connection, "ranges_without(?, ?)", one, removed) == [n for n in numbers(one) if n not in gone]
        assert asked(connection, "ranges_within(?, ?)", one, removed) == [n for n in numbers(one) if n in gone]


def test_items_left_out_leave_gaps(connection: psycopg.Connection) -> None:
    chance = random.Random(3)
    for _ in range(CASES):
        left_out = [chance.random() < 0.4 for _ in range(chance.randint(0, 12))]
        firsts, ends = connection.execute(
            "select firsts_of(r), ends_of(r) from (select ranges_of_items(7, %s::boolean[]) as r)", [left_out]
        ).fetchone()
        assert numbers(list(zip(firsts, ends, strict=True))) == [7 + n for n, out in enumerate(left_out) if not out]


@pytest.mark.parametrize(
    ("before", "closed", "opened", "after"),
    [
        ([], [], [], []),
        (["a", "b"], ["a"], ["c"], ["b", "c"]),
        (["a"], ["a"], ["a"], ["a"]),
        (["a"], ["x"], ["b", "a", "b"], ["a", "b"]),
    ],
)
def test_open_calls_are_those_not_closed_and_those_opened(
    connection: psycopg.Connection, before: list[str], closed: list[str], opened: list[str], after: list[str]
) -> None:
    found = connection.execute("select calls_after(%s::text[], %s::text[], %s::text[])", [before, closed, opened]).fetchone()
    assert found == (after,)
