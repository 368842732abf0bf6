"""Ids carry the shard, sort by time, and strange strings are no ids."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svckit.ids import IdBlock, new_block, new_tree_key, tree_key_of

KEYS = st.integers(0, 2**63 - 1)


@given(KEYS, st.integers(0, 2**96 - 1), st.integers(0, 10_000))
def test_every_id_of_a_block_carries_its_tree_key(tree_key: int, unique: int, offset: int) -> None:
    made = IdBlock(tree_key, unique).id("msg", offset)
    assert re.fullmatch("msg_[0-9a-f]{40}", made)
    assert tree_key_of(made) == tree_key


def test_ids_of_a_block_differ_and_come_out_the_same_again() -> None:
    block = new_block(new_tree_key())
    ids = [block.id("fc", offset) for offset in range(1000)]
    assert len(set(ids)) == 1000
    assert ids == sorted(ids)
    assert ids == [block.id("fc", offset) for offset in range(1000)]


def test_new_tree_keys_are_63_bits_and_do_not_repeat() -> None:
    keys = {new_tree_key() for _ in range(10_000)}
    assert len(keys) == 10_000
    assert all(0 <= key < 2**63 for key in keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "resp",
        "resp_",
        f"resp_{'a' * 39}",
        f"resp_{'a' * 41}",
        f"resp_{'1' * 40}\n",
        f"resp_{'G' * 40}",
        f"RESP_{'1' * 40}",
        f"_{'1' * 40}",
        f"resp_{'f' * 40}",
        f"resp_{'١' * 40}",
        f"x resp_{'1' * 40}",
    ],
)
def test_a_string_that_is_no_id_of_ours_has_no_tree_key(text: str) -> None:
    assert tree_key_of(text) is None
