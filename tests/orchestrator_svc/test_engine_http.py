"""HTTP to an engine on the wire: how answers are framed, which connections are used again, and what is bounded. On both event loops."""

import asyncio
import itertools
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from orchestrator_svc.errors import EngineError, EngineStreamInterrupted, EngineTimeout, EngineUnavailable, InvalidRequest
from orchestrator_svc.providers import engine_http, http_answer
from orchestrator_svc.providers.engine_http import EngineHttp, open_engine_http
from orchestrator_svc.providers.http_answer import Answer
from orchestrator_svc.providers.http_connection import MAX_HEAD_BYTES, Connection
from orchestrator_svc.providers.relay import relayed
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings
from svckit.patience import Patience
from svckit.settings import SettingsError
from tests.fakes.certificates import certificate_for

PATIENCE = 10.0
LONG = OrchestratorSettings()
SOON = OrchestratorSettings(first_event_timeout_seconds=0.3, gap_timeout_seconds=0.3)
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Peer:
    """One connection at a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def asked(self) -> Self:
        """The next request has come, whole."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        _, _, length = head.lower().partition(b"content-length: ")
        self.bodies.append(await self.reader.readexactly(int(length.partition(b"\r\n")[0] or 0)))
        return self

    async def say(self, *written: bytes) -> None:
        for piece in written:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.01)  # a read of its own at the other end

    async def leave(self) -> None:
        """Waits for the other end to hang up."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.is_gone.set()


Play = Callable[[Peer], Awaitable[None]]


@dataclass
class Server:
    """What has connected, and where."""

    port: int = 0
    peers: list[Peer] = field(default_factory=list)

    @property
    def heads(self) -> list[list[bytes]]:
        """The heads of the requests, by connection."""
        return [peer.heads for peer in self.peers]


@asynccontextmanager
async def serving(play: Play, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server that plays the same on each connection, and then waits until that ends."""
    server, numbers = Server(), itertools.count()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, next(numbers))
        server.peers.append(peer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await play(peer)
            await peer.leave()
        peer.is_gone.set()
        writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for peer in server.peers:
            peer.writer.close()


@asynccontextmanager
async def client(
    server: Server, waits: OrchestratorSettings = LONG, url: str = "http://127.0.0.1:{port}", key: str = ""
) -> AsyncIterator[EngineHttp]:
    async with asyncio.timeout(PATIENCE), open_engine_http(EngineSettings(url=url.format(port=server.port)), key, waits) as http:
        yield http


async def post(http: EngineHttp, *body: bytes) -> Answer:
    return await http.send("POST", "/v1/responses", {}, body or (b"{}",))


async def got(http: EngineHttp) -> tuple[int, bytes]:
    """The status and body that a request is answered with."""
    with await post(http) as answer:
        return answer.status, await answer.whole()


def says(*written: bytes, close: bool = False) -> Play:
    """Answers each request with the same bytes."""

    async def play(peer: Peer) -> None:
        while True:
            await peer.asked()
            await peer.say(*written)
            if close:
                peer.writer.close()

    return play


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# How an answer is framed.


@pytest.mark.parametrize(
    ("written", "body"),
    [
        ((WHOLE,), b"ok"),
        ((WHOLE[:20], WHOLE[20:-1], WHOLE[-1:]), b"ok"),
        ((CHUNKED, b"2\r\nok\r\n", b"0\r\n\r\n"), b"ok"),
        ((CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\nx-trailer: 1\r\n\r\n",), b"ok"),
        ((CHUNKED, b"2 \r\nok\r\n0 \r\n\r\n"), b"ok"),
        ((b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",), b"ok"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + WHOLE), b"ok"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b""),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",), b""),
    ],
    ids=["length", "in pieces", "chunked", "trailer", "spaces", "bare line feeds", "interim", "no content", "empty"],
)
async def test_a_whole_answer_is_read_and_its_connection_used_again(written: tuple[bytes, ...], body: bytes) -> None:
    async with serving(says(*written)) as server, client(server) as http:
        answers = [await got(http) for _ in range(3)]

    assert [answer for _, answer in answers] == [body] * 3
    assert [len(heads) for heads in server.heads] == [3]


@pytest.mark.parametrize(
    ("written", "body"),
    [
        ((b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",), b"ok"),
        ((b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",), b"ok"),
        ((WHOLE + b"and more",), b"ok"),
        ((WHOLE + WHOLE,), b"ok"),
    ],
    ids=["said so", "HTTP/1.0", "surplus", "second answer"],
)
async def test_a_connection_that_is_not_to_be_trusted_is_not_used_again(written: tuple[bytes, ...], body: bytes) -> None:
    async with serving(says(*written)) as server, client(server) as http:
        assert [await got(http) for _ in range(2)] == [(200, body)] * 2
        await asyncio.gather(*(peer.is_gone.wait() for peer in server.peers))

    assert [len(heads) for heads in server.heads] == [1, 1]


async def test_what_nobody_asked_for_ends_an_idle_connection() -> None:
    async def play(peer: Peer) -> None:
        await peer.asked()
        await peer.say(WHOLE, WHOLE)

    async with serving(play) as server, client(server) as http:
        assert await got(http) == (200, b"ok")
        await server.peers[0].is_gone.wait()
        assert await got(http) == (200, b"ok")

    assert len(server.peers) == 2


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with serving(says(b"HTTP/1.1 200 OK\r\n\r\n", b"a", b"b", close=True)) as server, client(server) as http:
        assert await got(http) == (200, b"ab")


@pytest.mark.parametrize(
    "written",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", b"ok"),
        (CHUNKED, b"2\r\nok\r\n"),
        (CHUNKED, b"2\r\nok\r\n", b"2\r\no"),
        (CHUNKED, b"2\r\nok\r\nnonsense\r\n"),
        (CHUNKED, b"2\r\nok\r\n0\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES),
    ],
    ids=["length", "chunked", "in a chunk", "no chunk", "endless trailer"],
)
async def test_a_body_that_breaks_off_says_so_behind_what_came_before(written: tuple[bytes, ...]) -> None:
    async with serving(says(*written, close=True)) as server, client(server) as http:
        with await post(http) as answer:
            assert (await anext(answer)).startswith(b"ok")
            with pytest.raises(EngineStreamInterrupted):
                await answer.whole()


@pytest.mark.parametrize(
    "written",
    [
        b"SSH-2.0-odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES,
        b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD_BYTES,
    ],
    ids=["no HTTP", "two lengths", "two framings", "upgrade", "long value", "many headers", "many interim answers"],
)
async def test_what_is_no_head_is_no_answer(written: bytes) -> None:
    async with serving(says(written)) as server, client(server) as http:
        with pytest.raises(EngineUnavailable):
            await post(http)
        await server.peers[0].is_gone.wait()

    assert len(server.peers) == 1


async def test_headers_are_given_as_they_came_and_in_lower_case() -> None:
    written = b"HTTP/1.1 200 OK\r\nX-One: a\r\nx-one: b\r\nX-Umlaut: \xc3\xa4\r\nX-Byte: \xff\r\nDate: today\r\ncontent-length: 0\r\n\r\n"
    async with serving(says(written)) as server, client(server) as http:
        with await post(http) as answer:
            assert answer.headers[:3] == (("x-one", "a"), ("x-one", "b"), ("x-umlaut", "ä"))
        with await relayed(http, "POST", "/v1/responses", {}, b"") as passed:
            assert passed.headers == (("x-one", "a"), ("x-one", "b"), ("x-umlaut", "ä"), ("content-length", "0"))


async def test_a_whole_body_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answer, "_MAX_WHOLE_BYTES", 1)
    async with serving(says(WHOLE)) as server, client(server) as http:
        with await post(http) as answer, pytest.raises(EngineError):
            await answer.whole()


# What is sent.


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://127.0.0.1:{port}", b"POST /v1/responses HTTP/1.1", b"host: 127.0.0.1:%d"),
        ("http://LOCALHOST:{port}/some/path/v1/", b"POST /some/path/v1/responses HTTP/1.1", b"host: localhost:%d"),
        ("http://127.0.0.1:{port}/ä", b"POST /%C3%A4/v1/responses HTTP/1.1", b"host: 127.0.0.1:%d"),
    ],
)
async def test_the_address_says_the_target_and_the_host(url: str, line: bytes, host: bytes) -> None:
    async with serving(says(WHOLE)) as server, client(server, url=url) as http:
        await got(http)
    head = server.heads[0][0].split(b"\r\n")

    assert head[0] == line
    assert host % server.port in head


@pytest.mark.parametrize(("key", "credential"), [("", b"Basic YTpiIGM="), ("sk-1", b"Bearer sk-1")], ids=["address", "key"])
async def test_who_asks_is_said_in_the_address_or_by_the_key(key: str, credential: bytes) -> None:
    async with serving(says(WHOLE)) as server, client(server, url="http://a:b%20c@127.0.0.1:{port}", key=key) as http:
        await got(http)
        secrets = http.secrets

    assert b"authorization: " + credential in server.heads[0][0]
    assert credential.partition(b" ")[2].decode() in secrets


async def test_a_query_cannot_leave_its_line() -> None:
    async with serving(says(WHOLE)) as server, client(server) as http:
        (await http.send("GET", "/v1/models?a=b%20c&d= e\r\nx: y", {}, ())).close()

    assert server.heads[0][0].split(b"\r\n")[0] == b"GET /v1/models?a=b%20c&d=%20e%0D%0Ax:%20y HTTP/1.1"
    assert b"content-length" not in server.heads[0][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", "a\r\nb: c"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("x: y\r\nz", "a"),
        ("x y", "a"),
        ("x:", "a"),
        ("", "a"),
        ("ä", "a"),
        ("content-length ", "9"),
    ],
)
async def test_a_header_cannot_leave_its_line(name: str, value: str) -> None:
    async with serving(says(WHOLE)) as server, client(server) as http:
        with pytest.raises(InvalidRequest) as refused:
            await http.send("POST", "/v1/responses", {name: value}, (b"{}",))

    assert refused.value.param == "headers"
    assert server.peers == []


async def test_the_framing_of_a_relayed_request_is_not_its_sender_s() -> None:
    headers = {"transfer-encoding": "chunked", "content-length": "9", "connection": "x-own", "host": "elsewhere", "x-own": "1"}
    async with serving(says(WHOLE)) as server, client(server) as http:
        (await relayed(http, "POST", "/v1/responses", headers, b"{}")).close()
    head = server.heads[0][0].lower()

    assert b"content-length: 2\r\n" in head
    assert b"x-own: 1\r\n" in head
    assert not any(word in head for word in (b"transfer-encoding", b"connection:", b"elsewhere"))


async def test_a_relayed_request_without_a_body_claims_none() -> None:
    async with serving(says(WHOLE)) as server, client(server) as http:
        (await relayed(http, "GET", "/v1/models", {"content-length": "400"}, b"")).close()

    assert b"content-length" not in server.heads[0][0]


async def test_blanks_around_a_key_are_not_part_of_it() -> None:
    async with serving(says(WHOLE)) as server, client(server, key=" sk-1\n") as http:
        await got(http)

    assert b"authorization: Bearer sk-1\r\n" in server.heads[0][0]


@pytest.mark.parametrize("key", ["a\nb", "a\0", "schlüssel", "\udcff"])
async def test_a_key_that_cannot_be_sent_is_the_operator_s_to_change(key: str) -> None:
    with pytest.raises(SettingsError) as refused:
        async with open_engine_http(EngineSettings(url="http://127.0.0.1:1", api_key_env="THE_KEY"), key, SOON):
            pass

    assert "THE_KEY" in str(refused.value)
    assert key not in str(refused.value)


@pytest.mark.parametrize("host", ["a..b", "ä..b", "x" * 64])
async def test_a_name_that_cannot_be_one_is_no_address(host: str) -> None:
    with pytest.raises(SettingsError):
        async with open_engine_http(EngineSettings(url=f"http://{host}"), "", SOON):
            pass


# Sending much, and reading much.


async def test_an_answer_may_come_before_the_request_is_out() -> None:
    async def play(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")

    async with serving(play) as server, client(server) as http:
        with await post(http, *[b"x" * 1_000_000] * 20) as answer:
            assert (answer.status, await answer.whole()) == (413, b"no")
        await server.peers[0].is_gone.wait()


async def test_a_connection_on_which_a_request_is_not_out_is_not_used_again() -> None:
    """The engine would read the next request as the rest of this one, whatever it makes of it."""

    async def play(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n", b"no")

    async with serving(play) as server, client(server) as http:
        for _ in range(2):
            with await post(http, b"x" * 20_000_000) as answer:
                assert (answer.status, await answer.whole()) == (413, b"no")
        await asyncio.gather(*(peer.is_gone.wait() for peer in server.peers))

    assert len(server.peers) == 2


@pytest.mark.parametrize("pieces", [1, 40])
async def test_a_head_that_comes_before_the_request_is_out_does_not_cut_it(pieces: int) -> None:
    size = 20_000_000

    async def play(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(CHUNKED)
        await peer.reader.readexactly(size)
        await peer.say(chunk(b"all of it"), b"0\r\n\r\n")

    async with serving(play) as server, client(server) as http:
        with await post(http, *[b"x" * (size // pieces)] * pieces) as answer:
            assert await answer.whole() == b"all of it"
        assert not server.peers[0].is_gone.is_set()


async def test_an_engine_that_answers_and_takes_no_request_has_timed_out() -> None:
    async def play(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(CHUNKED, chunk(b"a"))
        await asyncio.sleep(PATIENCE)

    async with serving(play) as server, client(server, SOON) as http:
        answer = await post(http, *[b"x" * 1_000_000] * 20)
        with answer, pytest.raises(EngineTimeout):
            await answer.whole()


async def test_an_engine_that_takes_no_request_has_timed_out() -> None:
    async def play(peer: Peer) -> None:
        await asyncio.sleep(PATIENCE)

    async with serving(play) as server, client(server, SOON) as http:
        with pytest.raises(EngineTimeout):
            await post(http, *[b"x" * 1_000_000] * 20)


async def test_a_large_request_arrives_as_it_was_given() -> None:
    pieces = tuple(bytes([number]) * 300_001 for number in range(1, 30)) + (b"a", b",", b"") * 20_000
    async with serving(says(WHOLE)) as server, client(server) as http:
        for _ in range(2):
            (await post(http, *pieces)).close()

    assert [body for peer in server.peers for body in peer.bodies] == [b"".join(pieces)] * 2


async def test_an_engine_waits_for_who_does_not_read() -> None:
    size, written = 1_000_000, [0]

    async def play(peer: Peer) -> None:
        await peer.asked()
        peer.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (60 * size))
        for number in range(60):
            peer.writer.write(bytes([number]) * size)
            await peer.writer.drain()
            written[0] += size

    async with serving(play) as server, client(server) as http:
        with await post(http) as answer:
            before = -1
            while written[0] != before:
                before = written[0]
                await asyncio.sleep(0.2)
            assert written[0] < 30 * size
            came = b"".join([chunk async for chunk in answer])

    assert came == b"".join(bytes([number]) * size for number in range(60))


# Chunks handed over.


@pytest.mark.parametrize("refused", ["", "3", "236", "0123456789"])
async def test_a_chunk_that_is_not_taken_comes_to_the_reader_in_its_place(refused: str) -> None:
    pieces = [b"%d" % number for number in range(10)]
    seen: list[bytes] = []
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        if data.decode() in refused:
            return False
        taken.append(data)
        seen.append(data)
        return True

    async with serving(says(CHUNKED, *map(chunk, pieces), b"0\r\n\r\n")) as server, client(server) as http:
        with await post(http) as answer:
            answer.hand_to(take)
            await hear(answer, seen)

    assert b"".join(seen) == b"".join(pieces)
    assert set(taken) == {piece for piece in pieces if piece.decode() not in refused}


async def hear(answer: Answer, seen: list[bytes]) -> None:
    async for data in answer:
        seen.append(data)


async def test_what_a_taker_raises_is_raised_to_the_reader() -> None:
    def take(data: bytes) -> bool:
        raise KeyError(data)

    seen: list[bytes] = []
    async with serving(says(CHUNKED, chunk(b"a"), chunk(b"b"))) as server, client(server) as http:
        with await post(http) as answer:
            answer.hand_to(take)
            with pytest.raises(KeyError):
                await hear(answer, seen)
        await server.peers[0].is_gone.wait()

    assert seen == []


async def test_chunks_that_are_taken_keep_a_stream_alive_and_a_pause_ends_it() -> None:
    taken: list[bytes] = []

    async def play(peer: Peer) -> None:
        await peer.asked()
        await peer.say(CHUNKED)
        for number in range(10):
            await peer.say(chunk(b"%d" % number))
            await asyncio.sleep(0.2)  # longer together than a pause may be
        await peer.leave()

    async with serving(play) as server, client(server, OrchestratorSettings(gap_timeout_seconds=1.0)) as http:
        with await post(http) as answer:
            answer.hand_to(lambda data: not taken.append(data))  # type: ignore[func-returns-value]
            with pytest.raises(EngineTimeout):
                await anext(answer)
        await server.peers[0].is_gone.wait()

    assert b"".join(taken) == b"0123456789"


# Connections.


async def test_an_engine_is_not_blamed_for_what_this_process_did_not_read_in_time() -> None:
    has_read = threading.Event()

    def play(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(CHUNKED + chunk(b"a"))
            has_read.wait(PATIENCE)
            time.sleep(0.1)
            peer.sendall(chunk(b"b"))
            time.sleep(0.6)
            peer.sendall(chunk(b""))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        playing = threading.Thread(target=play, args=(listening,))
        playing.start()
        async with client(Server(listening.getsockname()[1]), OrchestratorSettings(gap_timeout_seconds=0.5)) as http:
            with await post(http) as answer:
                assert await anext(answer) == b"a"
                rest = asyncio.create_task(answer.whole())
                await asyncio.sleep(0)
                has_read.set()
                time.sleep(0.6)  # noqa: ASYNC251  # the whole process stands still
                assert await rest == b"b"
        playing.join()


@pytest.mark.parametrize("written", [(WHOLE,), (WHOLE.removesuffix(b"ok"), b"o", b"k")])
async def test_each_answer_of_a_connection_has_its_own_time_however_soon_it_follows(written: tuple[bytes, ...]) -> None:
    async def play(peer: Peer) -> None:
        await peer.asked()
        await peer.say(*written)
        await peer.asked()

    async def follow(http: EngineHttp) -> None:
        while not http._kept:  # so that it begins before the reader of the first answer has been woken
            await asyncio.sleep(0)
        await post(http)

    async with serving(play) as server, client(server, SOON) as http:
        following = asyncio.create_task(follow(http))
        with await post(http) as answer:
            assert await answer.whole() == b"ok"
        with pytest.raises(EngineTimeout):
            await following
        assert [len(heads) for heads in server.heads] == [2]


async def test_what_has_come_whole_may_be_read_late_and_is_held_no_longer() -> None:
    async def play(peer: Peer) -> None:
        await peer.asked()
        await peer.say(WHOLE)

    async with serving(play) as server, client(server, SOON) as http:
        with await post(http) as answer:
            await asyncio.sleep(0.5)
            assert await answer.whole() == b"ok"
        held = weakref.ref(answer)
        del answer
        assert held() is None


@pytest.mark.parametrize("asks", [True, False])
async def test_a_connection_that_is_lost_leaves_no_timer(asks: bool) -> None:
    """Whether it is lost under an answer, or before there was a request."""
    kept: list[Patience] = []

    async def play(peer: Peer) -> None:
        if asks:
            await peer.asked()
        peer.writer.transport.abort()

    async with serving(play) as server, client(server) as http:
        opened = http._opened

        async def noted() -> Connection:
            connection = await opened()
            kept.append(connection.patience)
            if not asks:
                while not connection.is_lost:
                    await asyncio.sleep(0.01)
            return connection

        http._opened = noted  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(EngineUnavailable):
                await post(http)
        await asyncio.sleep(0.1)
        assert [patience._timer is None or patience._timer.cancelled() for patience in kept] == [True] * 3


async def test_a_connection_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "_KEPT_SECONDS", 0.1)
    async with serving(says(WHOLE)) as server, client(server) as http:
        for _ in range(2):
            await got(http)
            await server.peers[-1].is_gone.wait()

    assert len(server.peers) == 2


async def test_requests_at_once_have_a_connection_each_and_share_them_later() -> None:
    async with serving(says(WHOLE)) as server, client(server) as http:
        for _ in range(3):
            await asyncio.gather(*(got(http) for _ in range(5)))

    assert len(server.peers) == 5


async def test_closing_the_pool_closes_what_is_open() -> None:
    async with serving(says(CHUNKED, chunk(b"a"))) as server:
        async with client(server) as http:
            answer = await post(http)
            await anext(answer)
        await server.peers[0].is_gone.wait()
        with pytest.raises(EngineStreamInterrupted):
            await anext(answer)
        answer.close()


async def test_closing_the_pool_does_not_make_half_an_answer_whole() -> None:
    async with serving(says(b"HTTP/1.1 200 OK\r\n\r\nhalf")) as server:
        async with client(server) as http:
            answer = await post(http)
            assert await anext(answer) == b"half"
        with pytest.raises(EngineStreamInterrupted):
            await anext(answer)
        answer.close()


async def test_a_pool_that_is_closed_opens_nothing() -> None:
    may_answer = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.asked()
        await peer.say(WHOLE)
        await peer.asked()
        await may_answer.wait()

    async with serving(play) as server:
        async with client(server) as http:
            await got(http)
            waiting = asyncio.create_task(got(http))
            while len(server.heads[0]) < 2:
                await asyncio.sleep(0.01)
        for asking in (waiting, asyncio.create_task(got(http))):
            with pytest.raises(EngineUnavailable):
                await asking
        may_answer.set()

    assert len(server.peers) == 1


async def test_a_connection_that_is_closed_as_soon_as_it_is_open_is_no_answer() -> None:
    async def play(peer: Peer) -> None:
        peer.writer.close()

    async with serving(play) as server, client(server) as http:
        for _ in range(10):
            with pytest.raises(EngineUnavailable):
                await post(http)


async def test_a_request_that_the_engine_has_worked_on_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "_STALE_SECONDS", 0.05)

    async def play(peer: Peer) -> None:
        await peer.asked()
        await peer.say(WHOLE)
        await peer.asked()
        await asyncio.sleep(0.15)
        peer.writer.close()

    async with serving(play) as server, client(server) as http:
        await got(http)
        with pytest.raises(EngineUnavailable):
            await got(http)

    assert len(server.peers) == 1


@pytest.mark.parametrize("steps", range(12))
async def test_who_leaves_while_it_connects_leaves_no_connection(steps: int) -> None:
    async with serving(says(WHOLE)) as server, client(server) as http:
        asking = asyncio.create_task(got(http))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert await got(http) == (200, b"ok")
        await asyncio.sleep(0.05)
        assert [peer.is_gone.is_set() for peer in server.peers].count(False) == 1  # the one that was used last


async def test_a_name_nobody_knows_is_unavailable() -> None:
    async with client(Server(1), url="http://no-such-host.invalid:{port}") as http:
        with pytest.raises(EngineUnavailable):
            await post(http)


async def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(says(WHOLE)) as server:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, server.port)) for address in ("127.0.0.9", "127.0.0.1")
        ]

        async def getaddrinfo(*args: object, **kwargs: object) -> list[object]:
            return list(found)

        async with client(server, url="http://two-addresses.test:{port}") as http:
            monkeypatch.setattr(http, "_addresses", getaddrinfo)
            assert await got(http) == (200, b"ok")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for `localhost` only, and its key."""
    return certificate_for(tmp_path_factory.mktemp("tls"), "localhost")


async def test_https_checks_the_name_and_carries_much(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    pieces = tuple(bytes([number]) * 300_001 for number in range(1, 10))
    async with serving(says(CHUNKED, chunk(b"x" * 2_000_000), b"0\r\n\r\n"), tls) as server:
        async with client(server, url="https://localhost:{port}") as http:
            with pytest.raises(EngineUnavailable):
                await post(http)  # of an authority that nobody trusts
        monkeypatch.setattr(engine_http, "_tls", lambda: ssl.create_default_context(cafile=certificate[0]))
        async with client(server, url="https://127.0.0.1:{port}") as http:
            with pytest.raises(EngineUnavailable):
                await post(http)
        async with client(server, url="https://localhost:{port}") as http:
            for _ in range(2):
                with await post(http, *pieces) as answer:
                    assert await answer.whole() == b"x" * 2_000_000

    assert [body for peer in server.peers for body in peer.bodies] == [b"".join(pieces)] * 2
    assert [len(heads) for heads in server.heads if heads] == [2]
