"""The engine's names for tools. Pure.

A flat name is a function of a tool's own kind, group and name, never of the tools around it: history that was rendered with it stays valid.
"""

import hashlib
import re

_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ILLEGAL_CHARS = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS = 10
_PREFIX_CHARS = 64 - _HASH_CHARS - 1


def flat_name(kind: str, group: str, name: str) -> str:
    """The engine's name for a tool: `group__name` where that is legal, else its readable start and a hash of all three."""
    flat = f"{group}__{name}" if group else name
    if _LEGAL.match(flat):
        return flat
    digest = hashlib.sha256("\x00".join((kind, group, name)).encode("utf-8", "replace")).hexdigest()[:_HASH_CHARS]
    return f"{_ILLEGAL_CHARS.sub('_', flat)[:_PREFIX_CHARS]}_{digest}"
