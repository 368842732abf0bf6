"""A fake engine that costs next to nothing: it answers from bytes that were made beforehand. Run as a process, it prints its URL.

The model's name says what comes: `full-256` is 256 tokens in one write, `paced-256-20` one token every 20 ms, each with the microsecond at
which it was sent. It reads no more of a request than its framing, the model and whether it streams; strictness is for the tests' engine.
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

STAMP = b'"delta":"t'
STAMP_DIGITS = 15
TOKEN = " token"

_MODEL = re.compile(rb'"model":\s?"(full|paced)-(\d+)(?:-(\d+))?"')
_NO_STREAM = re.compile(rb'"stream":\s?false')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
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
        json=_json(msgspec.json.encode(msgspec.json.decode(last.partition(b"data: ")[2])["response"])),
    )


def _events(text: str, count: int) -> Iterator[bytes]:
    """The events of an answer of `count` tokens: four before the tokens, four behind them."""
    place = {"item_id": "msg_engine", "output_index": 0, "content_index": 0}
    item = {"id": "msg_engine", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    closed_part = part | {"text": text * count}
    closed = item | {"status": "completed", "content": [closed_part]}
    usage = {"input_tokens": 9, "output_tokens": count, "total_tokens": 9 + count}
    response = {"id": "resp_engine", "object": "response", "created_at": 1, "model": "bench", "status": "in_progress", "output": []}
    bodies: list[dict[str, object]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        *({"type": "response.output_text.delta", **place, "delta": text, "logprobs": []} for _ in range(count)),
        {"type": "response.output_text.done", **place, "text": text * count, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": closed_part},
        {"type": "response.output_item.done", "output_index": 0, "item": closed},
        {"type": "response.completed", "response": response | {"status": "completed", "output": [closed], "usage": usage}},
    ]
    for number, body in enumerate(bodies):
        yield b"event: %b\ndata: %b\n\n" % (str(body["type"]).encode(), msgspec.json.encode(body | {"sequence_number": number}))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _json(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Connection(asyncio.Protocol):
    """One client's connection: one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._expected = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._write = transport.write

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._expected:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._received, 0, end)
            self._expected = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= self._expected:
            request, self._received = bytes(self._received[: self._expected]), self._received[self._expected :]
            self._expected = 0
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET"):
            return self._write(_json(_MODELS))
        asked = _MODEL.search(request)
        if asked is None:
            return self._write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        answer = script(asked[1], int(asked[2]), int(asked[3] or 0))
        if _NO_STREAM.search(request):
            return self._write(answer.json)
        if not answer.tokens:
            return self._write(answer.whole)
        self._write(answer.opening)
        return self._pace(answer, 0, self._loop.time())

    def _pace(self, answer: Script, number: int, due: float) -> None:
        if number == len(answer.tokens):
            return self._write(answer.closing)
        before, after = answer.tokens[number]
        self._write(b"%b%0*d%b" % (before, STAMP_DIGITS, time.monotonic_ns() // 1000, after))
        due += answer.pause
        self._timer = self._loop.call_at(due, self._pace, answer, number + 1, due)
        return None


async def serve() -> None:
    """Serves until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    gc.disable()
    asyncio.run(serve())
