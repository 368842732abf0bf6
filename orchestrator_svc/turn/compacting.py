"""When a turn compacts its context, and what it then asks for and makes of the answer. Pure; `machine` calls it before every model call.

A compaction is a model call of its own that shows nothing. Its summary becomes a `compaction` item of the output; from then on the turn,
and whatever continues from it, stands on that item. A summary that fails costs nothing but itself: the turn goes on with what it has.
"""

import msgspec
from msgspec.structs import replace

from orchestrator_svc.context import compaction
from orchestrator_svc.context.budget import corrected, tokens_around
from orchestrator_svc.context.pairing import still_open
from orchestrator_svc.errors import CompactionFailed
from orchestrator_svc.items import Item, JsonObject, encode
from orchestrator_svc.turn import output as projection
from orchestrator_svc.turn.actions import CallModel, StreamEvent
from orchestrator_svc.turn.events import ItemFinished, ModelEvent, PartDelta, PartKind
from orchestrator_svc.turn.parts import final_parts
from orchestrator_svc.turn.state import Summary, Turn
from orchestrator_svc.turn.written import Written

SEALED_KIND = "compaction"
# What shapes an answer does not shape a summary of it.
_NOT_FOR_SUMMARIES = frozenset({"text", "max_output_tokens", "top_logprobs", "include"})


def is_due(turn: Turn) -> bool:
    """Whether the context is to be compacted before the next model call."""
    rules = turn.request.compaction
    if turn.compaction_failed:
        return False
    if rules.only:
        return turn.compacted_from is None
    last = turn.compacted_tokens or turn.parent.carried.compacted_tokens
    return rules.threshold > 0 and estimated(turn) > rules.threshold and _estimate(turn) > last * (1 + rules.growth)


def estimated(turn: Turn) -> int:
    """How many tokens the next model call takes: by estimate, corrected by what the engine counted the last time."""
    return corrected(_estimate(turn), turn.last_estimate, turn.last_counted)


def with_estimate(turn: Turn) -> Turn:
    """The turn, remembering what its next model call is estimated at, to be compared with the engine's count, if anybody will ask."""
    rules = turn.request.compaction
    if not (rules.threshold or rules.context_window):
        return turn
    return replace(turn, last_estimate=_estimate(turn))


def asked(turn: Turn) -> CallModel:
    """The model call that summarises the context: the same words as ever, so that the engine has them still, and one message more.

    Calls that wait for an output are not shown: engines refuse them, and they stay as they are.
    """
    rules = turn.request.compaction
    tools = tuple(turn.output.tools.declarations())
    input = (*_settled(turn), compaction.asking_for_summary(rules.prompt))
    return CallModel(turn.round, input, tools, "none" if tools else None, without=_NOT_FOR_SUMMARIES, model=rules.model)


def _settled(turn: Turn) -> tuple[bytes, ...]:
    waiting = waiting_calls(turn)
    if not waiting:
        return prompts(turn)
    return tuple(map(encode, compaction.parted(compaction.elements_of(prompts(turn)), waiting)[0]))


def heard(summary: Summary, events: tuple[ModelEvent, ...]) -> Summary:
    """The summary with what the model has sent of it."""
    text, in_pieces = summary.text, summary.in_pieces
    for event in events:
        if isinstance(event, PartDelta) and event.kind is PartKind.TEXT:
            text, in_pieces = text + event.text, True
        elif isinstance(event, ItemFinished) and not in_pieces:
            text += "".join(whole for kind, _, whole, _ in final_parts(event.item) if kind is PartKind.TEXT)
    return Summary(text, in_pieces)


def written(turn: Turn, summary: str) -> tuple[Turn, Written]:
    """The turn standing on the summary, and the item that shows it."""
    rules = turn.request.compaction
    elements = compaction.elements_of(prompts(turn))
    budget = max(int((rules.threshold or estimated(turn)) * rules.keep_share), 1)
    waiting = waiting_calls(turn)
    window = compaction.window_of(elements, summary, waiting, budget, with_messages=True)
    portable = window if not rules.only else compaction.window_of(elements, summary, (), budget, with_messages=False)
    blob = rules.seals.seal(turn.request.owner, SEALED_KIND, portable)
    place = turn.output.ordered
    result = projection.show_compaction(turn.output, blob, window)
    turn = replace(turn, compacted_from=place, output=result[0])
    return replace(turn, compacted_tokens=_estimate(turn)), result


def compacted(turn: Turn, last: StreamEvent) -> bytes:
    """The `response.compaction` object of a turn that did nothing else, from the turn as it began and its terminal event.

    Raises CompactionFailed.
    """
    response = msgspec.json.decode(last.data, type=_Terminal).response
    if response["status"] != "completed":
        raise CompactionFailed
    budget = max(int(estimated(turn) * turn.request.compaction.keep_share), 1)
    kept = compaction.kept_messages(compaction.elements_of(prompts(turn)), budget)
    ids = turn.output.ids
    shown: list[object] = [
        {"id": ids.id("msg", 1000 + n), "status": "completed"} | element for n, element in enumerate(kept) if element["role"] == "user"
    ]
    shown += [item for item in _objects(response["output"]) if item["type"] == "compaction"]
    body = {"id": response["id"], "object": "response.compaction", "created_at": turn.created_at, "output": shown}
    return encode(body | {"usage": response["usage"]})


class _Terminal(msgspec.Struct):
    response: JsonObject


def prompts(turn: Turn) -> tuple[bytes, ...]:
    """What the model is shown, as the elements of a JSON array: everything, or what stands on the last compaction."""
    parts = [item.rendered for item in own_items(turn)]
    if turn.compacted_from is None:
        parts = [*turn.parent.context, *(item.rendered for item in turn.request.input), *parts]
    return tuple(filter(None, parts))


def waiting_calls(turn: Turn) -> tuple[str, ...]:
    """The calls without an output that a turn which only compacts may leave open."""
    return still_open(turn.parent.open_call_ids, turn.request.input) if turn.request.compaction.only else ()


def own_items(turn: Turn) -> tuple[Item, ...]:
    """The items of the output that are still in the context."""
    return turn.output.items_from(turn.compacted_from or 0)


def truncated(turn: Turn, input: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The input, cut to the model's context window where the request or a failed compaction asks for that and the window is known."""
    rules = turn.request.compaction
    if not rules.context_window or not (rules.truncate or turn.compaction_failed):
        return input
    room, size = rules.context_window - (turn.request.max_output_tokens or 0), estimated(turn)
    if size <= room:
        return input
    beside = tokens_around(turn.request.forwarded.get("instructions"), turn.output.tools.declarations())
    kept = compaction.without_oldest(compaction.elements_of(input), room * _estimate(turn) // size - beside)
    return tuple(map(encode, kept))


def _estimate(turn: Turn) -> int:
    around = tokens_around(turn.request.forwarded.get("instructions"), turn.output.tools.declarations())
    own = sum(item.tokens for item in own_items(turn))
    if turn.compacted_from is not None:
        return around + own
    return around + own + turn.parent.tokens + sum(item.tokens for item in turn.request.input)


def _objects(value: object) -> list[JsonObject]:
    return value if isinstance(value, list) else []
