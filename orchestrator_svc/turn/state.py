"""The turn as a value: what was asked for, what it continues from, and how far it has come."""

from enum import Enum, auto

from msgspec import Struct

from orchestrator_svc.context.approvals import Approved
from orchestrator_svc.context.parent import Parent, Span
from orchestrator_svc.request import TurnRequest
from orchestrator_svc.turn.actions import StreamEvent
from orchestrator_svc.turn.events import ToolsListed, Usage
from orchestrator_svc.turn.written import Output


class Phase(Enum):
    """How far a turn has come, as its client sees it."""

    WAITING = auto()
    STREAMING = auto()
    SAVING = auto()
    OVER = auto()


class Limits(Struct, frozen=True):
    """The bounds of one turn."""

    max_rounds: int
    max_output_chars: int
    max_output_items: int


class Ending(Struct, frozen=True):
    """How a turn ends: its status, and what explains it. `completed_at` only for `completed`, seconds since 1970."""

    status: str
    completed_at: int | None = None
    cut: str | None = None
    code: str | None = None
    message: str | None = None


class Summary(Struct, frozen=True):
    """A summary that the model is writing; `in_pieces`: its text has come in deltas, so that whole items only repeat it."""

    text: str = ""
    in_pieces: bool = False


class Turn(Struct, frozen=True):
    """One turn. `created_at` is in seconds since 1970.

    `approved` are the calls that this turn's input approves. `unlisted` are the labels of MCP servers
    that have not answered yet, `listed` the answers of the others, `listings` those of them that are to be shown. `awaited` are the call
    ids of tools that run, `calls_made` counts calls of gateway-owned tools; once `silenced` the model may make no more. `at` is when the
    model last ended, in seconds since 1970.

    A background turn is saved before each further round: `saves` counts that, the first `stored` of its items are stored by now, and
    `checkpoint` is what they have come to. `has_compacted`: it has compacted its context before this process took it over.

    `summary` is what the model has written of one, while it does; `compacted_from` is the place of the item that stands for all before it,
    `compacted_tokens` its size. `last_estimate` and `last_counted` are the input tokens of the last model call, estimated and counted.
    """

    response_id: str
    request: TurnRequest
    parent: Parent
    created_at: int
    limits: Limits
    output: Output
    phase: Phase = Phase.WAITING
    round: int = 0
    retried: bool = False
    usage: Usage | None = None
    approved: tuple[Approved, ...] = ()
    unlisted: frozenset[str] = frozenset()
    listed: tuple[ToolsListed, ...] = ()
    listings: tuple[ToolsListed, ...] = ()
    awaited: frozenset[str] = frozenset()
    calls_made: int = 0
    at: int | None = None
    summary: Summary | None = None
    compacted_from: int | None = None
    compacted_tokens: int = 0
    compaction_failed: bool = False
    last_estimate: int = 0
    last_counted: int = 0
    silenced: bool = False
    saves: int = 0
    stored: int = 0
    checkpoint: tuple[Span, ...] | None = None
    has_compacted: bool = False
    ending: Ending | None = None
    pending: StreamEvent | None = None
