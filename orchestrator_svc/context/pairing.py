"""Calls and their outputs: which calls wait for an output, and whether a turn may start with them. Pure."""

import re
from collections.abc import Iterable

import msgspec

from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import Item


def check_paired(open_call_ids: Iterable[str], input: Iterable[Item]) -> None:
    """Raises InvalidRequest (param `input`) unless every output has its call before it and every call gets exactly one output."""
    waiting = dict.fromkeys(open_call_ids)
    for item in input:
        if item.opens is not None:
            _open(waiting, item.opens)
        elif item.closes is not None:
            _close(waiting, item.closes)
    if waiting:
        raise InvalidRequest(f"No tool output found for function call {next(iter(waiting))}.", param="input")


def call_ids_in(prompts: Iterable[bytes]) -> frozenset[str]:
    """The call ids that rendered items hold. Engines may count their calls anew in each request; a new call gets none of these."""
    return frozenset(msgspec.json.decode(found, type=str) for prompt in prompts for found in _CALL_ID.findall(prompt))


_CALL_ID = re.compile(rb'"call_id":("(?:[^"\\]|\\.)*")')


def _open(waiting: dict[str, None], call_id: str) -> None:
    if call_id in waiting:
        raise InvalidRequest(f"Two function calls have the call_id {call_id}.", param="input")
    waiting[call_id] = None


def _close(waiting: dict[str, None], call_id: str) -> None:
    if call_id not in waiting:
        raise InvalidRequest(f"No tool call found for function call output with call_id {call_id}.", param="input")
    del waiting[call_id]
