"""The turn, as a pure state machine: an event goes in, a new turn and a list of actions come out.

This is the only place that says when a round or a turn ends. It does no IO; `runner` performs the actions and feeds back what came of
them. A turn goes WAITING (nothing was sent, so it can still be refused) -> STREAMING -> SAVING (its fate is decided, nothing can change
it) -> OVER. Its terminal event goes out only once it is stored. A background turn can be refused no more: it is STREAMING from its start.

Before the first model call the MCP servers of the request list their tools, and the calls that its input approves are run. A round is a
model call and then the gateway's own calls among those that the model made; the turn goes on to another round if there were any, and ends
if the model made none, or some that its client must answer. A background turn is saved before each further round, so that another process
can go on from there; one that does begins as this one did, with what was saved.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from orchestrator_svc.context import carried
from orchestrator_svc.context import parent as parents
from orchestrator_svc.context.approvals import Approved, call_id_of
from orchestrator_svc.context.carried import Carried
from orchestrator_svc.context.parent import Continuation
from orchestrator_svc.errors import CompactionFailed, InvalidRequest
from orchestrator_svc.tools.base import Tool, ToolCall, ToolResult
from orchestrator_svc.tools.names import flat_name
from orchestrator_svc.turn import claims, compacting, snapshot
from orchestrator_svc.turn import output as projection
from orchestrator_svc.turn.actions import Action, CallModel, Emit, Finish, ListTools, Record, Refuse, RunTools, Save, StreamEvent
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
    ToolFinished,
    ToolsListed,
    TurnEvent,
    Usage,
)
from orchestrator_svc.turn.response import body_of, response_of
from orchestrator_svc.turn.shapes import parsed
from orchestrator_svc.turn.state import Ending, Phase, Summary, Turn
from orchestrator_svc.turn.written import MadeCall, Written
from svckit.errors import ServiceError

Step = tuple[Turn, tuple[Action, ...]]

_TERMINAL_EVENTS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "",
}
# The types of the events that end a stream.
ENDS = frozenset(filter(None, _TERMINAL_EVENTS.values()))


def advance(turn: Turn, event: TurnEvent) -> Step:
    """What the turn becomes by `event`, and what is to be done now."""
    return _REACTIONS[type(event)](turn, event)


def more_text(turn: Turn, events: tuple[ModelEvent, ...]) -> tuple[Turn, Emit] | None:
    """What `advance` would give for words of the model that are only more of its open part, or None where they are anything else."""
    if turn.phase is not Phase.STREAMING or turn.summary is not None or not (more := projection.more_text(turn.output, events)):
        return None
    output, stream = more
    return (replace(turn, output=output), Emit(stream)) if output.size <= turn.limits.max_output_chars else None


def first_call(turn: Turn) -> CallModel:
    """The turn's first model call, as it would be without the tools of MCP servers, which must be asked for them."""
    return _call(replace(turn, round=1))


# Before the first round.


def _begin(turn: Turn, event: Begun) -> Step:
    turn, taken_up = _taken_up(turn) if turn.request.background else (turn, ())
    turn, actions = _first_step(turn) if event.hindrance is None else _stopped(turn, event.hindrance)
    return turn, taken_up + actions


def _first_step(turn: Turn) -> Step:
    servers = turn.output.tools.mcp
    if not servers:
        return _prepared(turn)
    return replace(turn, unlisted=frozenset(one.server.label for one in servers)), (ListTools(servers),)


def _taken_up(turn: Turn) -> Step:
    """A background turn shows that it runs. What another process has shown and not saved is closed, and nothing continues from it."""
    turn, opening = _opened(turn)
    turn, closed = _written(turn, projection.abandon(turn.output))
    return replace(turn, output=projection.left_out(turn.output, behind=turn.stored)), opening + closed


def _tools_listed(turn: Turn, event: ToolsListed) -> Step:
    if turn.phase not in _LIVE:
        return turn, ()
    label = event.server.server.label
    turn = replace(turn, unlisted=turn.unlisted - {label}, listed=(*turn.listed, event))
    if event.error is not None or label not in turn.parent.carried.listed:
        turn = replace(turn, listings=(*turn.listings, event))
    turn, shown = _listings_shown(turn)
    turn, more = _all_listed(turn) if not turn.unlisted else (turn, ())
    return turn, shown + more


def _all_listed(turn: Turn) -> Step:
    """The tools are declared in the order of the request, whichever server was first: an engine's cache wants the same words each time."""
    tools = turn.output.tools
    by_label = {event.server.server.label: event for event in turn.listed}
    try:
        for mcp in tools.mcp:
            tools = tools.with_listed(mcp, by_label[mcp.server.label].listed)
    except InvalidRequest as error:
        return _refused(turn, error)
    return _prepared(replace(turn, output=replace(turn.output, tools=tools)))


def _listings_shown(turn: Turn) -> Step:
    """Shows the listings that have come, once the stream is open."""
    if turn.phase is not Phase.STREAMING:
        return turn, ()
    actions: tuple[Action, ...] = ()
    for listing in turn.listings:
        label = listing.server.server.label
        turn, shown = _written(turn, projection.show_listing(turn.output, label, listing.listed, listing.error))
        actions += shown
    return replace(turn, listings=()), actions


def _prepared(turn: Turn) -> Step:
    """All tools are known: approved calls run first, then the model is called."""
    try:
        turn.output.tools.forced_choice()
        calls = tuple((_approved_call(turn, approved), approved.pending.arguments) for approved in turn.approved)
    except InvalidRequest as error:
        return _refused(turn, error)
    if turn.request.prewarm:
        turn, opening = _opened(turn)
        turn, more = _ended(turn, Ending("completed", completed_at=turn.created_at))
        return turn, opening + more
    if not calls:
        return _next_round(turn)
    turn, actions = _opened(turn)
    for call, arguments in calls:
        turn, begun = _written(turn, projection.begin_call(turn.output, call, arguments))
        actions += begun
    turn, more = _run(turn, tuple(call for call, _ in calls))
    return turn, actions + more


def _approved_call(turn: Turn, approved: Approved) -> ToolCall:
    """The call that was approved, to the server as this request names it: credentials are never kept."""
    pending = approved.pending
    server = next((one.server for one in turn.output.tools.mcp if one.server.label == pending.server_label), None)
    if server is None:
        raise InvalidRequest(f"The MCP server '{pending.server_label}' of the approved call is not among the tools.", param="tools")
    tool = Tool(flat_name("mcp", server.label, pending.name), "mcp", pending.name, server.label, server=server)
    return ToolCall(call_id_of(approved.request_id), tool, parsed(pending.arguments) or {}, approved.request_id, approved.request_id)


def _refused(turn: Turn, error: ServiceError) -> Step:
    if turn.phase is Phase.WAITING:
        return replace(turn, phase=Phase.OVER), (Refuse(error),)
    return _failed(turn, error.reason, error.message)


# A round: the model call.


def _next_round(turn: Turn) -> Step:
    if compacting.is_due(turn):
        return replace(turn, summary=Summary()), (compacting.asked(turn),)
    if turn.request.compaction.only:
        return _ended(turn, Ending("completed", completed_at=turn.at))
    turn = compacting.with_estimate(replace(turn, round=turn.round + 1))
    return turn, (_call(turn),)


def _call(turn: Turn) -> CallModel:
    tools = tuple(turn.output.tools.declarations())
    input = compacting.truncated(turn, compacting.prompts(turn))
    return CallModel(turn.round, input, tools, _choice(turn) if tools else None)


def _summary_sent(turn: Turn, summary: Summary, event: ModelSent) -> Step:
    """What the model sends while it summarises is not shown; what comes of it is."""
    terminal = event.events[-1] if event.events else None
    summary = compacting.heard(summary, event.events)
    if len(summary.text) > turn.limits.max_output_chars:
        return _summarised(replace(turn, summary=None, at=event.at), Summary())
    if isinstance(terminal, ModelFinished):
        usage = _summed(turn.usage, terminal.usage)
        return _summarised(replace(turn, summary=None, usage=usage, at=event.at), summary if terminal.cut is None else Summary())
    if isinstance(terminal, ModelFailed):
        return _summarised(replace(turn, summary=None, at=event.at), Summary(), terminal.refusal)
    return replace(turn, summary=summary), ()


def _summarised(turn: Turn, summary: Summary, failure: ServiceError | None = None) -> Step:
    """Goes on with the summary, or without one: a compaction that fails does not fail the turn, unless it is all that was asked for."""
    if not summary.text.strip():
        turn = replace(turn, compaction_failed=True)
        if turn.request.compaction.only:
            return _refused(turn, failure or CompactionFailed())
        return _next_round(turn)
    turn, opening = _opened(turn)
    turn, written = compacting.written(turn, summary.text)
    turn, shown = _written(turn, written)
    turn, more = _next_round(turn)
    return turn, opening + shown + more


def _choice(turn: Turn) -> object:
    """A forced choice is for the first round: in later ones it would be forced again and again."""
    if turn.silenced:
        return "none"
    choice = turn.output.tools.forced_choice()
    return "auto" if turn.round > 1 and choice not in (None, "none", "auto") else choice


def _grace_passed(turn: Turn, event: GracePassed) -> Step:
    return _opened(turn) if turn.phase is Phase.WAITING else (turn, ())


def _model_sent(turn: Turn, event: ModelSent) -> Step:
    if more := more_text(turn, event.events):
        return more[0], (more[1],)
    if turn.phase not in _LIVE:
        return turn, ()
    if turn.summary is not None:
        return _summary_sent(turn, turn.summary, event)
    if turn.phase is Phase.WAITING and event.events and isinstance(event.events[0], ModelFailed):
        return replace(turn, phase=Phase.OVER), (Refuse(event.events[0].refusal),)
    turn, opening = _opened(turn)
    turn, actions = _streamed(turn, event)
    return turn, opening + actions


def _opened(turn: Turn) -> Step:
    """The first events of the stream and what was listed meanwhile, if they have not been sent."""
    if turn.phase is not Phase.WAITING:
        return turn, ()
    written, events = turn.output, _NO_EVENTS
    for type, status in _QUEUED_OPENING if turn.request.background else _OPENING:
        response = response_of(turn.response_id, body_of(turn, Ending(status)), ())
        written, event = projection.lifecycle(written, type, response)
        events += event
    turn, listings = _listings_shown(replace(turn, phase=Phase.STREAMING, output=written))
    return turn, (Emit(events), *listings)


_NO_EVENTS: tuple[StreamEvent, ...] = ()
_OPENING = (("response.created", "in_progress"), ("response.in_progress", "in_progress"))
_QUEUED_OPENING = (("response.created", "queued"), ("response.queued", "queued"), ("response.in_progress", "in_progress"))


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
    return _written(turn, projection.project(turn.output, events)) if events else (turn, ())


def _model_finished(turn: Turn, finished: ModelFinished, at: int) -> Step:
    counted = finished.usage.input_tokens if finished.usage else 0
    turn = replace(turn, usage=_summed(turn.usage, finished.usage), at=at, last_counted=counted)
    cut = finished.cut or _cut_by_limit(turn, finished.usage) or ("max_output_tokens" if turn.output.ends_cut else None)
    turn, closed = _written(turn, projection.close(turn.output, cut=cut is not None))
    turn, more = _round_ended(turn, cut)
    return turn, closed + more


# A round: its calls.


def _round_ended(turn: Turn, cut: str | None) -> Step:
    calls = turn.output.calls
    if cut is not None:
        return _ended_without(turn, calls, cut, "The answer was cut off, so this call was not run.")
    if calls and turn.round >= turn.limits.max_rounds:
        return _ended_without(turn, calls, "max_rounds", "This turn may not go on, so this call was not run.")
    if calls:
        return _calls_started(turn, calls)
    if _has_output(turn):
        return _ended(turn, Ending("completed", completed_at=turn.at))
    if not turn.retried and turn.round < turn.limits.max_rounds:
        return _next_round(replace(turn, retried=True))
    return _ended(turn, Ending("failed", code="engine_empty_output", message="The model ended twice without any output."))


def _has_output(turn: Turn) -> bool:
    """Whether the turn has anything to show but listings: a model that says nothing after its calls have run has answered."""
    return any(item.body and item.type not in ("mcp_list_tools", "compaction") for item in turn.output.items)


def _ended_without(turn: Turn, calls: Sequence[MadeCall], cut: str, told: str) -> Step:
    turn, closed = _answered(turn, [(call, _not_run(told)) for call in calls])
    turn, more = _ended(turn, Ending("incomplete", cut=cut))
    return turn, closed + more


def _calls_started(turn: Turn, calls: tuple[MadeCall, ...]) -> Step:
    """Starts the calls that may be run; those that may not are answered at once."""
    runnable: list[ToolCall] = []
    answers: list[tuple[MadeCall, ToolResult]] = []
    for call in calls:
        turn = replace(turn, silenced=turn.silenced or (call.tool is not None and _is_at_limit(turn)))
        judged = _judged(turn, call)
        if isinstance(judged, ToolResult):
            answers.append((call, judged))
            continue
        runnable.append(judged)
        turn = replace(turn, calls_made=turn.calls_made + 1)
    turn, answered = _answered(turn, answers)
    turn, more = _run(turn, tuple(runnable)) if runnable else _calls_ended(turn)
    return turn, answered + more


def _judged(turn: Turn, made: MadeCall) -> ToolCall | ToolResult:
    """The call as it is to be run, or the answer to one that may not be."""
    if made.tool is None:
        return _not_run(f"There is no tool named '{made.name[:64]}' that may be called now.")
    if turn.silenced:
        return _not_run(f"The limit of {turn.request.max_tool_calls} tool calls is reached, so this call was not run.")
    arguments = parsed(made.arguments)
    if arguments is None:
        return _not_run("The arguments are not a JSON object, so this call was not run.")
    return ToolCall(made.call_id, made.tool, arguments)


def _is_at_limit(turn: Turn) -> bool:
    limit = turn.request.max_tool_calls
    return limit is not None and turn.calls_made >= limit


def _not_run(told: str) -> ToolResult:
    return ToolResult(f"Error: {told}", failed=True)


def _run(turn: Turn, calls: tuple[ToolCall, ...]) -> Step:
    calls = claims.claimed(turn, calls) if turn.request.background else calls
    return replace(turn, awaited=frozenset(call.call_id for call in calls)), (RunTools(calls),)


def _tool_finished(turn: Turn, event: ToolFinished) -> Step:
    if turn.phase is not Phase.STREAMING or event.call_id not in turn.awaited:
        return turn, ()
    turn = replace(turn, awaited=turn.awaited - {event.call_id})
    turn, actions = _written(turn, projection.finish_call(turn.output, event.call_id, event.result))
    turn, more = _calls_ended(turn) if not turn.awaited else (turn, ())
    return turn, actions + more


def _calls_ended(turn: Turn) -> Step:
    """Every call of the gateway has its result. The turn goes on, unless its client is to answer something."""
    if _client_is_asked(turn):
        return _ended(turn, Ending("completed", completed_at=turn.at))
    if turn.request.background:
        return turn, (Save(_record_so_far(turn)),)
    return _next_round(turn)


def _client_is_asked(turn: Turn) -> bool:
    asked = (item for item in turn.output.items if not item.left_out)
    return any(item.opens is not None or item.type == "mcp_approval_request" for item in asked)


def _answered(turn: Turn, answers: Sequence[tuple[MadeCall, ToolResult]]) -> Step:
    actions: tuple[Action, ...] = ()
    for call, result in answers:
        turn, shown = _written(turn, projection.finish_call(turn.output, call.call_id, result))
        actions += shown
    return turn, actions


# The end.


def _failed(turn: Turn, code: str, message: str) -> Step:
    turn, closed = _written(turn, projection.abandon(turn.output))
    turn, more = _ended(turn, Ending("failed", code=code, message=message))
    return turn, closed + more


def _stopped(turn: Turn, event: Stopped) -> Step:
    if turn.phase is Phase.WAITING:
        return replace(turn, phase=Phase.OVER), (Refuse(event.refusal),)
    return _failed(turn, event.code, event.message) if turn.phase is Phase.STREAMING else (turn, ())


def _cancelled(turn: Turn, event: Cancelled) -> Step:
    """What is closed now only the viewers of a background turn still read, but it is stored. Once the turn is being saved its fate is
    decided."""
    if turn.phase not in _LIVE:
        return turn, ()
    turn, closed = _written(turn, projection.abandon(turn.output))
    turn, more = _ended(turn, Ending("cancelled"))
    return turn, closed + more


def _written(turn: Turn, written: Written) -> Step:
    output, stream = written
    return replace(turn, output=output), (Emit(stream),) if stream else ()


def _ended(turn: Turn, ending: Ending) -> Step:
    """Decides the turn's fate: it is saved first, if it is to be stored, and its terminal event waits for that."""
    body = body_of(turn, ending)
    turn = replace(_with_terminal_event(turn, ending.status, body), ending=ending)
    if _is_saved(turn, ending):
        return replace(turn, phase=Phase.SAVING), (Save(_record(turn, ending.status, body)),)
    return _over(turn)


def _is_saved(turn: Turn, ending: Ending) -> bool:
    """A conversation gets the items of a turn that is not stored itself, if the turn has come to a good end."""
    return turn.request.store or (bool(turn.parent.conversation_id) and ending.status in _CONTINUABLE)


_CONTINUABLE = ("completed", "incomplete")


def _with_terminal_event(turn: Turn, status: str, body: bytes) -> Turn:
    type = _TERMINAL_EVENTS[status]
    if not type:
        return turn
    written, (event,) = projection.lifecycle(turn.output, type, response_of(turn.response_id, body, turn.output.items))
    return replace(turn, output=written, pending=event)


def _record_so_far(turn: Turn) -> Record:
    record = _record(turn, "in_progress", body_of(turn, Ending("in_progress")))
    return replace(record, resume_state=snapshot.write(turn))


def _record(turn: Turn, status: str, body: bytes) -> Record:
    input = turn.parent.unstored + turn.request.input
    return Record(
        response_id=turn.response_id,
        round=turn.saves + 1 if turn.request.background else turn.round,
        status=status,
        items=(input + turn.output.items)[turn.stored :],
        input_count=max(len(input) - turn.stored, 0),
        open_call_ids=_open_calls(turn),
        body=body,
        carried=carried.write(_carried(turn)),
        left_out=max(_left_out(turn, status, len(input)) - turn.stored, 0),
        stands_alone=_stands_alone(turn, len(input)),
        replaces=turn.parent.base if turn.has_compacted or turn.compacted_from is not None else (),
    )


def _left_out(turn: Turn, status: str, inputs: int) -> int:
    """How many of the first items are in no checkpoint: all of a turn that cannot be continued, else those that a compaction stands for."""
    if status not in (*_CONTINUABLE, "in_progress"):
        return inputs + len(turn.output.items)
    if turn.compacted_from is None:
        return 0
    return inputs + len(turn.output.items) - len(compacting.own_items(turn))


def _stands_alone(turn: Turn, inputs: int) -> bool:
    """Whether a compaction stands for all that was stored before this save."""
    return turn.compacted_from is not None and inputs + len(turn.output.items) - len(compacting.own_items(turn)) >= turn.stored


def _open_calls(turn: Turn) -> tuple[str, ...]:
    return compacting.waiting_calls(turn) + tuple(item.opens for item in turn.output.items if item.opens is not None)


def _carried(turn: Turn) -> Carried:
    listed = [event.server.server.label for event in turn.listed if event.error is None]
    items = (item for item in turn.request.input + turn.output.items if not item.left_out)
    return carried.after(turn.parent.carried, items, listed, turn.compacted_tokens)


def _saved(turn: Turn, event: Saved) -> Step:
    if not _is_between_rounds(turn):
        return _over(turn)
    items = turn.parent.unstored + turn.request.input + turn.output.items
    return _next_round(replace(turn, checkpoint=event.checkpoint, saves=turn.saves + 1, stored=len(items)))


def _is_between_rounds(turn: Turn) -> bool:
    return turn.request.background and turn.phase is Phase.STREAMING


def _save_failed(turn: Turn, event: SaveFailed) -> Step:
    """The terminal event that was ready is replaced, number and all: it must not say that the turn is stored."""
    if _is_between_rounds(turn):
        return _failed(turn, event.code, event.message)
    if turn.pending is None:
        return _over(turn)
    ending = Ending("failed", code=event.code, message=event.message)
    turn = replace(turn, ending=ending, output=replace(turn.output, sequence=turn.pending.sequence_number))
    return _over(_with_terminal_event(turn, "failed", body_of(turn, ending)))


def _over(turn: Turn) -> Step:
    finish = Finish(_continuation(turn))
    actions: tuple[Action, ...] = (Emit((turn.pending,)), finish) if turn.pending else (finish,)
    return replace(turn, phase=Phase.OVER, pending=None), actions


def _continuation(turn: Turn) -> bytes:
    """What a client's connection keeps of a turn that is stored nowhere."""
    request, ending = turn.request, turn.ending
    if not request.keep_continuation or request.store or ending is None or ending.status not in _CONTINUABLE:
        return b""
    items, stored_id = turn.parent.unstored + request.input + turn.output.items, turn.parent.response_id
    if turn.compacted_from is not None:
        items, stored_id = compacting.own_items(turn), ""
    kept = Continuation(turn.response_id, stored_id, items, _open_calls(turn), _carried(turn))
    return parents.write(kept)


def _summed(usage: Usage | None, more: Usage | None) -> Usage | None:
    return usage + more if usage and more else usage or more


def _cut_by_limit(turn: Turn, usage: Usage | None) -> str | None:
    """Some engines say completed when the limit has cut the output; the count of tokens tells."""
    limit = turn.request.max_output_tokens
    return "max_output_tokens" if limit is not None and usage is not None and usage.output_tokens >= limit else None


_LIVE = (Phase.WAITING, Phase.STREAMING)
_REACTIONS: dict[type, Callable[..., Step]] = {
    Begun: _begin,
    ToolsListed: _tools_listed,
    GracePassed: _grace_passed,
    ModelSent: _model_sent,
    ToolFinished: _tool_finished,
    Saved: _saved,
    SaveFailed: _save_failed,
    Cancelled: _cancelled,
    Stopped: _stopped,
}
