"""The turn, as a pure state machine: an event goes in, a new turn and a list of actions come out.

This is the only place that says when a round or a turn ends. It does no IO; `runner` performs the actions and feeds back what came of
them. A turn goes WAITING (nothing was sent, so it can still be refused) -> STREAMING -> SAVING (its fate is decided, nothing can change
it) -> OVER. Its terminal event goes out only once it is stored.
"""

from collections.abc import Callable
from dataclasses import replace

from orchestrator_svc.turn import output as projection
from orchestrator_svc.turn.actions import Action, CallModel, Emit, Finish, Record, Refuse, Save
from orchestrator_svc.turn.events import (
    Begun,
    Cancelled,
    GracePassed,
    ModelEvent,
    ModelFailed,
    ModelFinished,
    ModelSent,
    Saved,
    SaveFailed,
    Stopped,
    TurnEvent,
    Usage,
)
from orchestrator_svc.turn.response import body_of, response_of
from orchestrator_svc.turn.state import Ending, Phase, Turn

Step = tuple[Turn, tuple[Action, ...]]

_TERMINAL_EVENTS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "",
}


def advance(turn: Turn, event: TurnEvent) -> Step:
    """What the turn becomes by `event`, and what is to be done now."""
    return _REACTIONS[type(event)](turn, event)


def _begin(turn: Turn, event: Begun) -> Step:
    return _next_call(turn)


def _grace_passed(turn: Turn, event: GracePassed) -> Step:
    return _opened(turn) if turn.phase is Phase.WAITING else (turn, ())


def _model_sent(turn: Turn, event: ModelSent) -> Step:
    if turn.phase not in (Phase.WAITING, Phase.STREAMING):
        return turn, ()
    if turn.phase is Phase.WAITING and event.events and isinstance(event.events[0], ModelFailed):
        return replace(turn, phase=Phase.OVER), (Refuse(event.events[0].refusal),)
    turn, opening = _opened(turn)
    turn, actions = _streamed(turn, event)
    return turn, opening + actions


def _opened(turn: Turn) -> Step:
    """The first two events of the stream, if they have not been sent."""
    if turn.phase is not Phase.WAITING:
        return turn, ()
    response = response_of(turn.response_id, body_of(turn, Ending("in_progress")), ())
    written, created = projection.lifecycle(turn.output, "response.created", response)
    written, in_progress = projection.lifecycle(written, "response.in_progress", response)
    return replace(turn, phase=Phase.STREAMING, output=written), (Emit(created + in_progress),)


def _streamed(turn: Turn, event: ModelSent) -> Step:
    last = event.events[-1] if event.events else None
    terminal = last if isinstance(last, (ModelFinished, ModelFailed)) else None
    turn, actions = _shown(turn, event.events[:-1] if terminal else event.events)
    if _is_too_large(turn):
        turn, more = _failed(turn, "engine_output_too_large", "The model's output is larger than the gateway allows.")
    elif isinstance(terminal, ModelFinished):
        turn, more = _model_finished(turn, terminal, event.at)
    elif isinstance(terminal, ModelFailed):
        turn, more = _failed(turn, terminal.code, terminal.message)
    else:
        more = ()
    return turn, actions + more


def _is_too_large(turn: Turn) -> bool:
    output, limits = turn.output, turn.limits
    return output.size > limits.max_output_chars or max(output.announced, len(output.open)) > limits.max_output_items


def _shown(turn: Turn, events: tuple[ModelEvent, ...]) -> Step:
    if not events:
        return turn, ()
    written, stream = projection.project(turn.output, events)
    return replace(turn, output=written), (Emit(stream),) if stream else ()


def _model_finished(turn: Turn, finished: ModelFinished, at: int) -> Step:
    turn = replace(turn, usage=_summed(turn.usage, finished.usage))
    cut = finished.cut or _cut_by_limit(turn, finished.usage) or ("max_output_tokens" if turn.output.ends_cut else None)
    turn, closed = _closed(turn, projection.close(turn.output, cut=cut is not None))
    turn, more = _round_ended(turn, cut, at)
    return turn, closed + more


def _round_ended(turn: Turn, cut: str | None, at: int) -> Step:
    if cut is not None:
        return _ended(turn, Ending("incomplete", cut=cut))
    if turn.output.announced:
        return _ended(turn, Ending("completed", completed_at=at))
    if not turn.retried and turn.round < turn.limits.max_rounds:
        return _next_call(replace(turn, retried=True))
    return _ended(turn, Ending("failed", code="engine_empty_output", message="The model ended twice without any output."))


def _next_call(turn: Turn) -> Step:
    turn = replace(turn, round=turn.round + 1)
    parts = [turn.context, *(item.rendered for item in turn.request.input)]
    return turn, (CallModel(turn.round, b",".join(filter(None, parts))),)


def _failed(turn: Turn, code: str, message: str) -> Step:
    turn, closed = _closed(turn, projection.abandon(turn.output))
    turn, more = _ended(turn, Ending("failed", code=code, message=message))
    return turn, closed + more


def _stopped(turn: Turn, event: Stopped) -> Step:
    if turn.phase is Phase.WAITING:
        return replace(turn, phase=Phase.OVER), (Refuse(event.refusal),)
    return _failed(turn, event.code, event.message) if turn.phase is Phase.STREAMING else (turn, ())


def _cancelled(turn: Turn, event: Cancelled) -> Step:
    """The client has left: nobody reads what is closed now, but it is stored. Once the turn is being saved its fate is decided."""
    if turn.phase not in (Phase.WAITING, Phase.STREAMING):
        return turn, ()
    turn, _ = _closed(turn, projection.abandon(turn.output))
    return _ended(turn, Ending("cancelled"))


def _closed(turn: Turn, written: projection.Written) -> Step:
    output, stream = written
    return replace(turn, output=output), (Emit(stream),) if stream else ()


def _ended(turn: Turn, ending: Ending) -> Step:
    """Decides the turn's fate: it is saved first, if it is to be stored, and its terminal event waits for that."""
    body = body_of(turn, ending)
    turn = replace(_with_terminal_event(turn, ending.status, body), ending=ending)
    if turn.request.store:
        return replace(turn, phase=Phase.SAVING), (Save(_record(turn, ending.status, body)),)
    return _over(turn)


def _with_terminal_event(turn: Turn, status: str, body: bytes) -> Turn:
    type = _TERMINAL_EVENTS[status]
    if not type:
        return turn
    written, (event,) = projection.lifecycle(turn.output, type, response_of(turn.response_id, body, turn.output.items))
    return replace(turn, output=written, pending=event)


def _record(turn: Turn, status: str, body: bytes) -> Record:
    made = turn.output.items
    return Record(
        response_id=turn.response_id,
        round=turn.round,
        status=status,
        items=turn.request.input + made,
        input_count=len(turn.request.input),
        open_call_ids=tuple(item.opens for item in made if item.opens is not None),
        body=body,
    )


def _saved(turn: Turn, event: Saved) -> Step:
    return _over(turn)


def _save_failed(turn: Turn, event: SaveFailed) -> Step:
    """The terminal event that was ready is replaced, number and all: it must not say that the turn is stored."""
    if turn.pending is None:
        return _over(turn)
    ending = Ending("failed", code=event.code, message=event.message)
    turn = replace(turn, ending=ending, output=replace(turn.output, sequence=turn.pending.sequence_number))
    return _over(_with_terminal_event(turn, "failed", body_of(turn, ending)))


def _over(turn: Turn) -> Step:
    actions: tuple[Action, ...] = (Emit((turn.pending,)), Finish()) if turn.pending else (Finish(),)
    return replace(turn, phase=Phase.OVER, pending=None), actions


def _summed(usage: Usage | None, more: Usage | None) -> Usage | None:
    return usage + more if usage and more else usage or more


def _cut_by_limit(turn: Turn, usage: Usage | None) -> str | None:
    """Some engines say completed when the limit has cut the output; the count of tokens tells."""
    limit = turn.request.max_output_tokens
    return "max_output_tokens" if limit is not None and usage is not None and usage.output_tokens >= limit else None


_REACTIONS: dict[type, Callable[..., Step]] = {
    Begun: _begin,
    GracePassed: _grace_passed,
    ModelSent: _model_sent,
    Saved: _saved,
    SaveFailed: _save_failed,
    Cancelled: _cancelled,
    Stopped: _stopped,
}
