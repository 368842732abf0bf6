"""The budget: how many tokens a model call takes, by estimate, and what the engine's own count says about the estimate. Pure.

Items carry their own estimates, made with them; here the rest of a call is added.
"""

from collections.abc import Iterable

from orchestrator_svc.items import JsonObject, encode

_BYTES_PER_TOKEN = 4


def tokens_of_text(text: str) -> int:
    """UTF-8 bytes / 4, rounded up."""
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


def tokens_around(instructions: object, tools: Iterable[JsonObject]) -> int:
    """What a call takes beside its items: its instructions and the declarations of its tools."""
    told = tokens_of_text(instructions) if isinstance(instructions, str) else 0
    return told + sum(-(-len(encode(tool)) // _BYTES_PER_TOKEN) for tool in tools)


def corrected(estimate: int, last_estimate: int, last_counted: int) -> int:
    """The estimate of a call, by how far off that of the call before was; one that was far too low is believed at most threefold."""
    if last_estimate <= 0 or last_counted <= 0:
        return estimate
    return round(estimate * min(max(last_counted / last_estimate, 0.25), 3.0))
