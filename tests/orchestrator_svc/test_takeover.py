"""Taking a turn over, as values: whatever was logged when its process died, the whole stream is that of one turn."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator_svc.items import Item, JsonObject
from orchestrator_svc.tools.base import ToolResult
from orchestrator_svc.turn import snapshot
from orchestrator_svc.turn.actions import Action, Emit, RunTools, Save, StreamEvent
from orchestrator_svc.turn.events import (
    AnnotationAdded,
    Begun,
    Cancelled,
    ItemFinished,
    ItemStarted,
    ModelFailed,
    ModelFinished,
    PartDelta,
    PartKind,
    Saved,
    ToolFinished,
    TurnEvent,
    Usage,
)
from orchestrator_svc.turn.machine import advance
from orchestrator_svc.turn.state import Turn
from orchestrator_svc.turn.takeover import behind_log
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.tool_turns import LOOK, PATCH, SEARCH
from tests.orchestrator_svc.turns import HELLO, request, sent, turn

CITED: JsonObject = {"type": "url_citation", "start_index": 0, "end_index": 3, "title": "t", "url": "https://x.example/"}


def queued(*, resumed: bool = False) -> Turn:
    asked = replace(request(HELLO, tools=[LOOK, PATCH, SEARCH]), background=True)
    fresh = turn(asked)
    return replace(fresh, request=replace(asked, input=())) if resumed else fresh


def said(key: int, kind: PartKind, *texts: str, part: int = 0) -> list[TurnEvent]:
    return [sent(PartDelta(key, kind, part, text)) for text in texts]


def searched(key: int, call_id: str) -> list[TurnEvent]:
    """A call of a gateway's tool, piece by piece."""
    call: JsonObject = {"type": "function_call", "name": "web_search", "call_id": call_id, "arguments": '{"query":"x"}'}
    return [
        sent(ItemStarted(key, "function_call", "web_search", call_id)),
        *said(key, PartKind.ARGUMENTS, '{"query":', '"x"}'),
        sent(ItemFinished(key, call)),
    ]


FIRST_ROUND: list[TurnEvent] = [
    *said(1, PartKind.SUMMARY, "sum", "mary"),
    *said(1, PartKind.SUMMARY, "second", part=1),
    *said(1, PartKind.REASONING, "rea", "son"),
    *said(2, PartKind.TEXT, "let me", " look"),
    *searched(3, "call_1"),
    *searched(4, "call_2"),
    sent(ModelFinished(None, Usage(3, 0, 4, 0))),
    ToolFinished("call_2", ToolResult("two")),
    ToolFinished("call_1", ToolResult("one", failed=True)),
]
LAST_ROUND: list[TurnEvent] = [
    *said(5, PartKind.TEXT, "see ", "this"),
    sent(AnnotationAdded(5, 0, CITED)),
    *said(6, PartKind.REFUSAL, "but ", "no"),
    sent(ItemStarted(7, "function_call", "look", "call_3")),
    *said(7, PartKind.ARGUMENTS, '{"a":', "1}"),
    sent(ItemStarted(8, "function_call", "apply_patch", "call_4")),
    *said(8, PartKind.ARGUMENTS, '{"input":"*** "}'),
    sent(ModelFinished(None, Usage(3, 0, 4, 0))),
]
ANSWER: list[TurnEvent] = [*said(1, PartKind.TEXT, "Found", "."), sent(ModelFinished(None, Usage(1, 0, 1, 0)))]


@dataclass(frozen=True, slots=True)
class Death:
    """What the store has when a process dies: the log, and what was saved with the events before it."""

    logged: tuple[StreamEvent, ...]
    saved: tuple[Save, ...]


def deaths() -> Iterator[Death]:
    """A turn of two rounds, and a death after each batch of its events."""
    now, logged, saved = queued(), (), ()
    for event in [Begun(), *FIRST_ROUND, Saved(((1, 5),)), *LAST_ROUND]:
        now, actions = advance(now, event)
        logged += events_of(actions)
        yield Death(logged, saved)
        if any(isinstance(action, Save) for action in actions):
            saved += tuple(action for action in actions if isinstance(action, Save))
            yield Death(logged, saved)


def events_of(actions: tuple[Action, ...]) -> tuple[StreamEvent, ...]:
    return tuple(event for action in actions if isinstance(action, Emit) for event in action.events)


def taken_over(death: Death) -> Turn:
    """The turn as another process has it before it begins."""
    between = [save.record for save in death.saved if save.record.resume_state]
    if not between:
        return behind_log(queued(), death.logged)
    record = between[-1]
    shown = [Item(item.id, item.type, item.body, b"", 0) for item in record.items[record.input_count :] if item.body]
    known = snapshot.resumed(queued(resumed=True), record.resume_state, record.round, shown)
    return behind_log(known, [event for event in death.logged if event.sequence_number >= known.output.sequence])


DEATHS = list(deaths())


def story(death: Death, *events: TurnEvent) -> tuple[Turn, tuple[StreamEvent, ...], tuple[Action, ...]]:
    """The turn after it was taken over and went on, all that its viewers have seen, and what was asked for meanwhile."""
    now, seen, asked = taken_over(death), death.logged, ()
    for event in (Begun(), *events):
        now, actions = advance(now, event)
        seen += events_of(actions)
        asked += actions
    return now, seen, asked


def read(events: tuple[StreamEvent, ...]) -> list[JsonObject]:
    return [msgspec.json.decode(event.data) for event in events]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{len(death.logged)}-{len(death.saved)}")
def test_whenever_a_process_dies_viewers_see_one_turn(death: Death) -> None:
    _, seen, asked = story(death, *ANSWER, Saved())
    response = check_stream(read(seen), taken_over=True)
    [save] = [action for action in asked if isinstance(action, Save)]
    assert response["status"] == "completed"
    stored = [item for earlier in death.saved if earlier.record.resume_state for item in earlier.record.items[earlier.record.input_count :]]
    new = save.record.items[save.record.input_count :]
    assert [item.id for item in (*stored, *new) if item.body] == [item["id"] for item in response["output"]]  # type: ignore[union-attr]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{len(death.logged)}-{len(death.saved)}")
def test_nothing_continues_from_what_was_shown_and_not_saved(death: Death) -> None:
    _, _, asked = story(death, *ANSWER, Saved())
    [save] = [action for action in asked if isinstance(action, Save)]
    kept = [item for item in save.record.items[save.record.input_count :] if not item.left_out]
    assert [item.type for item in kept] == ["message"]
    assert all((item.prompt, item.opens) == (b"", None) for item in save.record.items if item.left_out)


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{len(death.logged)}-{len(death.saved)}")
def test_the_round_is_run_again_with_all_that_it_may_make(death: Death) -> None:
    """The same call ids and item numbers from the engine once more: nothing that was given out is given out again."""
    first = not any(save.record.resume_state for save in death.saved)
    again = FIRST_ROUND[:-2] if first else LAST_ROUND
    now, seen, asked = story(death, *again)
    calls = [call for action in asked if isinstance(action, RunTools) for call in action.calls]
    for event in [*(ToolFinished(call.call_id, ToolResult("x")) for call in calls), *([Saved(), *ANSWER] if first else []), Saved()]:
        now, actions = advance(now, event)
        seen += events_of(actions)
    response = check_stream(read(seen), taken_over=True)
    ids = [item["call_id"] for item in response["output"] if "call_id" in item]  # type: ignore[union-attr,operator]
    assert len(set(ids)) == len(ids)


def test_equal_calls_of_a_round_that_is_run_again_have_the_claims_of_the_first_time() -> None:
    def claims(death: Death) -> list[str]:
        _, _, asked = story(death, *FIRST_ROUND[:-2])
        return [call.claim_id for action in asked if isinstance(action, RunTools) for call in action.calls]

    assert claims(DEATHS[0]) == claims(DEATHS[8])
    assert len(set(claims(DEATHS[0]))) == 2


@pytest.mark.parametrize("ending", [Cancelled(), sent(ModelFailed("engine_error", "No.", RuntimeError()))])
def test_a_turn_that_was_taken_over_ends_like_any_other(ending: TurnEvent) -> None:
    _, seen, asked = story(DEATHS[9], ending, Saved())
    [save] = [action for action in asked if isinstance(action, Save)]
    assert save.record.status in ("cancelled", "failed")
    assert [event.sequence_number for event in seen] == list(range(len(seen)))


def test_an_empty_log_changes_nothing() -> None:
    assert behind_log(queued(), ()) == queued()
