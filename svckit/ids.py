"""Ids that carry the shard: `<prefix>_` + 16 hex digits of tree key + 24 hex digits of time-ordered unique part.

This file makes, writes and reads ids; what an id names is its user's business.
"""

import re
import secrets
import time
from dataclasses import dataclass

_ID = re.compile(r"[a-z]+_([0-9a-f]{16})[0-9a-f]{24}\Z")
_MAX_TREE_KEY = (1 << 63) - 1
_UNIQUE_BITS = 96


@dataclass(frozen=True, slots=True)
class IdBlock:
    """The ids of one response and all that it makes: the same tree key, consecutive unique parts."""

    tree_key: int
    unique: int

    def id(self, prefix: str, offset: int = 0) -> str:
        """The id `offset` places behind the start of the block; the same arguments give the same id."""
        unique = (self.unique + offset) % (1 << _UNIQUE_BITS)
        return f"{prefix}_{self.tree_key:016x}{unique:024x}"


def new_tree_key() -> int:
    """A random tree key, 63 bits."""
    return secrets.randbits(63)


def new_block(tree_key: int) -> IdBlock:
    """A block whose unique part is 48 bits of milliseconds since 1970 and 48 random bits."""
    return IdBlock(tree_key, (time.time_ns() // 1_000_000 << 48) | secrets.randbits(48))


def block_of(id: str) -> IdBlock | None:
    """The block whose first id has the numbers of `id`, or None for a string that is no id of ours."""
    key = tree_key_of(id)
    return None if key is None else IdBlock(key, int(id[-24:], 16))


def moved(id: str, tree_key: int) -> str:
    """The same id in another tree."""
    prefix, _, numbers = id.rpartition("_")
    return f"{prefix}_{tree_key:016x}{numbers[16:]}"


def tree_key_of(id: str) -> int | None:
    """The tree key that an id carries, or None for a string that is no id of ours."""
    match = _ID.match(id)
    if match is None:
        return None
    key = int(match[1], 16)
    return key if key <= _MAX_TREE_KEY else None
