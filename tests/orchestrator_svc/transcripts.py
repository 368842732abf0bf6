"""Transcripts: a text file in which lines that begin with `>` are what happens to a turn, and the lines below each are what comes out.

    > sent text 0.0 "Hello" | end usage=3/1
    emit
      2 output_item.added 0 {"id":"msg_2",...}

Lines that begin with `#` say what is shown. The command `turn` makes the turn (`store=false`, `max_output_tokens=4`, `max_output_chars=9`,
`max_output_items=1`); without one it is a stored turn of the message "hello". Of model events, `|` stands between those of one read.
Ids are short: the number of their place in the turn's block.

    > tools [{"type":"web_search"}]   the turn's tools; a `turn` behind it may say `max_tool_calls=1` and `max_rounds=2`
    > listed docs find look           an MCP server has listed its tools; `not listed docs "gone"` says why it has not
    > finished call_1 "found"         a call has its result; `failed call_1 "why"`
"""

import re
from collections.abc import Iterator

import msgspec

from orchestrator_svc.errors import EngineError, EngineTimeout, ShuttingDown
from orchestrator_svc.items import Item, JsonObject
from orchestrator_svc.tools.base import ListedTool, ToolResult
from orchestrator_svc.tools.table import McpTool
from orchestrator_svc.turn.actions import Action, CallModel, Emit, Finish, ListTools, Record, Refuse, RunTools, Save, StreamEvent
from orchestrator_svc.turn.events import (
    AnnotationAdded,
    Begun,
    Cancelled,
    GracePassed,
    ItemFinished,
    ItemStarted,
    ModelEvent,
    ModelFailed,
    ModelFinished,
    PartDelta,
    PartKind,
    Saved,
    SaveFailed,
    Stopped,
    ToolFinished,
    ToolsListed,
    TurnEvent,
    Usage,
)
from orchestrator_svc.turn.machine import advance
from orchestrator_svc.turn.state import Limits, Turn
from tests.orchestrator_svc.turns import HELLO, WEATHER, request, sent, turn

KINDS = {
    "text": PartKind.TEXT,
    "refusal": PartKind.REFUSAL,
    "thought": PartKind.REASONING,
    "summary": PartKind.SUMMARY,
    "arguments": PartKind.ARGUMENTS,
}
EVENTS: dict[str, TurnEvent] = {
    "begin": Begun(),
    "grace passed": GracePassed(),
    "cancelled": Cancelled(),
    "saved": Saved(),
    "save failed": SaveFailed("storage_failed", "It is not stored."),
    "shut down": Stopped("server_shutdown", "It was shut down.", ShuttingDown()),
    "time is up": Stopped("turn_timeout", "It took too long.", EngineTimeout()),
}
SHORT = re.compile(r"\b([a-z]+_)0{16}([0-9a-f]{24})\b")
ALWAYS_SHOWN = ("id", "status", "output", "usage", "error", "incomplete_details", "completed_at")


def retold(transcript: str) -> tuple[str, list[StreamEvent]]:
    """The transcript as the machine has it now, and the stream events of the turn."""
    state, told, stream, tools = turn(), list[str](), list[StreamEvent](), [WEATHER]
    for line in transcript.splitlines():
        if line.startswith("#") or (not line and (not told or told[-1].startswith("#"))):
            told.append(line)
        elif line.startswith("> turn "):
            told.append(line)
            state = a_turn(line.removeprefix("> turn "), tools)
        elif line.startswith("> tools "):
            told.append(line)
            tools = msgspec.json.decode(line.removeprefix("> tools "), type=list[JsonObject])
            state = a_turn("", tools)
        elif line.startswith("> "):
            state, actions = advance(state, tool_event(state, line[2:]) or event_of(line[2:]))
            told += [line, *(row for action in actions for row in rows(action)), ""]
            stream += [event for action in actions if isinstance(action, Emit) for event in action.events]
    return SHORT.sub(lambda match: match[1] + str(int(match[2], 16)), "\n".join(told)), stream


def a_turn(settings: str, tools: list[JsonObject]) -> Turn:
    given = dict(setting.split("=") for setting in settings.split())
    limits = Limits(int(given.get("max_rounds", 10)), int(given.get("max_output_chars", 1000)), int(given.get("max_output_items", 10)))
    parameters = {name: int(given[name]) for name in ("max_output_tokens", "max_tool_calls") if name in given}
    return turn(request(HELLO, store=given.get("store") != "false", tools=tools, **parameters), limits=limits)


# What happens.


def tool_event(state: Turn, command: str) -> TurnEvent | None:
    """What a server or a tool has to say."""
    match command.split(" "):
        case ["listed", label, *names]:
            return ToolsListed(server_of(state, label), tuple(ListedTool(name, {"type": "object"}) for name in names))
        case ["not", "listed", label, *words]:
            return ToolsListed(server_of(state, label), error=msgspec.json.decode(" ".join(words), type=str))
        case ["finished" | "failed" as verb, call_id, *words]:
            return ToolFinished(call_id, ToolResult(msgspec.json.decode(" ".join(words), type=str), failed=verb == "failed"))
    return None


def server_of(state: Turn, label: str) -> McpTool:
    return next(one for one in state.output.tools.mcp if one.server.label == label)


def event_of(command: str) -> TurnEvent:
    if command == "sent":
        return sent()
    if command.startswith("sent "):
        return sent(*(model_event(one) for one in command.removeprefix("sent ").split(" | ")))
    return EVENTS[command]


def model_event(words: str) -> ModelEvent:
    verb, _, rest = words.partition(" ")
    place, _, value = rest.partition(" ")
    match verb:
        case "start":
            type, *named = value.split(" ")
            return ItemStarted(int(place), type, **dict(pair.split("=") for pair in named))
        case "done":
            return ItemFinished(int(place), msgspec.json.decode(value, type=JsonObject))
        case "citation":
            key, part = place.split(".")
            return AnnotationAdded(int(key), int(part), msgspec.json.decode(value, type=JsonObject))
        case "end":
            return an_end(dict(pair.split("=") for pair in rest.split()))
        case "fail":
            return ModelFailed(place, value, EngineError())
    key, part = place.split(".")
    return PartDelta(int(key), KINDS[verb], int(part), msgspec.json.decode(value, type=str))


def an_end(given: dict[str, str]) -> ModelFinished:
    tokens = [int(count) for count in given["usage"].split("/")] if "usage" in given else []
    usage = Usage(input_tokens=tokens[0], output_tokens=tokens[1]) if tokens else None
    return ModelFinished(given.get("cut"), usage)


# What comes out.


def rows(action: Action) -> Iterator[str]:
    match action:
        case CallModel(number, input, tools, choice):
            names = [str(tool["name"]) for tool in tools]
            chosen = "" if choice is None else f", tool_choice {msgspec.json.encode(choice).decode()}"
            offered = "" if names in ([], ["weather"]) else f" with {', '.join(names)}"
            yield f"call model, round {number}{offered}{chosen}: [{b','.join(input).decode()}]"
        case ListTools(servers):
            yield f"list the tools of {', '.join(one.server.label for one in servers)}"
        case RunTools(calls):
            yield "run"
            for call in calls:
                approved = f", approved by {call.approval_request_id}" if call.approval_request_id else ""
                yield f"  {call.call_id}: {call.tool.flat} {msgspec.json.encode(call.arguments).decode()}{approved}"
        case Emit(events):
            yield "emit"
            yield from (f"  {event.sequence_number} {shown(event)}" for event in events)
        case Save(record):
            yield f"save {record.status} after round {record.round}" + open_calls(record)
            yield from (f"  input  {row(item)}" for item in record.items[: record.input_count])
            yield from (f"  output {row(item)}" for item in record.items[record.input_count :])
        case Refuse(error):
            yield f"refuse with {type(error).__name__}"
        case Finish():
            yield "finish"


def open_calls(record: Record) -> str:
    return f", open calls: {', '.join(record.open_call_ids)}" if record.open_call_ids else ""


def row(item: Item) -> str:
    seen = "as it is" if item.prompt is None else "not" if not item.prompt else f"as {item.prompt.decode()}"
    maker = f", by {item.origin} only" if item.origin else ""
    shown = item.shown.decode() if item.body else "not shown,"
    return f"{shown} seen {seen}{maker}"


def shown(event: StreamEvent) -> str:
    fields = msgspec.json.decode(event.data, type=JsonObject)
    name = event.type.removeprefix("response.")
    del fields["type"], fields["sequence_number"]
    if isinstance(response := fields.get("response"), dict):
        fields = {key: response[key] for key in ALWAYS_SHOWN if response[key] not in (None, [])}
        if usage := response["usage"]:
            fields["usage"] = f"{usage['input_tokens']}/{usage['output_tokens']}"
        fields |= {"output": [item["id"] for item in response["output"]]} if response["output"] else {}
    return f"{name} {place_of(fields)}{msgspec.json.encode(fields).decode() if fields else ''}".rstrip()


def place_of(fields: JsonObject) -> str:
    """Which item and which part of it an event speaks of."""
    fields.pop("item_id", None)
    index = fields.pop("output_index", None)
    part = fields.pop("content_index", fields.pop("summary_index", None))
    if fields.get("logprobs") == []:
        del fields["logprobs"]
    return "" if index is None else f"{index} " if part is None else f"{index}.{part} "
