"""What an engine was asked, byte by byte: the input of its requests, and whether one input goes on where another ended."""

import json
from typing import cast

import msgspec

from tests.fakes.answers import Json
from tests.fakes.engine import Received


def input_bytes(received: Received) -> bytes:
    """The elements of the input array as they stood in the request."""
    fields = msgspec.json.decode(received.body, type=dict[str, msgspec.Raw])
    return bytes(fields["input"])[1:-1]


def kinds(received: Received) -> list[str]:
    """The input in one word per item: `user`, `assistant`, `function_call` ..."""
    return [str(item.get("role") or item["type"]) for item in received.input]


def texts(received: Received) -> list[str]:
    """All text that the input holds, in order."""
    return [text for item in received.input for text in _texts_of(item)]


def _texts_of(item: Json) -> list[str]:
    content = item.get("content", item.get("output", item.get("arguments")))
    if isinstance(content, str):
        return [content]
    return [str(part["text"]) for part in cast(list[Json], content) if "text" in part]


def check_goes_on(turns: list[Received], answers: list[list[Json]]) -> None:
    """Each input starts with the exact bytes of the one before, and the answer to that one follows."""
    for before, after, answer in zip(turns, turns[1:], answers, strict=False):
        start = input_bytes(before) + b","
        assert input_bytes(after).startswith(start)
        follows = json.loads(b"[" + input_bytes(after)[len(start) :] + b"]")
        assert [_content(item) for item in follows[: len(answer)]] == [_content(item) for item in answer]


def _content(item: Json) -> object:
    """What of an item has to survive until the model sees it."""
    if item["type"] == "function_call":
        return item["call_id"], item["name"], item["arguments"]
    return item["type"], "".join(_texts_of(item))
