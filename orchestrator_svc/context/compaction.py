"""Compaction: a long context becomes the user's own messages and a summary of all the rest. Pure.

When it is done is decided in `turn/compacting`; here is what it makes of a context. The window that stands for the context afterwards is
  the messages of the user (and of the developer and the system), the newest that fit; the summary; the calls that still wait for outputs.
No call is parted from its output: either both are in the summary, or the call waits and stays as it is.
"""

from collections.abc import Iterable, Sequence

import msgspec

from orchestrator_svc.context.budget import tokens_of_text
from svckit.json_text import JsonObject, encode

SUMMARY_HEADER = "[Summary of the conversation so far]\n"
DROPPED_MARKER = "[Earlier turns were left out, because the context is full.]"

DEFAULT_PROMPT = (
    "Summarise the conversation so far for whoever continues it without having seen it. Keep what was asked for and decided, facts, names, "
    "numbers, file paths, identifiers, what tools returned that still matters, what is done and what is left to do. Do not answer the "
    "user, do not call tools, and write nothing but the summary."
)


def elements_of(context: bytes) -> list[JsonObject]:
    """The elements of a rendered context."""
    return msgspec.json.decode(b"[" + context + b"]", type=list[JsonObject])


def asking_for_summary(prompt: str) -> bytes:
    """The message that asks the model for the summary of what stands before it."""
    return encode(_message("user", prompt))


def window_of(elements: Sequence[JsonObject], summary: str, open_call_ids: Iterable[str], budget: int, *, with_messages: bool) -> bytes:
    """What stands for a context, rendered; `budget` is in tokens and bounds the messages that are kept."""
    kept = kept_messages(elements, budget) if with_messages else []
    waiting = set(open_call_ids)
    pending = [element for element in elements if element.get("type") == "function_call" and element.get("call_id") in waiting]
    return b",".join(map(encode, [*kept, _message("user", SUMMARY_HEADER + summary), *pending]))


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

    A turn starts with a message of the user. Messages of the system and the developer at the start stay.
    """
    head = [element for element in elements[: _start_of_turns(elements)] if element.get("role") in ("system", "developer")]
    turns = _turns(elements[_start_of_turns(elements) :])
    budget -= sum(map(tokens_of, head))
    kept: list[list[JsonObject]] = []
    for turn in reversed(turns):
        budget -= sum(map(tokens_of, turn))
        if budget < 0 and kept:
            break
        kept.append(turn)
    marker = [_message("user", DROPPED_MARKER)] if len(kept) < len(turns) else []
    return [*head, *marker, *(element for turn in reversed(kept) for element in turn)]


def tokens_of(element: JsonObject) -> int:
    """The estimated size of one rendered element."""
    return -(-len(encode(element)) // 4)


def summary_tokens(summary: str) -> int:
    """The estimated size of a summary in a window."""
    return tokens_of_text(SUMMARY_HEADER + summary)


def _start_of_turns(elements: Sequence[JsonObject]) -> int:
    return next((n for n, element in enumerate(elements) if element.get("role") == "user"), len(elements))


def _turns(elements: Sequence[JsonObject]) -> list[list[JsonObject]]:
    turns: list[list[JsonObject]] = []
    for element in elements:
        if element.get("role") == "user" or not turns:
            turns.append([])
        turns[-1].append(element)
    return turns


def _is_summary(element: JsonObject) -> bool:
    content = element.get("content")
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and str(first.get("text", "")).startswith((SUMMARY_HEADER, DROPPED_MARKER))


def _message(role: str, text: str) -> JsonObject:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
