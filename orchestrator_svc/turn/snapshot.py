"""What a process needs to go on with a background turn of another: the request as it was queued, and how far the turn was at its last save.

What is stored of the turn anyway, its items and its context, is not repeated here. This file is pure; `opening` loads what is stored.
"""

from collections.abc import Sequence

from msgspec import Struct, msgpack
from msgspec.structs import replace

from orchestrator_svc.context.parent import Span
from orchestrator_svc.items import Item
from orchestrator_svc.request import Asked
from orchestrator_svc.tools.base import Citation
from orchestrator_svc.turn.events import Usage
from orchestrator_svc.turn.state import Phase, Turn
from svckit.ids import IdBlock, block_of


class Queued(Struct, frozen=True):
    """A turn that waits to be run, under the id that it was promised. `created_at` is in seconds since 1970."""

    response_id: str
    asked: Asked
    created_at: int

    @property
    def block(self) -> IdBlock:
        """The ids of the turn and of all that it makes."""
        block = block_of(self.response_id)
        assert block is not None
        return block


class _Snapshot(Struct, frozen=True):
    """A turn between two rounds: no item is open and no call runs. The fields are those of Turn and Output, `base` that of its parent."""

    base: tuple[Span, ...]
    round: int
    retried: bool
    usage: Usage | None
    calls_made: int
    at: int | None
    silenced: bool
    has_compacted: bool
    compacted_tokens: int
    compaction_failed: bool
    last_estimate: int
    last_counted: int
    next_id: int
    sequence: int
    announced: int
    ordered: int
    size: int
    call_ids: frozenset[str]
    citations: tuple[Citation, ...]


def write_queued(queued: Queued) -> bytes:
    """The bytes to store with a turn that waits."""
    return msgpack.encode(queued)


def read_queued(data: bytes) -> Queued:
    """The turn that was queued. Raises msgspec.MsgspecError for what another build has written and this one cannot read."""
    return msgpack.decode(data, type=Queued)


def write(turn: Turn) -> bytes:
    """The bytes to store with a turn that goes on."""
    output = turn.output
    snapshot = _Snapshot(
        base=turn.parent.base,
        round=turn.round,
        retried=turn.retried,
        usage=turn.usage,
        calls_made=turn.calls_made,
        at=turn.at,
        silenced=turn.silenced,
        has_compacted=turn.has_compacted or turn.compacted_from is not None,
        compacted_tokens=turn.compacted_tokens,
        compaction_failed=turn.compaction_failed,
        last_estimate=turn.last_estimate,
        last_counted=turn.last_counted,
        next_id=output.next_id,
        sequence=output.sequence,
        announced=output.announced,
        ordered=output.ordered,
        size=output.size,
        call_ids=output.call_ids,
        citations=output.citations,
    )
    return msgpack.encode(snapshot)


def resumed(turn: Turn, data: bytes, saves: int, stored: Sequence[Item]) -> Turn:
    """The turn as it was written. `turn` has not begun and continues its own saved context, so its `stored` items render nothing more.

    Raises msgspec.MsgspecError like `read_queued`.
    """
    known = msgpack.decode(data, type=_Snapshot)
    output = replace(
        turn.output,
        next_id=known.next_id,
        sequence=known.sequence,
        announced=known.announced,
        ordered=known.ordered,
        size=known.size,
        call_ids=turn.output.call_ids | known.call_ids,
        citations=known.citations,
        closed=tuple(enumerate(stored)),
    )
    return replace(
        turn,
        parent=replace(turn.parent, base=known.base, is_full=False),
        output=output,
        phase=Phase.STREAMING,
        round=known.round,
        retried=known.retried,
        usage=known.usage,
        calls_made=known.calls_made,
        at=known.at,
        silenced=known.silenced,
        has_compacted=known.has_compacted,
        compacted_tokens=known.compacted_tokens,
        compaction_failed=known.compaction_failed,
        last_estimate=known.last_estimate,
        last_counted=known.last_counted,
        saves=saves,
        stored=len(stored),
        checkpoint=turn.parent.base,
    )
