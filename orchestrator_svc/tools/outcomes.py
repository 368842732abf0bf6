"""Outcomes: what is recorded of a call that may run once, and what the model is told when it is asked for again. Pure."""

import msgspec

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import Citation, ToolResult

UNKNOWN = ToolResult("Error: outcome_unknown. This call was started before and may have had its effect; it is not run again.", failed=True)


class _Outcome(msgspec.Struct, frozen=True):
    output: str | list[JsonObject]
    failed: bool
    public: JsonObject
    citations: tuple[Citation, ...] = ()


def write(result: ToolResult) -> bytes:
    """A result, to be recorded."""
    output = result.output if isinstance(result.output, str) else list(result.output)
    return msgspec.json.encode(_Outcome(output, result.failed, result.public, result.citations))


def read(outcome: bytes | None) -> ToolResult:
    """The recorded result, or that nobody knows it."""
    if outcome is None:
        return UNKNOWN
    known = msgspec.json.decode(outcome, type=_Outcome)
    output = known.output if isinstance(known.output, str) else tuple(known.output)
    return ToolResult(output, known.failed, known.public, known.citations)
