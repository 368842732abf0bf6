"""Joining: a client that sends back all it has, item by item, does not have all of it stored again. Pure.

The items at the start of the input whose ids name one tree, and which say there what they say here, are not input but context: the turn
goes on in that tree, with a checkpoint that names them. Without that, a client that resends its transcript pays quadratically.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

import msgspec

from orchestrator_svc.context import carried
from orchestrator_svc.context.carried import NOTHING_CARRIED
from orchestrator_svc.context.parent import Parent, Span
from orchestrator_svc.items import Item
from orchestrator_svc.request import TurnRequest
from svckit.ids import tree_key_of
from svckit.json_text import JsonObject

# More items than that are not looked up at a time, and so not joined.
MAX_JOINED = 900


def may_join(request: TurnRequest) -> bool:
    """Whether a turn may go on in the tree of what its client sends back: it is stored, and names nothing that it continues."""
    continues = request.previous_response_id is not None or request.conversation_id is not None
    return request.store and not (continues or request.background or request.compaction.only) and len(request.input) > 1


def candidates(request: TurnRequest, own_tree: int) -> Sequence[Item]:
    """The items at the start of the input whose ids all name one other tree than the turn's own."""
    if not may_join(request):
        return ()
    tree = tree_key_of(request.input[0].id)
    if tree is None or tree == own_tree:
        return ()
    return list(takewhile(lambda item: tree_key_of(item.id) == tree, request.input[:MAX_JOINED]))


def joined(request: TurnRequest, own_tree: int, stored: Mapping[str, Item]) -> tuple[Item, ...]:
    """The stored items that the input starts with, as they are stored."""
    same = takewhile(lambda item: _is_stored(item, stored.get(item.id)), candidates(request, own_tree))
    return tuple(stored[item.id] for item in same)


def parent_of(items: Sequence[Item], numbers: Mapping[str, int], provider: str) -> Parent:
    """What a turn continues that joins these items: their spans, and their prompts."""
    shown = [item.rendered for item in items if item.origin in ("", provider)]
    return Parent(
        base=_spans(numbers[item.id] for item in items),
        context=tuple(filter(None, shown)),
        carried=carried.after(NOTHING_CARRIED, items, ()),
        tokens=sum(item.tokens for item in items),
    )


def _is_stored(item: Item, found: Item | None) -> bool:
    """Clients write bodies anew, so that what the model sees is compared, and that nothing is said here that is not said there."""
    return found is not None and found.type == item.type and found.rendered == item.rendered and _fields(item) <= _fields(found)


def _fields(item: Item) -> set[str]:
    """The names of what a body says; null says nothing."""
    return {name for name, value in msgspec.json.decode(item.body, type=JsonObject).items() if value is not None} if item.body else set()


def _spans(numbers: Iterable[int]) -> tuple[Span, ...]:
    spans: list[Span] = []
    for number in numbers:
        if spans and spans[-1][1] == number:
            spans[-1] = (spans[-1][0], number + 1)
        else:
            spans.append((number, number + 1))
    return tuple(spans)
