"""Turns for tests: a turn made of a few words, the machine run over its events, and what came out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

import msgspec

from orchestrator_svc.context.parent import Parent
from orchestrator_svc.context.pipeline import Draft, assembled
from orchestrator_svc.context.sealing import Seals
from orchestrator_svc.items import JsonObject
from orchestrator_svc.request import Asked, CompactionRules, ToolKinds, TurnRequest, read_request
from orchestrator_svc.tools import web_search
from orchestrator_svc.turn.actions import Action, Emit, Record, Save, StreamEvent
from orchestrator_svc.turn.events import ModelEvent, ModelSent, TurnEvent
from orchestrator_svc.turn.machine import advance
from orchestrator_svc.turn.state import Limits, Turn
from orchestrator_svc.turn.written import Output
from svckit.ids import IdBlock

NOW = 1_790_000_000
BLOCK = IdBlock(0, 0)
HELLO: JsonObject = {"type": "message", "role": "user", "content": "hello"}
WEATHER: JsonObject = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
SPECS = dict.fromkeys(web_search.SPEC.kinds, web_search.SPEC)
RULES = CompactionRules(Seals(("a secret of tests",)))
LIMITS = Limits(max_rounds=10, max_output_chars=1000, max_output_items=10)


def asked(
    *input: JsonObject,
    previous_response_id: str | None = None,
    store: bool = True,
    conversation_id: str | None = None,
    **parameters: object,
) -> Asked:
    """A request as it arrives."""
    sources = tuple(map(msgspec.json.encode, input))
    return Asked("ada", "m", previous_response_id, store, sources, msgspec.json.encode(parameters), conversation_id)


def request(*input: JsonObject, **given: object) -> TurnRequest:
    """A request, read; its items without ids get the first ids of BLOCK."""
    numbers = count(1)
    new_id: Callable[[str], str] = lambda prefix: BLOCK.id(prefix, next(numbers))  # noqa: E731
    read = read_request(asked(*input, **given), ToolKinds(SPECS), RULES, new_id)  # type: ignore[arg-type]
    return assembled(Draft(read, SPECS, new_id)).request


def turn(asked_for: TurnRequest | None = None, *, context: bytes = b"", limits: Limits = LIMITS) -> Turn:
    """A turn that has not begun."""
    asked_for = asked_for or request(HELLO, tools=[WEATHER])
    output = Output(BLOCK, "response.reasoning_text", "engine", next_id=1 + len(asked_for.input), tools=asked_for.tools)
    return Turn(BLOCK.id("resp"), asked_for, Parent(context=(context,) if context else ()), NOW, limits, output)


def sent(*events: ModelEvent) -> ModelSent:
    """One network read of the engine's answer."""
    return ModelSent(events, NOW + 1)


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a turn."""

    turn: Turn
    actions: tuple[Action, ...]

    @property
    def stream(self) -> tuple[StreamEvent, ...]:
        return tuple(event for action in self.actions if isinstance(action, Emit) for event in action.events)

    @property
    def events(self) -> list[JsonObject]:
        return [msgspec.json.decode(event.data) for event in self.stream]

    @property
    def records(self) -> list[Record]:
        return [action.record for action in self.actions if isinstance(action, Save)]

    @property
    def response(self) -> JsonObject:
        """The response object of the last event."""
        response = self.events[-1]["response"]
        assert isinstance(response, dict)
        return response


def play(start: Turn, events: Iterable[TurnEvent]) -> Played:
    """Feeds the machine."""
    played = Played(start, ())
    for event in events:
        now, actions = advance(played.turn, event)
        played = replace(played, turn=now, actions=played.actions + actions)
    return played
