"""What travels below the MCP SDK: whole messages of bounded size in UTF-8, and no exception."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable

import httpx2
import pytest

from orchestrator_svc.outbound import OutboundRefused
from orchestrator_svc.tools.mcp_http import EXCHANGE, Exchange, McpFailed, SessionTransport, cut_message, legal

LIMIT = 1000


class Body(httpx2.AsyncByteStream):
    """Chunks of a body, and how many of them were taken."""

    def __init__(self, chunks: Iterable[bytes], error: Exception | None = None) -> None:
        self._chunks = chunks
        self._error = error
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            self.taken += 1
            yield chunk
        if self._error is not None:
            raise self._error


class Wire(httpx2.AsyncBaseTransport):
    """The network, which does as it is told."""

    def __init__(self, answer: Callable[[], httpx2.Response]) -> None:
        self._answer = answer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._answer()


async def sent(
    answer: Callable[[], httpx2.Response], method: str = "POST", is_sse: bool = False
) -> tuple[httpx2.Response, bytes, Exchange]:
    """What the SDK gets for a request, and what is known of it besides."""
    exchange = Exchange(math.inf)
    exchange.sent = True
    EXCHANGE.set(exchange)
    transport = SessionTransport(Wire(answer), LIMIT, is_sse)
    request = httpx2.Request(method, "http://server/mcp", json={"jsonrpc": "2.0", "id": 7, "method": "tools/call"})
    response = await transport.handle_async_request(request)
    return response, await response.aread(), exchange


def answers(kind: str, *chunks: bytes, error: Exception | None = None) -> Callable[[], httpx2.Response]:
    return lambda: httpx2.Response(200, headers={"content-type": kind}, stream=Body(chunks, error))


def raises(error: Exception) -> Callable[[], httpx2.Response]:
    def answer() -> httpx2.Response:
        raise error

    return answer


def result(text: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": text}]}}).encode()


@pytest.mark.parametrize(
    ("error", "may_have_run"),
    [
        (httpx2.ConnectError("no"), False),
        (httpx2.ConnectTimeout("no"), False),
        (OutboundRefused("no"), False),
        (httpx2.ReadError("no"), True),
        (httpx2.RemoteProtocolError("no"), True),
        (ValueError("anything"), True),
    ],
)
async def test_a_request_that_fails_is_written_down_and_answered_emptily(error: Exception, may_have_run: bool) -> None:
    response, body, exchange = await sent(raises(error))
    assert (response.status_code, body) == (503, b"")
    assert exchange.failed.done()
    assert exchange.sent is may_have_run


async def test_a_body_that_breaks_off_ends_and_is_written_down() -> None:
    _, body, exchange = await sent(answers("application/json", b"{", error=httpx2.ReadError("gone")))
    assert body == b"{"
    assert exchange.failed.done()


async def test_over_sse_a_post_that_is_refused_is_written_down_because_nothing_else_would_come() -> None:
    response, _, exchange = await sent(lambda: httpx2.Response(500, content=b"oh"), is_sse=True)
    failure = exchange.failed.result()
    assert response.status_code == 202
    assert isinstance(failure, McpFailed)
    assert failure.code == 500


async def test_cookies_and_lengths_do_not_get_through() -> None:
    headers = {"content-type": "application/json", "set-cookie": "a=b", "content-length": "2", "mcp-session-id": "s"}
    response, _, _ = await sent(lambda: httpx2.Response(200, headers=headers, stream=Body([b"{}"])))
    assert set(response.headers) == {"content-type", "mcp-session-id"}


async def test_no_more_than_the_bound_is_read_of_a_body() -> None:
    body = Body(b"x" * 100 for _ in range(300_000))
    await sent(lambda: httpx2.Response(200, headers={"content-type": "application/json"}, stream=body))
    assert body.taken == LIMIT // 100 + 1


async def test_no_more_than_the_bound_is_read_of_an_event() -> None:
    body = Body(b"data: x" + b"x" * 100 for _ in range(300_000))
    await sent(lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body))
    assert body.taken == LIMIT // 107 + 1


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"])
async def test_events_go_on_whole_however_they_arrive(end: str) -> None:
    stream = f"event: message{end[: len(end) // 2]}data: {{}}{end}: comment{end}data: 2{end}".encode()
    _, whole, _ = await sent(answers("text/event-stream", stream))
    _, bytewise, _ = await sent(answers("text/event-stream", *(stream[n : n + 1] for n in range(len(stream)))))
    assert whole == stream
    assert bytewise.replace(b"\r", b"\n").strip() == stream.replace(b"\r", b"\n").strip()


async def test_the_long_stream_goes_on_after_an_event_that_was_too_large() -> None:
    stream = b"data: " + result("x" * 5000) + b"\n\ndata: {}\n\n"
    _, body, _ = await sent(answers("text/event-stream", *(stream[n : n + 64] for n in range(0, len(stream), 64))), "GET", is_sse=True)
    first, second, rest = body.split(b"\n\n")
    answer = json.loads(first.removeprefix(b"event: message\ndata: "))
    assert answer["id"] == 7
    assert answer["result"]["content"][-1]["text"] == f"[cut: the result is longer than {LIMIT} bytes]"
    assert (second, rest) == (b"data: {}", b"")


async def test_an_abandoned_request_reads_no_further() -> None:
    exchange = Exchange(math.inf)
    EXCHANGE.set(exchange)
    body = Body(b": ping\n\n" for _ in range(1000))
    wire = Wire(lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body))
    response = await SessionTransport(wire, LIMIT, is_sse=False).handle_async_request(httpx2.Request("POST", "http://server/mcp", json={}))
    chunks = response.aiter_raw()
    await anext(chunks)
    exchange.abandoned = True
    assert [chunk async for chunk in chunks] == []
    assert body.taken == 2


@pytest.mark.parametrize("text", ['\u00e9\U0001f378\n"\\ \x00' * 5])
@pytest.mark.parametrize("ascii_only", [True, False])
async def test_a_result_can_be_cut_anywhere(text: str, ascii_only: bool) -> None:
    message = {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": text}]}}
    whole = json.dumps(message, ensure_ascii=ascii_only).encode()
    for end in range(whole.index(b'"text": "') + 9, len(whole)):
        said, note = json.loads(cut_message(whole[:end], None, LIMIT))["result"]["content"]
        assert text.startswith(said["text"].rstrip("\ufffd"))
        assert note["text"] == f"[cut: the result is longer than {LIMIT} bytes]"


async def test_bytes_that_grow_when_they_are_made_utf_8_stay_within_the_bound() -> None:
    stream = b"data: " + result("@").replace(b"@", b"\xe9" * 800) + b"\n\n"
    _, body, _ = await sent(answers("text/event-stream", stream), "GET", is_sse=True)
    assert len(stream) < LIMIT < len(legal(stream))
    assert len(body) < LIMIT + 300
    assert json.loads(body.removeprefix(b"event: message\ndata: "))["id"] == 7


async def test_a_list_of_tools_is_never_cut() -> None:
    start = b'{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"a"'
    assert json.loads(cut_message(start, None, LIMIT))["error"]["code"] == -32603


@pytest.mark.parametrize("start", [b"", b"[", b'{"method":"notifications/message","params":{"data":"' + b"x" * 50, b"\xff\xfe"])
async def test_what_nobody_waits_for_is_dropped(start: bytes) -> None:
    assert cut_message(start, None, LIMIT) == b""


async def test_what_answers_a_request_without_saying_so_is_an_error_of_that_request() -> None:
    assert json.loads(cut_message(b'{"result":', 7, LIMIT)) == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {"code": -32603, "message": f"the answer is longer than {LIMIT} bytes"},
    }


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\uDF78"', "\ufffd"),
        (rb'"\ud83c\udf78"', "\U0001f378"),
        (rb'"\\ud83d"', r"\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'"\ud83d\ud83c\udf78"', "\ufffd\U0001f378"),
        ("\u00e9".encode("latin-1").join([b'"', b'"']), "\ufffd"),
        ('"\u00e9"'.encode(), "\u00e9"),
    ],
)
def test_halves_of_surrogate_pairs_and_foreign_bytes_become_u_fffd(message: bytes, said: str) -> None:
    assert json.loads(legal(message)) == said


async def test_the_deadline_of_a_request_bounds_the_silence_of_the_server() -> None:
    loop = asyncio.get_running_loop()
    exchange = Exchange(loop.time() + 60)
    assert exchange.read_timeout is not None
    assert 60 < exchange.read_timeout < 61
    exchange.settle()
    assert exchange.read_timeout is None
