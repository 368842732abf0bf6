"""Calls and their outputs: which calls wait for an output, and whether a turn may start with them. Pure."""

import re
from collections.abc import Iterable

import msgspec

from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import Item


def check_paired(open_call_ids: Iterable[str], input: Iterable[Item]) -> None:
    """Raises InvalidRequest (param `input`) unless every output has its call before it and every call gets exactly one output."""
    waiting = still_open(open_call_ids, input)
    if waiting:
        raise InvalidRequest(f"No tool output found for function call {waiting[0]}.", param="input")


def still_open(open_call_ids: Iterable[str], items: Iterable[Item], param: str = "input") -> tuple[str, ...]:
    """The calls without an output after `items`. Raises InvalidRequest for an output without a call before it, and for a call id twice."""
    waiting = dict.fromkeys(open_call_ids)
    for item in items:
        if item.opens is not None:
            _open(waiting, item.opens, param)
        elif item.closes is not None:
            _close(waiting, item.closes, param)
    return tuple(waiting)


class CallIds:
    """The call ids that rendered items hold. Engines may count their calls anew in each request; a new call gets none of these, so that the
    model can tell them apart.

    Most turns make no call, so that they are looked for only with the first: the items may be megabytes.
    """

    def __init__(self, prompts: tuple[bytes, ...]) -> None:
        self._prompts = prompts
        self._ids: frozenset[str] | None = None

    def __contains__(self, call_id: object) -> bool:
        if self._ids is None:
            self._ids = frozenset(msgspec.json.decode(found, type=str) for prompt in self._prompts for found in _CALL_ID.findall(prompt))
        return call_id in self._ids


_CALL_ID = re.compile(rb'"call_id":("(?:[^"\\]|\\.)*")')


def _open(waiting: dict[str, None], call_id: str, param: str) -> None:
    if call_id in waiting:
        raise InvalidRequest(f"Two function calls have the call_id {call_id}.", param=param)
    waiting[call_id] = None


def _close(waiting: dict[str, None], call_id: str, param: str) -> None:
    if call_id not in waiting:
        raise InvalidRequest(f"No tool call found for function call output with call_id {call_id}.", param=param)
    del waiting[call_id]
