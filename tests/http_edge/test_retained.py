"""What WebSocket connections keep: bounded by number and bytes, each and together, the least recently used going first."""

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from http_edge.metrics import RETAINED_BYTES
from http_edge.retained import Retained, Shelf
from http_edge.settings import EdgeSettings


def retained(count: int = 3, each: int = 100, total: int = 1000) -> Retained:
    return Retained(EdgeSettings(websocket_retained_responses=count, websocket_retained_bytes=each, websocket_total_retained_bytes=total))


def kept(shelf: Shelf, *ids: str) -> list[str]:
    return [one for one in ids if shelf._kept.get(one) is not None]


def test_the_least_recently_used_goes_first() -> None:
    with retained(count=2).shelf() as shelf:
        shelf.put("a", b"1")
        shelf.put("b", b"2")
        assert shelf.get("a") == b"1"
        shelf.put("c", b"3")
        assert [shelf.get(one) for one in "abc"] == [b"1", None, b"3"]


def test_bytes_are_bounded_and_what_is_too_large_replaces_nothing() -> None:
    with retained(count=10, each=100).shelf() as shelf:
        shelf.put("a", b"x" * 60)
        shelf.put("b", b"x" * 60)
        assert kept(shelf, "a", "b") == ["b"]
        shelf.put("c", b"x" * 101)
        assert kept(shelf, "b", "c") == ["b"]


def test_a_new_value_takes_the_place_of_the_old_one() -> None:
    with retained(each=100).shelf() as shelf:
        for n in range(5):
            shelf.put("a", bytes([n]) * 90)
        assert shelf.get("a") == bytes([4]) * 90


def test_connections_do_not_see_each_other() -> None:
    all_kept = retained()
    with all_kept.shelf() as one, all_kept.shelf() as other:
        one.put("a", b"1")
        assert other.get("a") is None
        other.drop("a")
        assert one.get("a") == b"1"


def test_all_connections_together_are_bounded_and_a_closed_one_keeps_nothing() -> None:
    all_kept, before = retained(count=3, each=100, total=150), RETAINED_BYTES._value.get()
    with all_kept.shelf() as one, all_kept.shelf() as other:
        one.put("a", b"x" * 50)
        one.put("b", b"x" * 50)
        one.get("a")
        other.put("c", b"x" * 80)
        assert (kept(one, "a", "b"), kept(other, "c")) == (["a"], ["c"])
        assert RETAINED_BYTES._value.get() - before == 130
    assert RETAINED_BYTES._value.get() == before


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["put", "get", "drop", "clear"]), st.sampled_from("abcdef"), st.integers(0, 60)),
    max_size=80,
)


@given(steps)
def test_no_order_of_events_passes_a_bound_or_loses_count(taken: list[tuple[int, str, str, int]]) -> None:
    all_kept, before = retained(count=3, each=100, total=120), RETAINED_BYTES._value.get()
    with ExitStack() as stack:
        shelves = [stack.enter_context(all_kept.shelf()) for _ in range(3)]
        for index, verb, name, size in taken:
            shelf = shelves[index]
            if verb == "put":
                shelf.put(name, b"x" * size)
                assert shelf.get(name) == b"x" * size
            elif verb == "clear":
                shelf.clear()
            else:
                getattr(shelf, verb)(name)
            sizes = [sum(map(len, one._kept.values())) for one in shelves]
            assert max(sizes) <= 100
            assert sum(sizes) <= 120
            assert max(len(one._kept) for one in shelves) <= 3
            assert RETAINED_BYTES._value.get() - before == sum(sizes)
    assert RETAINED_BYTES._value.get() == before
