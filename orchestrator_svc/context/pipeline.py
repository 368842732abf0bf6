"""The context pipeline: from a request and what is stored to what a turn starts with. Pure; a tuple of stages, each a function.

What must be read from the store before (`wanted`) is read by the desk and handed in as values.
"""

import dataclasses
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator_svc.context.approvals import Approved, resolve
from orchestrator_svc.context.carried import DECLARING, NOTHING_CARRIED, Carried, Pending
from orchestrator_svc.context.joining import candidates
from orchestrator_svc.context.pairing import check_paired, still_open
from orchestrator_svc.context.unsealing import unsealed
from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import HOSTED, PREFIXES, Item
from orchestrator_svc.request import TurnRequest
from orchestrator_svc.tools.base import Spec
from orchestrator_svc.tools.table import ToolTable, declared_by_items
from svckit.ids import tree_key_of
from svckit.json_text import JsonObject


class Draft(Struct, frozen=True):
    """A turn that is being put together. `open_call_ids` are those of the context; `stored` are items found by id, `numbers` their places
    in their trees; `new_id` makes an id with a prefix in the turn's own tree."""

    request: TurnRequest
    specs: Mapping[str, Spec]
    new_id: Callable[[str], str]
    carried: Carried = NOTHING_CARRIED
    open_call_ids: tuple[str, ...] = ()
    stored: Mapping[str, Item] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    approved: tuple[Approved, ...] = ()

    @property
    def tools(self) -> ToolTable:
        """The tools of the turn, as far as they are known."""
        return self.request.tools


def wanted(request: TurnRequest, carried: Carried, own_tree: int) -> tuple[str, ...]:
    """The ids of the stored items that the stages need, and of those that the input may join."""
    ids = [item.id for item in request.input if item.type in HOSTED or item.type == "item_reference"]
    if request.previous_response_id is None:
        ids += request.approval_ids
        ids += [item.id for item in candidates(request, own_tree)]
    return tuple(id for id in (*ids, *carried.declaring_items) if tree_key_of(id) is not None)


def assembled(draft: Draft) -> Draft:
    """The draft after all stages. Raises InvalidRequest and Unsupported with `param`."""
    for stage in STAGES:
        draft = stage(draft)
    return draft


def _regain(draft: Draft) -> Draft:
    """References become what they refer to. Items that the gateway made, sent back by a client, regain what was stored of them."""
    regained = tuple(_stored(draft, item, position) for position, item in enumerate(draft.request.input))
    return replace(draft, request=replace(draft.request, input=regained))


def _stored(draft: Draft, item: Item, position: int) -> Item:
    found = draft.stored.get(item.id)
    if item.type == "item_reference":
        if found is None:
            raise InvalidRequest(f"Item with id '{item.id}' not found.", param=f"input[{position}].id")
        return _copied(draft, found)
    return found if found is not None and found.type == item.type and item.type in HOSTED else item


def _copied(draft: Draft, item: Item) -> Item:
    """A copy keeps its id, unless that may stand in the context already: lists of items are paged through by their ids."""
    continued = draft.request.previous_response_id or draft.request.conversation_id or ""
    if tree_key_of(item.id) != tree_key_of(continued):
        return item
    return dataclasses.replace(item, id=draft.new_id(PREFIXES[item.type]))


def _unseal(draft: Draft) -> Draft:
    """What was sealed here and given to the client comes back, and is opened."""
    request = draft.request
    seals, owner = request.compaction.seals, request.owner
    opened = tuple(unsealed(item, seals, owner, f"input[{position}]") for position, item in enumerate(request.input))
    return replace(draft, request=replace(request, input=opened))


def _trigger(draft: Draft) -> Draft:
    """A trigger at the end of the input asks for a compaction and nothing else."""
    *rest, last = draft.request.input or (None,)
    for position, item in enumerate(draft.request.input):
        if item.type == "compaction_trigger" and item is not last:
            raise InvalidRequest("A compaction_trigger is the last item of the input.", param=f"input[{position}].type")
    if last is None or last.type != "compaction_trigger":
        return draft
    rules = replace(draft.request.compaction, only=True)
    input = tuple(item for item in rest if item is not None)
    return replace(draft, request=replace(draft.request, input=input, compaction=rules))


def _approve(draft: Draft) -> Draft:
    stored = {id: msgspec.json.decode(item.body, type=Pending) for id, item in draft.stored.items() if item.type == "mcp_approval_request"}
    input, approved = resolve(draft.request.input, stored | draft.carried.approvals)
    return replace(draft, request=replace(draft.request, input=input), approved=approved)


def _declare(draft: Draft) -> Draft:
    """Tools that items bring along join those of the request, and only now is its tool_choice checked."""
    context = [(id, draft.stored[id]) for id in draft.carried.declaring_items if id in draft.stored]
    own = [(f"input[{n}]", item) for n, item in enumerate(draft.request.input) if item.type in DECLARING]
    lists = [(f"{path}.tools", msgspec.json.decode(item.body, type=_Declaring).tools) for path, item in context + own]
    tools = declared_by_items(draft.tools, lists, draft.specs).with_choice(draft.request.tool_choice)
    return replace(draft, request=replace(draft.request, tools=tools))


class _Declaring(msgspec.Struct):
    tools: list[JsonObject]


def _pair(draft: Draft) -> Draft:
    if draft.request.compaction.only:
        still_open(draft.open_call_ids, draft.request.input)
    else:
        check_paired(draft.open_call_ids, draft.request.input)
    return draft


STAGES: tuple[Callable[[Draft], Draft], ...] = (_regain, _unseal, _trigger, _approve, _declare, _pair)
