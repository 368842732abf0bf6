"""A fake engine that costs next to nothing: it answers from bytes that were made beforehand. Run as a process, it prints its URL.

The model's name says what comes: `full-256` is 256 tokens in one write, `paced-256-20` one token every 20 ms, each with the microsecond at
which it was sent, `calls-8` the call of the one tool until eight results are there, and then a short answer. It reads no more of a request
than its framing, the model, whether it streams, and, where there are calls, the tool's name; strictness is for the tests' engine.
"""

import argparse
import asyncio
import gc
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import msgspec

from bench.mcp_server import TOOL
from bench.serving import Requests, failure, json_answer, serve

STAMP = b'"delta":"t'
STAMP_DIGITS = 15
TOKEN = " token"

_MODEL = re.compile(rb'"model":\s?"(full|paced|calls)-(\d+)(?:-(\d+))?"')
_NO_STREAM = re.compile(rb'"stream":\s?false')
_RESULT = b'"function_call_output"'
# a gateway gives the tool a longer name, which ends in its own
_TOOL = re.compile(rb'"name":\s?"([\w-]*%b)"' % TOOL.encode())
_ARGUMENTS = '{"place":"here"}'
_LAST_WORDS = (b"full", 16, 0)
_RESPONSE = {"id": "resp_engine", "object": "response", "created_at": 1, "model": "bench", "status": "in_progress", "output": []}
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"full-256","object":"model","created":0,"owned_by":"bench"}]}'


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: as a whole, and in the parts in which it is paced. A token is (before the stamp, behind the stamp)."""

    pause: float
    whole: bytes
    opening: bytes
    tokens: tuple[tuple[bytes, bytes], ...]
    closing: bytes
    json: bytes


@cache
def script(kind: bytes, count: int, milliseconds: int) -> Script:
    """The answer that a model's name asks for."""
    text = TOKEN if kind == b"full" else f"t{0:0{STAMP_DIGITS}d} "
    *_, last = events = list(_events(text, count))
    tokens = [_chunk(event).split(b"0" * STAMP_DIGITS) for event in events[4 : 4 + count]] if kind == b"paced" else []
    return Script(
        pause=milliseconds / 1000,
        whole=_STREAM_HEAD + _chunk(b"".join(events)) + _LAST_CHUNK,
        opening=_STREAM_HEAD + _chunk(b"".join(events[:4])),
        tokens=tuple((before, after) for before, after in tokens),
        closing=_chunk(b"".join(events[4 + count :])) + _LAST_CHUNK,
        json=json_answer(msgspec.json.encode(msgspec.json.decode(last.partition(b"data: ")[2])["response"])),
    )


def _events(text: str, count: int) -> Iterator[bytes]:
    """The events of an answer of `count` tokens: four before the tokens, four behind them."""
    place = {"item_id": "msg_engine", "output_index": 0, "content_index": 0}
    item = {"id": "msg_engine", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    closed_part = part | {"text": text * count}
    closed = item | {"status": "completed", "content": [closed_part]}
    usage = {"input_tokens": 9, "output_tokens": count, "total_tokens": 9 + count}
    yield from _framed(
        {"type": "response.created", "response": _RESPONSE},
        {"type": "response.in_progress", "response": _RESPONSE},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        *({"type": "response.output_text.delta", **place, "delta": text, "logprobs": []} for _ in range(count)),
        {"type": "response.output_text.done", **place, "text": text * count, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": closed_part},
        {"type": "response.output_item.done", "output_index": 0, "item": closed},
        {"type": "response.completed", "response": _RESPONSE | {"status": "completed", "output": [closed], "usage": usage}},
    )


def _next(request: bytes, calls: int) -> bytes:
    """The next call, or the answer once there are as many results as calls are asked for. Only what is streamed is answered so."""
    done, tool = request.count(_RESULT), _TOOL.search(request)
    return _call(tool[1].decode(), done) if tool and done < calls else script(*_LAST_WORDS).whole


@cache
def _call(name: str, number: int) -> bytes:
    return _STREAM_HEAD + _chunk(b"".join(_call_events(name, number))) + _LAST_CHUNK


def _call_events(name: str, number: int) -> Iterator[bytes]:
    """The events of an answer that is one call."""
    place = {"item_id": "fc_engine", "output_index": 0}
    item = {"id": "fc_engine", "type": "function_call", "status": "in_progress", "call_id": f"call_{number}", "name": name, "arguments": ""}
    closed = item | {"status": "completed", "arguments": _ARGUMENTS}
    usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
    yield from _framed(
        {"type": "response.created", "response": _RESPONSE},
        {"type": "response.in_progress", "response": _RESPONSE},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", **place, "delta": _ARGUMENTS},
        {"type": "response.function_call_arguments.done", **place, "arguments": _ARGUMENTS},
        {"type": "response.output_item.done", "output_index": 0, "item": closed},
        {"type": "response.completed", "response": _RESPONSE | {"status": "completed", "output": [closed], "usage": usage}},
    )


def _framed(*bodies: dict[str, object]) -> Iterator[bytes]:
    for number, body in enumerate(bodies):
        yield b"event: %b\ndata: %b\n\n" % (str(body["type"]).encode(), msgspec.json.encode(body | {"sequence_number": number}))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(Requests):
    """One client's connection."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is sent."""
        if self._timer is not None:
            self._timer.cancel()

    def answer(self, request: bytes) -> None:
        """Answers as the model's name says."""
        if request.startswith(b"GET"):
            return self.write(json_answer(_MODELS))
        asked = _MODEL.search(request)
        if asked is None:
            return self.write(failure(b"404 Not Found"))
        if asked[1] == b"calls":
            return self.write(_next(request, int(asked[2])))
        answer = script(asked[1], int(asked[2]), int(asked[3] or 0))
        if _NO_STREAM.search(request):
            return self.write(answer.json)
        if not answer.tokens:
            return self.write(answer.whole)
        self.write(answer.opening)
        return self._pace(answer, 0, self._loop.time())

    def _pace(self, answer: Script, number: int, due: float) -> None:
        if number == len(answer.tokens):
            return self.write(answer.closing)
        before, after = answer.tokens[number]
        self.write(b"%b%0*d%b" % (before, STAMP_DIGITS, time.monotonic_ns() // 1000, after))
        due += answer.pause
        self._timer = self._loop.call_at(due, self._pace, answer, number + 1, due)
        return None


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    gc.disable()
    asyncio.run(serve(Connection))
