"""What a turn hands on to the turns that continue from it, beside the items themselves. Pure.

It is small and stored with the response, so that a continuation knows it without reading items: which approvals are pending, which MCP
servers have been listed, which items brought tools along, and how large the context was after its last compaction.
"""

from collections.abc import Iterable

import msgspec

from orchestrator_svc.items import Item

DECLARING = frozenset({"additional_tools", "tool_search_output"})


class Pending(msgspec.Struct, frozen=True):
    """A call that waits for its approval: exactly these arguments are run once they are approved."""

    server_label: str
    name: str
    arguments: str


class Carried(msgspec.Struct, frozen=True):
    """The state that goes from response to response; `approvals` by the id of their request."""

    approvals: dict[str, Pending] = {}
    listed: tuple[str, ...] = ()
    declaring_items: tuple[str, ...] = ()
    compacted_tokens: int = 0


NOTHING_CARRIED = Carried()


def read(data: bytes) -> Carried:
    """What was written; nothing from a response that had nothing to hand on."""
    return msgspec.json.decode(data, type=Carried) if data else NOTHING_CARRIED


def write(carried: Carried) -> bytes:
    """The bytes to store; empty where there is nothing to hand on."""
    return b"" if carried == NOTHING_CARRIED else msgspec.json.encode(carried)


def after(before: Carried, items: Iterable[Item], listed: Iterable[str], compacted_tokens: int = 0) -> Carried:
    """What is handed on after a turn with these items, its own input and output."""
    approvals, declaring = dict(before.approvals), list(before.declaring_items)
    for item in items:
        if item.type == "mcp_approval_request":
            approvals[item.id] = msgspec.json.decode(item.body, type=Pending)
        elif item.type == "mcp_approval_response":
            approvals.pop(msgspec.json.decode(item.body, type=_Answer).approval_request_id, None)
        elif item.type in DECLARING:
            declaring.append(item.id)
    return Carried(
        approvals, tuple(dict.fromkeys((*before.listed, *listed))), tuple(declaring), compacted_tokens or before.compacted_tokens
    )


class _Answer(msgspec.Struct):
    approval_request_id: str
