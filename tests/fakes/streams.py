"""The judge of every stream a test makes: it reads server-sent events from raw bytes and checks one response's events from end to end.

    sse = read_sse(raw)                 # bytes as the client got them; wire form checked, heartbeats kept in `sse.gaps`
    terminal = check_stream(sse.events) # shapes, order, numbers, indexes; items rebuilt from deltas; returns the final response object

Faults are raised as `StreamFault`, an AssertionError. This file talks to no server, except `read_writes`, which collects a body.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import aiohttp

from tests.fakes.answers import Json
from tests.fakes.schemas import ShapeFault, check_event_shape, check_item_shape, check_response_shape

HEARTBEAT = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"
TERMINAL = {"response.completed": "completed", "response.failed": "failed", "response.incomplete": "incomplete"}
OPENING = ("response.created", "response.queued", "response.in_progress")
MOVING = frozenset({"status", "output", "usage", "completed_at", "error", "incomplete_details", "service_tier"})
"""Fields of the response that may differ between its lifecycle events; all others are the same throughout."""


class StreamFault(AssertionError):
    """A stream that breaks a rule; the message names the event and the rule."""


@dataclass(frozen=True, slots=True)
class Sse:
    """A read stream: its events, the comment bytes in front of each event (and behind the last), and whether `[DONE]` ended it."""

    events: tuple[Json, ...]
    gaps: tuple[bytes, ...]
    done: bool

    @property
    def heartbeats(self) -> int:
        return sum(gap.count(b"\n") for gap in self.gaps)


def read_sse(raw: bytes, *, complete: bool = True) -> Sse:
    """Reads the bytes of an event stream and refuses any other wire form than ours.

    `complete`: the stream must end with `[DONE]`. Otherwise it may stop after any whole event.
    """
    _need(b"\r" not in raw, "a carriage return on the wire")
    events: list[Json] = []
    gaps = [b""]
    rest = raw
    while rest and rest != DONE:
        if rest.startswith(b":"):
            comment, rest = _split_behind(rest, b"\n")
            _need(comment == HEARTBEAT, f"a comment that is no heartbeat: {comment!r}")
            gaps[-1] += comment
        else:
            frame, rest = _split_behind(rest, b"\n\n")
            events.append(_event_of(frame))
            gaps.append(b"")
    _need(not complete or rest == DONE, "the stream does not end with [DONE]")
    return Sse(tuple(events), tuple(gaps), rest == DONE)


def _split_behind(data: bytes, mark: bytes) -> tuple[bytes, bytes]:
    end = data.find(mark)
    _need(end >= 0, f"bytes without an end: {data[:80]!r}")
    return data[: end + len(mark)], data[end + len(mark) :]


def _event_of(frame: bytes) -> Json:
    shape = re.fullmatch(rb"event: ([^\n]+)\ndata: ([^\n]+)\n\n", frame)
    _need(shape, f"not one event line, one data line and a blank line: {frame[:200]!r}")
    assert shape is not None
    try:
        event = json.loads(shape[2])
    except ValueError as exc:
        raise StreamFault(f"data is not JSON: {shape[2][:200]!r}") from exc
    _need(isinstance(event, dict), f"data is no JSON object: {shape[2][:200]!r}")
    _need(event.get("type") == shape[1].decode(), f"event name {shape[1].decode()!r} is not data.type {event.get('type')!r}")
    return cast(Json, event)


async def read_writes(response: aiohttp.ClientResponse) -> tuple[bytes, ...]:
    """The body of a chunked answer in the chunks the server wrote."""
    writes: list[bytes] = []
    current = b""
    async for data, ended in response.content.iter_chunks():
        current += data
        if ended and current:
            writes.append(current)
            current = b""
    return (*writes, current) if current else tuple(writes)


def check_writes(writes: Sequence[bytes]) -> Sse:
    """Every write holds whole events and heartbeats only, and all together are a complete stream."""
    for write in writes:
        rest = write.removesuffix(DONE)
        read_sse(rest, complete=False)
    return read_sse(b"".join(writes))


def check_stream(events: Iterable[Mapping[str, object]], *, taken_over: bool = False) -> Json:
    """Checks all events of one response and returns the response object of the terminal event.

    `taken_over`: another process has gone on with the turn, so that items of the one before may stand incomplete in its output.
    """
    checker = _Checker(taken_over)
    for number, event in enumerate(events):
        try:
            checker.take(number, dict(event))
        except (StreamFault, ShapeFault) as fault:
            raise StreamFault(f"event {number} ({event.get('type')}): {fault}") from None
    return checker.end()


def check_response(response: Mapping[str, object], *, taken_over: bool = False) -> Json:
    """Checks one response object, as JSON answers, GET and terminal events have it, and returns it; `taken_over` as in check_stream."""
    body = dict(response)
    try:
        check_response_shape(body)
    except ShapeFault as fault:
        raise StreamFault(str(fault)) from None
    _check_outcome(body, taken_over)
    return body


def check_item_list(page: Mapping[str, object]) -> list[Json]:
    """Checks a list object of items, as input_items gives it, and returns its items."""
    items = cast(list[Json], page["data"])
    ids = [item.get("id") for item in items]
    _need(page["object"] == "list" and isinstance(page["has_more"], bool), f"no list object: {sorted(page)}")
    _need(
        (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None)), "first_id or last_id is not that of the data"
    )
    _need(all(isinstance(item_id, str) and item_id for item_id in ids) and len(set(ids)) == len(ids), f"ids are missing or repeated: {ids}")
    for item in items:
        try:
            check_item_shape(item)
        except ShapeFault as fault:
            raise StreamFault(str(fault)) from None
    return items


def normalised(response: Mapping[str, object]) -> Json:
    """The response with its own ids numbered in order of appearance and its times set to 0, so that two runs compare equal."""
    output = cast(list[Json], response.get("output") or [])
    own = [response.get("id"), *(item.get("id") for item in output)]
    names = {str(old): f"{str(old).split('_')[0]}_{number}" for number, old in enumerate(own) if old is not None}
    plain = cast(Json, _renamed(dict(response), names))
    return plain | {key: 0 for key in ("created_at", "completed_at") if plain.get(key) is not None}


def _renamed(value: object, names: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_renamed(entry, names) for entry in value]
    if isinstance(value, dict):
        return {key: _renamed(entry, names) for key, entry in value.items()}
    return value


def _need(fact: object, rule: str) -> None:
    if not fact:
        raise StreamFault(rule)


def _check_outcome(response: Json, taken_over: bool) -> None:
    """What a status says about the other fields of a response."""
    status = response["status"]
    output = cast(list[Json], response["output"])
    _need(status in ("queued", "in_progress", "completed", "failed", "incomplete", "cancelled"), f"unknown status {status!r}")
    _need((response["completed_at"] is not None) == (status == "completed"), f"completed_at is {response['completed_at']!r} while {status}")
    _need((response["error"] is not None) == (status == "failed"), f"error is {response['error']!r} while {status}")
    _need((response["incomplete_details"] is not None) == (status == "incomplete"), f"incomplete_details do not fit {status}")
    _need(isinstance(response["metadata"], dict), "metadata is not an object")
    ids = [item.get("id") for item in output]
    _need(len(set(ids)) == len(ids), f"an item id stands twice in the output: {ids}")
    statuses = [item.get("status") for item in output]
    _need(status in ("queued", "in_progress") or "in_progress" not in statuses, f"an item is still in_progress while {status}")
    _need(taken_over or status != "completed" or "incomplete" not in statuses, "an item is incomplete in a completed response")
    _need(status != "completed" or output, "a completed response without output")
    _check_usage(response["usage"])


def _check_usage(usage: object) -> None:
    if usage is None:
        return
    counts = cast(dict[str, int], usage)
    _need(counts["total_tokens"] == counts["input_tokens"] + counts["output_tokens"], f"usage does not add up: {usage}")


@dataclass(slots=True)
class _Text:
    """A part that grows: content of a message or of reasoning, or a summary."""

    kind: str
    deltas: list[str] = field(default_factory=list)
    annotations: list[object] = field(default_factory=list)
    text: str | None = None
    part: Json | None = None

    @property
    def key(self) -> str:
        return "refusal" if self.kind == "refusal" else "text"


@dataclass(slots=True)
class _Item:
    """An announced item and what its deltas have built so far."""

    index: int
    added: Json
    content: list[_Text] = field(default_factory=list)
    summary: list[_Text] = field(default_factory=list)
    strings: dict[str, list[str]] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)
    done: Json | None = None


BLANK: dict[str, Json] = {
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
    "custom_tool_call": {"input": ""},
    "reasoning": {"summary": []},
    "web_search_call": {"status": "in_progress", "action": None},
    "mcp_list_tools": {"tools": []},
    "mcp_call": {"status": "in_progress", "arguments": "", "output": None, "error": None},
}
"""What an item of a type holds when it is announced, before its deltas."""
SAME_THROUGHOUT = ("type", "id", "role", "name", "call_id", "namespace", "server_label")
STAGES = {
    "web_search_call": ("in_progress", "searching", "completed"),
    "mcp_list_tools": ("in_progress", "completed"),
    "mcp_call": ("in_progress", "completed"),
}
"""The events between the announcement and the end of what the gateway does itself, when it succeeds."""
FAILED_STAGES = {
    "web_search_call": (("in_progress",), ("in_progress", "searching")),
    "mcp_list_tools": (("in_progress", "failed"),),
    "mcp_call": (("in_progress", "failed"), ("in_progress",)),
}
"""The same, when it fails or is cut short."""
PART_TEXTS = {
    "response.output_text": "output_text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_text",
    "response.reasoning": "reasoning_text",
}
STRINGS = {
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
    "response.mcp_call_arguments": ("mcp_call", "arguments"),
    "response.code_interpreter_call_code": ("code_interpreter_call", "code"),
}


class _Checker:
    """One pass over one stream: `take` each event, then `end`."""

    def __init__(self, taken_over: bool) -> None:
        self.taken_over = taken_over
        self.items: dict[str, _Item] = {}
        self.opening: list[str] = []
        self.head: Json | None = None
        self.terminal: Json | None = None
        self.error_seen = False

    def take(self, number: int, event: Json) -> None:
        _need(self.terminal is None, "an event behind the terminal event")
        check_event_shape(event)
        _need(event["sequence_number"] == number, f"sequence_number is {event['sequence_number']}, not {number}")
        kind = str(event["type"])
        _need((number == 0) == (kind == "response.created"), "the first event, and only it, is response.created")
        _need(not self.error_seen or kind == "response.failed", "only response.failed may follow an error event")
        self._handler(kind)(event)

    def end(self) -> Json:
        if self.terminal is None:
            raise StreamFault("the stream has no terminal event")
        return self.terminal

    def _handler(self, kind: str) -> Callable[[Json], None]:
        if kind in OPENING:
            return self._open
        if kind in TERMINAL:
            return self._finish
        stem, _, step = kind.rpartition(".")
        if stem in PART_TEXTS or stem == "response.reasoning_summary_text":
            return self._text_delta if step == "delta" else self._text_done
        if stem in STRINGS:
            return self._string_delta if step == "delta" else self._string_done
        return {
            "error": self._error,
            "response.output_item.added": self._item_added,
            "response.output_item.done": self._item_done,
            "response.content_part.added": self._part_added,
            "response.content_part.done": self._part_done,
            "response.reasoning_summary_part.added": self._part_added,
            "response.reasoning_summary_part.done": self._part_done,
            "response.output_text.annotation.added": self._annotation,
        }.get(kind, self._progress)

    def _open(self, event: Json) -> None:
        kind, response = str(event["type"]), cast(Json, event["response"])
        _need(kind not in self.opening, f"a second {kind}")
        _need(not self.items, f"{kind} behind an item")
        _need(kind != "response.queued" or "response.in_progress" not in self.opening, "queued behind in_progress")
        _need(response["status"] in ("queued", "in_progress"), f"status is {response['status']!r}")
        _need(response["output"] == [] and response["usage"] is None, "output or usage before the end")
        check_response(response)
        self._same_response(response)
        self.opening.append(kind)

    def _same_response(self, response: Json) -> None:
        fixed = {key: value for key, value in response.items() if key not in MOVING}
        if self.head is None:
            self.head = fixed
        for key in fixed.keys() | self.head.keys():
            before, now = self.head.get(key), fixed.get(key)
            _need(before == now, f"response.{key} was {before!r} and is now {now!r}")

    def _error(self, event: Json) -> None:
        self.error_seen = True

    def _finish(self, event: Json) -> None:
        response = cast(Json, event["response"])
        _need(response["status"] == TERMINAL[str(event["type"])], f"status is {response['status']!r}")
        self._same_response(response)
        for item_id, item in self.items.items():
            _need(item.done is not None, f"item {item_id} was announced and never closed")
        built = [item.done for item in self.items.values()]
        _need(response["output"] == built, f"output is not the closed items in order of index: {response['output']} != {built}")
        check_response(response, taken_over=self.taken_over)
        self._check_cut(response)
        self.terminal = response

    def _check_cut(self, response: Json) -> None:
        statuses = [cast(Json, item.done).get("status") for item in self.items.values()]
        is_whole = self.taken_over or response["status"] != "incomplete"
        _need(is_whole or "incomplete" not in statuses[:-1], "an incomplete item that is not the last")

    def _item_added(self, event: Json) -> None:
        item = cast(Json, event["item"])
        _need(isinstance(item, dict), "item is null")
        item_id = item.get("id")
        _need(isinstance(item_id, str) and item_id, "the item has no id")
        _need(item_id not in self.items, f"item {item_id} was announced before")
        _need(event["output_index"] == len(self.items), f"output_index is {event['output_index']}, the next one is {len(self.items)}")
        for key, value in BLANK.get(str(item["type"]), {}).items():
            _need(item.get(key) == value, f"a new {item['type']} has {key} {item.get(key)!r}")
        _need(not (item["type"] == "reasoning" and item.get("content")), "a new reasoning item has content")
        self.items[str(item_id)] = _Item(len(self.items), item)

    def _item_of(self, event: Json) -> _Item:
        item = self.items.get(str(event.get("item_id")))
        if item is None:
            raise StreamFault(f"no item {event.get('item_id')!r} was announced")
        _need(item.done is None, f"item {event['item_id']} is closed")
        _need(event["output_index"] == item.index, f"output_index is {event['output_index']}, the item has {item.index}")
        return item

    def _parts_of(self, event: Json) -> tuple[list[_Text], object]:
        item = self._item_of(event)
        return (item.summary, event["summary_index"]) if "summary_index" in event else (item.content, event["content_index"])

    def _open_part(self, event: Json) -> _Text:
        parts, index = self._parts_of(event)
        _need(isinstance(index, int) and 0 <= index < len(parts), f"no part {index} was opened")
        part = parts[cast(int, index)]
        _need(part.part is None, f"part {index} is closed")
        return part

    def _part_added(self, event: Json) -> None:
        parts, index = self._parts_of(event)
        _need(index == len(parts), f"the index is {index}, the next part has {len(parts)}")
        _need(not parts or parts[-1].part is not None, "the part before is still open")
        body = cast(Json, event["part"])
        part = _Text(str(body["type"]))
        _need(body.get(part.key) == "" and not body.get("annotations"), f"a new part is not empty: {body}")
        parts.append(part)

    def _text_delta(self, event: Json) -> None:
        part = self._part_for(event)
        _need(part.text is None, "a delta behind the done event of its text")
        part.deltas.append(str(event["delta"]))

    def _part_for(self, event: Json) -> _Text:
        stem = str(event["type"]).rpartition(".")[0]
        part = self._open_part(event)
        _need(part.kind == PART_TEXTS.get(stem, "summary_text"), f"the part is {part.kind}")
        return part

    def _text_done(self, event: Json) -> None:
        part = self._part_for(event)
        _need(part.text is None, "a second done event for one text")
        part.text = str(event[part.key])
        _need(part.text == "".join(part.deltas), f"the deltas make {''.join(part.deltas)!r}, done says {part.text!r}")

    def _annotation(self, event: Json) -> None:
        part = self._open_part(event)
        _need(event["annotation_index"] == len(part.annotations), f"annotation_index is {event['annotation_index']}")
        part.annotations.append(event["annotation"])

    def _part_done(self, event: Json) -> None:
        part = self._open_part(event)
        body = cast(Json, event["part"])
        _need(body["type"] == part.kind, f"the part was opened as {part.kind}")
        _need(part.text is not None, "the part is closed before its text is done")
        _need(body[part.key] == part.text, f"the part holds {body[part.key]!r}, its text was {part.text!r}")
        _need(body.get("annotations", []) == part.annotations, "the annotations are not those that were announced")
        part.part = body

    def _string_delta(self, event: Json) -> None:
        item, key = self._string_of(event)
        _need(key not in item.finished, "a delta behind its done event")
        item.strings.setdefault(key, []).append(str(event["delta"]))

    def _string_done(self, event: Json) -> None:
        item, key = self._string_of(event)
        built = "".join(item.strings.get(key, ()))
        _need(key not in item.finished, "a second done event")
        _need(event[key] == built, f"the deltas make {built!r}, done says {event[key]!r}")
        item.finished[key] = built

    def _string_of(self, event: Json) -> tuple[_Item, str]:
        kind, key = STRINGS[str(event["type"]).rpartition(".")[0]]
        item = self._item_of(event)
        _need(item.added["type"] == kind, f"the item is a {item.added['type']}")
        return item, key

    def _progress(self, event: Json) -> None:
        if "item_id" not in event:
            return
        item = self._item_of(event)
        kind, _, stage = str(event["type"]).removeprefix("response.").partition(".")
        _need(kind == item.added["type"], f"the item is a {item.added['type']}")
        _need(stage != "in_progress" or not item.strings, "in_progress behind a delta")
        _need(stage not in ("completed", "failed") or not item.strings or item.finished, f"{stage} before the arguments are done")
        item.stages.append(stage)

    def _item_done(self, event: Json) -> None:
        body = cast(Json, event["item"])
        _need(isinstance(body, dict), "item is null")
        item = self._item_of(event | {"item_id": body.get("id")})
        for key in SAME_THROUGHOUT:
            _need(body.get(key) == item.added.get(key), f"{key} was {item.added.get(key)!r} and is now {body.get(key)!r}")
        _need(body.get("status") != "in_progress", "a closed item is in_progress")
        self._check_built(item, body)
        self._check_stages(item, body)
        item.done = body

    def _check_stages(self, item: _Item, body: Json) -> None:
        """What the gateway does itself is told in the recorded steps; what only asks the client is whole from the start."""
        kind = str(body["type"])
        _need(kind != "mcp_approval_request" or body == item.added, "an approval request is announced as it is closed")
        if kind not in STAGES:
            return
        failed = body.get("status", "completed") != "completed" or (kind == "mcp_list_tools" and "error" in body)
        allowed = FAILED_STAGES[kind] if failed else (STAGES[kind],)
        _need(tuple(item.stages) in allowed, f"its steps were {item.stages}")

    def _check_built(self, item: _Item, body: Json) -> None:
        if body["type"] in ("message", "reasoning"):
            for key, parts in (("content", item.content), ("summary", item.summary)):
                _need(all(part.part is not None for part in parts), f"a part of {key} is still open")
                built = [part.part for part in parts]
                _need(body.get(key, []) == built, f"{key} is {body.get(key)}, its parts were {built}")
        for kind, key in STRINGS.values():
            if body["type"] == kind:
                built_string = "".join(item.strings.get(key, ()))
                _need(body[key] == built_string, f"{key} is {body[key]!r}, the deltas make {built_string!r}")
                _need(key in item.finished or body.get("status") != "completed", f"{key} has no done event")
