"""What a model says, as values, and how engines put it on the wire: Responses events and objects, as vLLM and OpenAI write them.

This file knows nothing of sockets, faults or time; `scripts.py` adds those. What llama.cpp writes stands in `llama_cpp.py`, Chat
Completions and the other wires in `other_wires.py`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

Json = dict[str, object]
Mint = Callable[[str], str]

CREATED_AT = 1_790_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """One content part of a message: `output_text` or `refusal`; the pieces are its deltas."""

    kind: str
    pieces: tuple[str, ...]
    annotations: tuple[Json, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Message:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function call; `pieces` together are the argument string, which need not be valid JSON."""

    name: str
    pieces: tuple[str, ...]
    call_id: str | None = None

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Plain reasoning texts and summaries, each a tuple of deltas."""

    texts: tuple[tuple[str, ...], ...] = ()
    summaries: tuple[tuple[str, ...], ...] = ()
    encrypted_content: str | None = None


@dataclass(frozen=True, slots=True)
class Other:
    """An item of any other type, announced and closed with the same body; an id is minted when it has none."""

    body: Mapping[str, object]


Item = Message | Call | Reasoning | Other


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def as_json(self) -> Json:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """All that one model call says. `usage` None means counted from the request and the pieces; `no_usage` leaves it out."""

    items: tuple[Item, ...] = ()
    status: str = "completed"
    reason: str = "max_output_tokens"
    error: tuple[str, str] | None = None
    error_event: bool = False
    usage: Usage | None = None
    no_usage: bool = False

    def piece_count(self) -> int:
        return sum(len(pieces) for item in self.items for pieces in pieces_of(item))


def pieces_of(item: Item) -> tuple[tuple[str, ...], ...]:
    match item:
        case Message(parts):
            return tuple(part.pieces for part in parts)
        case Call():
            return (item.pieces,)
        case Reasoning():
            return item.texts + item.summaries
        case Other():
            return ()


def pieces(text: str) -> tuple[str, ...]:
    """The text as a model would stream it: a word and the space behind it at a time."""
    return tuple(re.findall(r"\s*\S+\s?|\s+", text))


@dataclass(frozen=True, slots=True)
class Dialect:
    """The habits of one kind of engine.

    `overlapping`: llama.cpp's form of the stream (see `llama_cpp.py`); the other habits say nothing about it.
    `admits_cut`: a cut response says `incomplete`; `names_cut`: its terminal event is `response.incomplete` and the cut item says so too.
    `fresh_ids`: the terminal event names the items anew. `harmony`: content_index goes on over the items, and reasoning parts have events
    of their own name.
    `nulls`: absent optional fields are null. `done_marker`: `[DONE]` ends the stream.
    """

    name: str
    overlapping: bool = False
    admits_cut: bool = True
    names_cut: bool = False
    fresh_ids: bool = False
    harmony: bool = False
    nulls: bool = False
    done_marker: bool = False


VLLM = Dialect("vllm", fresh_ids=True, nulls=True)
VLLM_HARMONY = replace(VLLM, name="vllm-harmony", harmony=True)
LLAMA_CPP = Dialect("llama.cpp", overlapping=True, admits_cut=False)
OPENAI = Dialect("openai", names_cut=True)
DIALECTS = {dialect.name: dialect for dialect in (VLLM, VLLM_HARMONY, LLAMA_CPP, OPENAI)}
NULLS = {"message": ("phase",), "function_call": ("namespace",), "reasoning": ("encrypted_content",)}


def response_events(answer: Answer, request: Json, dialect: Dialect, mint: Mint) -> list[Json]:
    """The whole Responses stream of one answer, numbered, in the dialect."""
    head = _response(answer, request, dialect, mint("resp"))
    opening = head | {"status": "in_progress", "output": [], "usage": None, "completed_at": None, "incomplete_details": None, "error": None}
    events: list[Json] = [{"type": "response.created", "response": opening}, {"type": "response.in_progress", "response": opening}]
    output = _bodies(answer, dialect, mint)
    for index, (item, body) in enumerate(zip(answer.items, output, strict=True)):
        events.extend({**event, "output_index": index} for event in _item_events(item, body, dialect))
    final = _bodies(answer, dialect, mint) if dialect.fresh_ids else output
    events.extend(_ending(answer, head | {"output": final}, dialect))
    if dialect.harmony:
        events = list(_as_harmony(events))
    return [{"type": event["type"], "sequence_number": number, **event} for number, event in enumerate(events)]


def _bodies(answer: Answer, dialect: Dialect, mint: Mint) -> list[Json]:
    last = len(answer.items) - 1
    cut = answer.status != "completed" and dialect.names_cut
    return [_item(item, dialect, mint, cut and index == last) for index, item in enumerate(answer.items)]


def _as_harmony(events: list[Json]) -> Iterator[Json]:
    number = -1
    for event in events:
        part = event.get("part")
        if event["type"] == "response.content_part.added":
            number += 1
        if "content_index" in event:
            event = event | {"content_index": number}
        if isinstance(part, dict) and part.get("type") == "reasoning_text":
            event = event | {"type": str(event["type"]).replace("content_part", "reasoning_part")}
        yield event


def response_object(answer: Answer, request: Json, dialect: Dialect, mint: Mint) -> Json:
    """The same answer as one JSON object: what the terminal event of the stream carries."""
    terminal = response_events(answer, request, dialect, mint)[-1]["response"]
    assert isinstance(terminal, dict)
    return terminal


def _ending(answer: Answer, response: Json, dialect: Dialect) -> Iterator[Json]:
    if answer.error_event:
        code, message = answer.error or ("server_error", "The engine failed.")
        yield {"type": "error", "error": {"type": "server_error", "code": code, "message": message, "param": None}}
    if answer.status == "failed":
        yield {"type": "response.failed", "response": response}
    elif answer.status == "incomplete" and dialect.names_cut:
        yield {"type": "response.incomplete", "response": response}
    else:
        yield {"type": "response.completed", "response": response}


def _response(answer: Answer, request: Json, dialect: Dialect, response_id: str) -> Json:
    status = answer.status if answer.status != "incomplete" or dialect.admits_cut else "completed"
    code, message = answer.error or ("server_error", "The engine failed.")
    small: Json = {
        "id": response_id,
        "object": "response",
        "created_at": CREATED_AT,
        "completed_at": CREATED_AT + 1 if status == "completed" else None,
        "status": status,
        "model": request.get("model", "m"),
        "output": [],
        "error": {"code": code, "message": message} if status == "failed" else None,
        "incomplete_details": {"reason": answer.reason} if status == "incomplete" else None,
        "usage": None if answer.no_usage else usage_of(answer, request).as_json(),
    }
    return small | _echo(request)


def _echo(request: Json) -> Json:
    """What an engine without memory repeats of a request, nulls included."""
    return {
        "instructions": request.get("instructions"),
        "previous_response_id": None,
        "metadata": None,
        "parallel_tool_calls": request.get("parallel_tool_calls", True),
        "temperature": request.get("temperature", 1.0),
        "top_p": request.get("top_p", 1.0),
        "tools": request.get("tools") or [],
        "tool_choice": request.get("tool_choice", "auto"),
        "background": False,
        "max_output_tokens": request.get("max_output_tokens"),
        "max_tool_calls": None,
        "reasoning": request.get("reasoning"),
        "service_tier": "auto",
        "text": request.get("text"),
        "top_logprobs": None,
        "truncation": "disabled",
        "user": None,
    }


def usage_of(answer: Answer, request: Json) -> Usage:
    """The usage that the answer states, or one counted from the request's text and the pieces."""
    if answer.usage is not None:
        return answer.usage
    text = len(repr(request.get("input"))) + len(repr(request.get("instructions")))
    thought = sum(len(pieces) for item in answer.items if isinstance(item, Reasoning) for pieces in pieces_of(item))
    return Usage(input_tokens=max(1, text // 4), output_tokens=answer.piece_count(), reasoning_tokens=thought)


def _item(item: Item, dialect: Dialect, mint: Mint, cut: bool) -> Json:
    body = _plain_item(item, dialect, mint)
    if cut and not isinstance(item, Other):
        body["status"] = "incomplete"
    nulls = dict.fromkeys(NULLS.get(str(body["type"]), ())) if dialect.nulls else {}
    return nulls | body


def _plain_item(item: Item, dialect: Dialect, mint: Mint) -> Json:
    match item:
        case Message(parts):
            content = [_part(part, dialect) for part in parts]
            return {"type": "message", "id": mint("msg"), "status": "completed", "role": "assistant", "content": content}
        case Call(name):
            call = {"call_id": item.call_id or mint("call"), "name": name, "arguments": item.arguments}
            return {"type": "function_call", "id": mint("fc"), **call, "status": "completed"}
        case Reasoning(texts, summaries):
            summary = [{"type": "summary_text", "text": "".join(text)} for text in summaries]
            content = [{"type": "reasoning_text", "text": "".join(text)} for text in texts]
            opaque = {} if item.encrypted_content is None else {"encrypted_content": item.encrypted_content}
            return {"type": "reasoning", "id": mint("rs"), "summary": summary, "content": content, **opaque, "status": "completed"}
        case Other(given):
            return {"id": mint("it"), **given}


def _part(part: Part, dialect: Dialect) -> Json:
    if part.kind == "refusal":
        return {"type": "refusal", "refusal": part.text}
    body: Json = {"type": "output_text", "text": part.text, "annotations": list(part.annotations)}
    return body | {"logprobs": None} if dialect.nulls else body


def _item_events(item: Item, body: Json, dialect: Dialect) -> Iterator[Json]:
    opened = dict(body)
    if not isinstance(item, Other):
        opened["status"] = "in_progress"
    match item:
        case Message(parts):
            yield {"type": "response.output_item.added", "item": opened | {"content": []}}
            for index, part in enumerate(parts):
                yield from _part_events(part, body, index)
        case Call():
            yield {"type": "response.output_item.added", "item": opened | {"arguments": ""}}
            for delta in item.pieces:
                yield {"type": "response.function_call_arguments.delta", "item_id": body["id"], "delta": delta}
            done = {"item_id": body["id"], "name": item.name, "arguments": item.arguments}
            yield {"type": "response.function_call_arguments.done", **done}
        case Reasoning():
            yield {"type": "response.output_item.added", "item": opened | {"content": None if dialect.nulls else [], "summary": []}}
            yield from _reasoning_events(item, body)
        case Other():
            yield {"type": "response.output_item.added", "item": opened}
    yield {"type": "response.output_item.done", "item": body}


def _part_events(part: Part, body: Json, index: int) -> Iterator[Json]:
    where: Json = {"item_id": body["id"], "content_index": index}
    content = body["content"]
    assert isinstance(content, list)
    done = content[index]
    name, text = ("response.refusal", "refusal") if part.kind == "refusal" else ("response.output_text", "text")
    logprobs: Json = {} if part.kind == "refusal" else {"logprobs": []}
    empty = done | {text: ""} | ({} if part.kind == "refusal" else {"annotations": []})
    yield {"type": "response.content_part.added", **where, "part": empty}
    for delta in part.pieces:
        yield {"type": f"{name}.delta", **where, "delta": delta, **logprobs}
    for number, annotation in enumerate(part.annotations):
        yield {"type": "response.output_text.annotation.added", **where, "annotation_index": number, "annotation": annotation}
    yield {"type": f"{name}.done", **where, text: part.text, **logprobs}
    yield {"type": "response.content_part.done", **where, "part": done}


def _reasoning_events(item: Reasoning, body: Json) -> Iterator[Json]:
    for index, summary in enumerate(item.summaries):
        where: Json = {"item_id": body["id"], "summary_index": index}
        whole = {"type": "summary_text", "text": "".join(summary)}
        yield {"type": "response.reasoning_summary_part.added", **where, "part": {"type": "summary_text", "text": ""}}
        for delta in summary:
            yield {"type": "response.reasoning_summary_text.delta", **where, "delta": delta}
        yield {"type": "response.reasoning_summary_text.done", **where, "text": whole["text"]}
        yield {"type": "response.reasoning_summary_part.done", **where, "part": whole}
    for index, text in enumerate(item.texts):
        where = {"item_id": body["id"], "content_index": index}
        whole = {"type": "reasoning_text", "text": "".join(text)}
        yield {"type": "response.content_part.added", **where, "part": {"type": "reasoning_text", "text": ""}}
        for delta in text:
            yield {"type": "response.reasoning_text.delta", **where, "delta": delta}
        yield {"type": "response.reasoning_text.done", **where, "text": whole["text"]}
        yield {"type": "response.content_part.done", **where, "part": whole}


def joined(first: Answer, second: Answer) -> Answer:
    """The items of both, with the second one's status and usage."""
    return replace(second, items=first.items + second.items)
