"""Compaction: a long context becomes the user's own messages and a summary of all the rest. Pure.

When it is done is decided in `turn/compacting`; here is what it makes of a context. The window that stands for the context afterwards is
  the messages of the user (and of the developer and the system), the newest that fit; the summary; the calls that still wait for outputs.
No call is parted from its output: either both are in the summary, or the call waits and stays as it is.
"""

from collections.abc import Iterable, Sequence

import msgspec

from orchestrator_svc.items import tokens_of
from svckit.json_text import JsonObject, encode

SUMMARY_HEADER = "[Summary of the conversation so far]\n"
DROPPED_MARKER = "[Earlier turns were left out, because the context is full.]"

DEFAULT_PROMPT = (
    "Summarise the conversation so far for whoever continues it without having seen it. Keep what was asked for and decided, facts, names, "
    "numbers, file paths, identifiers, what tools returned that still matters, what is done and what is left to do. Do not answer the "
    "user, do not call tools, and write nothing but the summary."
)


def elements_of(context: Iterable[bytes]) -> list[JsonObject]:
    """The elements of a rendered context."""
    return msgspec.json.decode(b"[" + b",".join(context) + b"]", type=list[JsonObject])


def asking_for_summary(prompt: str) -> bytes:
    """The message that asks the model for the summary of what stands before it."""
    return encode(_message("user", prompt))


def window_of(elements: Sequence[JsonObject], summary: str, open_call_ids: Iterable[str], budget: int, *, with_messages: bool) -> bytes:
    """What stands for a context, rendered; `budget` is in tokens and bounds the messages that are kept."""
    kept = kept_messages(elements, budget) if with_messages else []
    _, pending = parted(elements, open_call_ids)
    return b",".join(map(encode, [*kept, _message("user", SUMMARY_HEADER + summary), *pending]))


def parted(elements: Sequence[JsonObject], open_call_ids: Iterable[str]) -> tuple[list[JsonObject], list[JsonObject]]:
    """The elements without the calls that still wait for an output, and those calls. Of calls with one id it is the last that waits."""
    waiting, rest, pending = set(open_call_ids), list[JsonObject](), list[JsonObject]()
    for element in reversed(elements):
        waits = element.get("type") == "function_call" and element["call_id"] in waiting
        (pending if waits else rest).append(element)
        waiting -= {str(element["call_id"])} if waits else set()
    return rest[::-1], pending[::-1]


def kept_messages(elements: Sequence[JsonObject], budget: int) -> list[JsonObject]:
    """The messages that are not the model's, the newest that fit into `budget` tokens, in order; summaries of earlier times are none."""
    kept: list[JsonObject] = []
    for element in reversed(elements):
        if element.get("type") != "message" or element.get("role") == "assistant" or _is_summary(element):
            continue
        budget -= tokens_of(element)
        if budget < 0 and kept:
            break
        kept.append(element)
    return kept[::-1]


def without_oldest(elements: Sequence[JsonObject], budget: int) -> list[JsonObject]:
    """The newest whole turns that fit into `budget` tokens behind a marker; the last turn stays whatever its size.

    A turn starts with a message of the user that stands between no call and its output. Messages of the system and the developer at the
    start stay.
    """
    start = _start_of_turns(elements)
    head, turns = list(elements[:start]), _turns(elements[start:])
    budget -= sum(map(tokens_of, head))
    kept: list[list[JsonObject]] = []
    for turn in reversed(turns):
        budget -= sum(map(tokens_of, turn))
        if budget < 0 and kept:
            break
        kept.append(turn)
    marker = [_message("user", DROPPED_MARKER)] if len(kept) < len(turns) else []
    return [*head, *marker, *(element for turn in reversed(kept) for element in turn)]


def _start_of_turns(elements: Sequence[JsonObject]) -> int:
    return next((n for n, element in enumerate(elements) if element.get("role") not in ("system", "developer")), len(elements))


def _turns(elements: Sequence[JsonObject]) -> list[list[JsonObject]]:
    turns, waiting = list[list[JsonObject]](), set[object]()
    for element in elements:
        if not turns or (element.get("role") == "user" and not waiting):
            turns.append([])
        turns[-1].append(element)
        waiting ^= {element["call_id"]} if element.get("type") in _PAIRED else set()
    return turns


_PAIRED = ("function_call", "function_call_output")


def _is_summary(element: JsonObject) -> bool:
    content = element.get("content")
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and str(first.get("text", "")).startswith((SUMMARY_HEADER, DROPPED_MARKER))


def _message(role: str, text: str) -> JsonObject:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
