"""Under which ids the calls of a background turn are claimed, so that none of them is run twice. Pure.

A process may die between the start of a call and the save of its round. The next one runs that round again, and the model may then make the
same call under another call id. So an id is made of what the call is: its place in the turn, its tool and its arguments.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from orchestrator_svc.tools.base import ToolCall
from orchestrator_svc.turn.state import Turn


def claimed(turn: Turn, calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls of one round with their claims; one that a client has approved has its own. Equal calls are told apart by their order."""
    seen: Counter[bytes] = Counter()
    found: list[ToolCall] = []
    for call in calls:
        what = msgspec.json.encode((turn.response_id, turn.saves, call.tool.flat, call.arguments), order="deterministic")
        found.append(call if call.claim_id else replace(call, claim_id=_claim_id(turn, what, seen[what])))
        seen[what] += 1
    return tuple(found)


def _claim_id(turn: Turn, what: bytes, nth: int) -> str:
    digest = hashlib.sha256(b"%d:%b" % (nth, what)).hexdigest()
    return f"call_{turn.output.ids.tree_key:016x}{digest[:24]}"
