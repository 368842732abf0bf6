"""The cap on a tool's text holds to the byte and breaks no character."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator_svc.tools.caps import capped

CHARS = st.characters(categories=("L", "N", "Z", "S", "P", "Cc"))


def test_a_text_that_fits_is_left_alone() -> None:
    assert capped("", 0) == ""
    assert capped("ää", 4) == "ää"
    assert capped("a" * 100, 100) == "a" * 100


def test_a_cut_says_what_was_left_out() -> None:
    assert capped("a" * 1000, 50) == "a" * 18 + "\n[cut: 18 of 1000 bytes shown]"


def test_a_cut_falls_between_characters() -> None:
    assert capped("€" * 100, 62).startswith("€" * 10 + "\n[cut: 30 of 300")


def test_half_of_a_surrogate_pair_does_not_stop_the_cut() -> None:
    """B084"""
    assert capped("\ud800" + "a" * 1000, 100).encode()


@given(st.text(CHARS, max_size=300), st.integers(0, 400))
def test_the_cap_holds_for_any_text(text: str, max_bytes: int) -> None:
    """B084"""
    shown = capped(text, max_bytes)
    assert len(shown.encode()) <= max_bytes
    assert (shown == text) == (len(text.encode()) <= max_bytes)
    kept, mark, _ = shown.rpartition("\n[cut: ")
    assert text.startswith(kept if mark else shown)
