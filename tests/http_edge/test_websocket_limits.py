"""A WebSocket under stress: odd handshakes and frames, floods, slow and silent clients, old age, and the end of the process."""

import asyncio
import base64
import os
import struct

import aiohttp
import msgspec
import pytest
from structlog.testing import capture_logs

from http_edge.metrics import RETAINED_BYTES, WEBSOCKETS
from tests.http_edge.fake_services import House, for_ever, open_house, playing, turn, within
from tests.http_edge.test_drain import Stopping
from tests.http_edge.test_websocket import ASKED, KINDS, receive, remembering, whole_turn

HANDSHAKE = {
    "Host": "x",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
}
TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


class RawSocket:
    """A client that writes what it likes."""

    async def open(self, house: House, limit: int = 2**16, **headers: str) -> bytes:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", house.port, limit=limit)
        lines = [f"{name}: {value}" for name, value in (HANDSHAKE | headers).items() if value]
        self.writer.write("\r\n".join(["GET /v1/responses HTTP/1.1", *lines, "", ""]).encode("latin-1"))
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)

    def send(self, payload: bytes, opcode: int = TEXT, final: bool = True) -> None:
        size = len(payload)
        length = (
            struct.pack("!B", 0x80 | size)
            if size < 126
            else struct.pack("!BH", 0xFE, size)
            if size < 65536
            else struct.pack("!BQ", 0xFF, size)
        )
        self.writer.write(bytes([opcode | 0x80 * final]) + length + bytes(4) + payload)

    async def receive(self) -> tuple[int, bytes]:
        first, second = await asyncio.wait_for(self.reader.readexactly(2), 10)
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
        return first & 0x0F, await self.reader.readexactly(size)

    async def closed_with(self) -> int:
        """The code of the close frame, whatever comes before it."""
        while True:
            opcode, payload = await self.receive()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big")


async def closed(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """The code that the server closes with next."""
    message = await socket.receive(timeout=10)
    assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message
    return socket.close_code


async def none_left() -> None:
    async with asyncio.timeout(10):
        while WEBSOCKETS._value.get():
            await asyncio.sleep(0)


# The handshake.


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Upgrade": ""}, 426, "upgrade_required"),
        ({"Upgrade": "h2c"}, 426, "upgrade_required"),
        ({"Sec-WebSocket-Version": "12"}, 400, "bad_http"),
        ({"Sec-WebSocket-Version": ""}, 400, "bad_http"),
        ({"Sec-WebSocket-Key": ""}, 400, "bad_http"),
        ({"Sec-WebSocket-Key": "short"}, 400, "bad_http"),
        ({"Origin": "https://eve.example"}, 403, "origin_not_allowed"),
        ({"Origin": "null"}, 403, "origin_not_allowed"),
    ],
)
async def test_what_is_no_handshake_is_refused_in_the_usual_shape(house: House, headers: dict[str, str], status: int, code: str) -> None:
    raw = RawSocket()
    head = await raw.open(house, **headers)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    error = msgspec.json.decode(await raw.reader.readexactly(length))["error"]
    assert (int(head.split()[1]), error["code"], set(error)) == (status, code, {"message", "type", "param", "code"})
    assert (b"upgrade: websocket" in head.lower()) is (status == 426)
    raw.writer.close()


async def test_an_allowed_origin_may_open_a_websocket() -> None:
    for origins in (("https://ada.example",), ("*",)):
        async with open_house(cors_origins=origins) as house, house.connect(origin="https://ada.example") as socket:
            await socket.send_json(ASKED)
            assert (await whole_turn(socket))[-1]["type"] == "response.completed"


async def test_offers_of_a_client_are_not_repeated_in_the_log(house: House, capfd: pytest.CaptureFixture[str]) -> None:
    """B156: some clients put their key into the name of a subprotocol."""
    async with house.connect(protocols=("realtime", "openai-insecure-api-key.sk-marker")) as socket:
        await socket.send_json(ASKED)
        await whole_turn(socket)
    written = capfd.readouterr()
    assert "sk-marker" not in written.out + written.err


async def test_compression_may_be_offered(house: House) -> None:
    async with house.connect(compress=15) as socket:
        await socket.send_json(ASKED)
        assert [frame["type"] for frame in await whole_turn(socket)] == KINDS


# Frames.


ODD_FRAMES = [
    ("", None),
    ("{", None),
    ("[]", None),
    ("null", None),
    ('"text"', None),
    ('{"a":NaN}', None),
    ('{"type":"response.create"} {}', None),
    ('{"a":' + "[" * 100_000, None),
    ("{}", "type"),
    ('{"type":7}', "type"),
    ('{"type":null}', "type"),
    ('{"type":"response.cancel"}', "type"),
    ('{"type":"response.steer","response_id":"x"}', "type"),
    ('{"type":"' + "x" * 100_000 + '"}', "type"),
    ('{"type":"response.create"}', "model"),
    ('{"type":"response.create","model":"m"}', "input"),
    ('{"type":"response.create","model":"m","input":"x","generate":"no"}', "generate"),
    ('{"type":"response.create","model":"m","input":"x","stream_id":7}', "stream_id"),
    ('{"type":"response.create","model":"m","input":"x","stream_id":""}', "stream_id"),
    ('{"type":"response.create","model":"m","input":"x","stream_id":"' + "l" * 129 + '"}', "stream_id"),
    ('{"type":"response.create","model":"m","input":"x","background":true}', "background"),
    ('{"type":"response.create","model":"m","input":"x","stream":"yes"}', "stream"),
    ('{"type":"response.create","model":"m","input":"x","temperature":9}', "temperature"),
    ('{"type":"response.create","model":"m","input":[7]}', "input[0]"),
    ('{"type":"response.create","model":"m","input":"x","previous_response_id":"../x"}', "previous_response_id"),
    ('{"type":"response.create","model":"m","input":"x","conversation":"conv_1"}', "conversation"),
]


async def test_a_frame_that_is_not_valid_is_an_error_frame_and_the_connection_goes_on(house: House) -> None:
    """B158"""
    async with house.connect() as socket:
        for text, param in ODD_FRAMES:
            await socket.send_str(text)
            frame = await receive(socket)
            assert (frame["type"], frame["status"] in (400, 404), frame["error"]["param"]) == ("error", True, param), text[:80]
            assert len(frame["error"]["message"]) < 500
        await socket.send_bytes(msgspec.json.encode(ASKED))
        assert (await receive(socket))["error"]["code"] == "invalid_request"
        await socket.send_json(ASKED)
        assert [frame["type"] for frame in await whole_turn(socket)] == KINDS
    assert len(house.orchestrator.turns) == 1


async def test_text_that_is_no_utf_8_is_an_error_frame(house: House) -> None:
    raw = RawSocket()
    await raw.open(house)
    raw.send(b'{"type":"\xff"}')
    opcode, payload = await raw.receive()
    assert (opcode, msgspec.json.decode(payload)["error"]["code"]) == (TEXT, "invalid_request")
    raw.writer.close()


@pytest.mark.parametrize(
    ("raw_bytes", "code"),
    [
        (b"\x83\x80\x00\x00\x00\x00", 1002),  # an opcode that does not exist
        (b"\xf1\x80\x00\x00\x00\x00", 1002),  # reserved bits
        (b"\x80\x80\x00\x00\x00\x00", 1002),  # the end of a message that has not begun
        (b"\x89\xfe\x00\xff\x00\x00\x00\x00", 1002),  # a ping that is too long
        (b"\x88\x81\x00\x00\x00\x00x", 1002),  # half a close code
        (b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", 1009),  # a length of nine exabytes
    ],
)
async def test_what_is_no_websocket_frame_closes_the_connection(house: House, raw_bytes: bytes, code: int) -> None:
    house.orchestrator.create = lambda request: playing(for_ever())
    call, raw = house.orchestrator.next_call, RawSocket()
    await raw.open(house)
    raw.send(msgspec.json.encode(ASKED))
    await within(call.started)
    raw.writer.write(raw_bytes)
    assert await raw.closed_with() == code
    await within(call.cancelled)
    raw.writer.close()
    await none_left()


async def test_a_frame_past_the_limit_closes_the_connection_however_it_comes() -> None:
    async with open_house(body_limit_bytes=10_000) as house:
        for parts in ([b"x" * 10_001], [b"x" * 4_000] * 3):
            raw = RawSocket()
            await raw.open(house)
            for place, part in enumerate(parts):
                raw.send(part, TEXT if place == 0 else 0, final=place == len(parts) - 1)
            assert await raw.closed_with() == 1009
            raw.writer.close()
        async with house.connect() as socket:
            await socket.send_json(ASKED | {"input": "x" * 9_000})
            assert (await whole_turn(socket))[-1]["type"] == "response.completed"
        await none_left()


async def test_a_ping_is_answered_while_a_turn_runs(house: House) -> None:
    house.orchestrator.create = lambda request: playing(for_ever())
    raw = RawSocket()
    await raw.open(house)
    raw.send(msgspec.json.encode(ASKED))
    raw.send(b"are you there", PING)
    assert await raw.receive() == (10, b"are you there")
    raw.writer.close()


# Floods.


async def test_more_turns_than_may_wait_are_refused_and_the_others_run() -> None:
    async with open_house(websocket_queue=3) as house:
        gate = asyncio.Event()
        house.orchestrator.create = lambda request: playing(gate, *turn("Hello"))
        call = house.orchestrator.next_call
        async with house.connect() as socket:
            await socket.send_json(ASKED)
            await within(call.started)
            for _ in range(10):
                await socket.send_json(ASKED)
            refused = [await receive(socket) for _ in range(7)]
            assert {(frame["status"], frame["error"]["code"]) for frame in refused} == {(429, "websocket_queue_full")}
            gate.set()
            for _ in range(4):
                assert [frame["type"] for frame in await whole_turn(socket)] == KINDS


async def test_more_lanes_than_allowed_are_refused_and_a_lane_that_is_done_makes_room() -> None:
    async with open_house(websocket_lanes=2) as house:
        gate = asyncio.Event()
        house.orchestrator.create = lambda request: playing(gate, *turn("Hello"))
        async with house.connect() as socket:
            for lane in "abc":
                await socket.send_json(ASKED | {"stream_id": lane})
            refused = await receive(socket)
            assert (refused["error"]["code"], refused["stream_id"]) == ("websocket_queue_full", "c")
            gate.set()
            await whole_turn(socket)
            await whole_turn(socket)
            for n in range(20):
                await socket.send_json(ASKED | {"stream_id": f"lane {n}"})
                assert (await whole_turn(socket))[-1]["type"] == "response.completed"


async def test_what_waits_is_bounded_in_bytes() -> None:
    async with open_house(body_limit_bytes=10_000) as house:
        house.orchestrator.create = lambda request: playing(for_ever())
        call = house.orchestrator.next_call
        async with house.connect() as socket:
            await socket.send_json(ASKED)
            await within(call.started)
            for _ in range(3):
                await socket.send_json(ASKED | {"input": "x" * 4_000})
            assert (await receive(socket))["error"]["code"] == "websocket_queue_full"


async def test_a_flood_of_nonsense_ends_with_the_client_and_hurts_nobody_else() -> None:
    """Whoever does not read its errors is cut off."""
    async with open_house(client_timeout_seconds=0.3) as house:
        raw = RawSocket()
        await raw.open(house, limit=1024)
        raw.writer.transport.pause_reading()
        with pytest.raises(ConnectionError):
            await _flood(raw, house)
        await none_left()


async def test_a_client_that_leaves_while_it_is_told_of_its_nonsense_is_no_failure(house: House) -> None:
    with capture_logs() as entries:
        for _ in range(20):
            raw = RawSocket()
            await raw.open(house)
            for _ in range(50):
                raw.send(b"nonsense")
            await asyncio.sleep(0)
            raw.writer.transport.abort()
            await none_left()
    assert [entry for entry in entries if entry["log_level"] == "error"] == []


async def test_a_slow_client_that_goes_on_taking_bytes_stays() -> None:
    async with open_house(client_timeout_seconds=0.5) as house:
        house.orchestrator.create = lambda request: playing(*turn(*["x" * 100_000] * 60))
        async with house.connect(max_msg_size=0) as socket:
            await socket.send_json(ASKED)
            kinds = []
            while kinds[-1:] != ["response.completed"]:
                kinds.append((await receive(socket))["type"])
                await asyncio.sleep(0.02)
            assert kinds.count("response.output_text.delta") == 60


async def test_a_client_that_takes_no_byte_has_left() -> None:
    async with open_house(client_timeout_seconds=0.3) as house:
        house.orchestrator.create = lambda request: playing(*turn(*["x" * 100_000] * 300))
        call, raw = house.orchestrator.next_call, RawSocket()
        await raw.open(house, limit=1024)
        raw.writer.transport.pause_reading()
        raw.send(msgspec.json.encode(ASKED))
        await within(call.cancelled)
        raw.writer.transport.abort()
        await none_left()


async def test_a_client_that_does_not_answer_pings_has_left() -> None:
    async with open_house(keep_alive_seconds=0.05) as house:
        house.orchestrator.create = lambda request: playing(for_ever())
        call, raw = house.orchestrator.next_call, RawSocket()
        await raw.open(house)
        raw.send(msgspec.json.encode(ASKED))
        assert (await raw.receive())[0] == PING
        await within(call.cancelled)
        raw.writer.close()
        await none_left()


async def test_a_silent_client_that_answers_pings_stays() -> None:
    async with open_house(keep_alive_seconds=0.4) as house:
        gate = asyncio.Event()
        house.orchestrator.create = lambda request: playing(gate, *turn("Hello"))
        raw = RawSocket()
        await raw.open(house)
        raw.send(msgspec.json.encode(ASKED))
        for _ in range(2):
            opcode, payload = await raw.receive()
            assert opcode == PING
            raw.send(payload, 10)
        gate.set()
        opcode, payload = await raw.receive()
        assert (opcode, msgspec.json.decode(payload)["type"]) == (TEXT, "response.created")
        raw.writer.close()


async def test_many_connections_run_side_by_side_and_leave_nothing_behind(house: House) -> None:
    before = RETAINED_BYTES._value.get()
    remembering(house)

    async def talk() -> int:
        done = 0
        async with house.connect() as socket:
            parents: dict[str, dict[str, str]] = {}
            for _ in range(3):
                for lane in "ab":
                    await socket.send_json(ASKED | {"stream_id": lane} | parents.get(lane, {}))
                for _ in range(2):
                    last = await _next_terminal(socket)
                    parents[last["stream_id"]] = {"previous_response_id": last["response"]["id"]}
                    done += last["type"] == "response.completed"
        return done

    assert await asyncio.gather(*(talk() for _ in range(20))) == [6] * 20
    await none_left()
    assert RETAINED_BYTES._value.get() == before


async def test_random_bytes_never_break_the_server(house: House) -> None:
    for _ in range(30):
        raw = RawSocket()
        await raw.open(house)
        raw.writer.write(os.urandom(2000))
        raw.writer.write_eof()
        await asyncio.wait_for(raw.reader.read(), 10)
        raw.writer.close()
    assert (await house.http.get("/healthz")).status == 200
    await none_left()


# Old age and the end of the process.


async def test_an_old_connection_says_so_and_is_closed() -> None:
    async with open_house(websocket_lifetime_seconds=0.05) as house, house.connect() as socket:
        frame = await receive(socket)
        assert (frame["type"], frame["status"], frame["error"]["code"]) == ("error", 400, "websocket_connection_limit_reached")
        assert await closed(socket) == 1000


async def test_a_turn_on_an_old_connection_finishes_and_what_waits_or_comes_is_refused() -> None:
    async with open_house(websocket_lifetime_seconds=1) as house:
        gate = asyncio.Event()
        first, *rest = turn("Hello")
        house.orchestrator.create = lambda request: playing(first, gate, *rest)
        async with house.connect() as socket:
            for _ in range(2):
                await socket.send_json(ASKED)
            assert (await receive(socket))["type"] == "response.created"
            assert (await receive(socket))["error"]["code"] == "websocket_connection_limit_reached"
            await socket.send_json(ASKED)
            assert (await receive(socket))["error"]["code"] == "websocket_connection_limit_reached"
            gate.set()
            assert [frame["type"] for frame in await whole_turn(socket)] == KINDS[1:]
            assert (await receive(socket))["error"]["code"] == "websocket_connection_limit_reached"
            assert await closed(socket) == 1000
        assert len(house.orchestrator.turns) == 1


async def test_a_stop_closes_an_idle_connection_at_once() -> None:
    async with Stopping(drain_seconds=30) as (_house, http, stopping), http.ws_connect("/v1/responses") as socket:
        stopping.stop()
        assert await closed(socket) == 1001
        await stopping.stopped()


async def test_a_stop_lets_a_turn_finish_and_refuses_what_waits_or_comes() -> None:
    async with Stopping(drain_seconds=30) as (house, http, stopping), http.ws_connect("/v1/responses") as socket:
        gate = asyncio.Event()
        first, *rest = turn("Hello")
        house.orchestrator.create = lambda request: playing(first, gate, *rest)
        for _ in range(2):
            await socket.send_json(ASKED)
        assert (await receive(socket))["type"] == "response.created"
        stopping.stop()
        refused = await receive(socket)
        assert (refused["status"], refused["error"]["code"]) == (503, "server_shutdown")
        await socket.send_json(ASKED)
        assert (await receive(socket))["error"]["code"] == "server_shutdown"
        gate.set()
        assert [frame["type"] for frame in await whole_turn(socket)] == KINDS[1:]
        assert await closed(socket) == 1001
        await stopping.stopped()


async def test_turns_that_outlive_the_drain_end_in_failed_events() -> None:
    async with Stopping(drain_seconds=0.05) as (house, http, stopping), http.ws_connect("/v1/responses") as socket:
        house.orchestrator.create = lambda request: playing(*turn("Hello")[:5], for_ever())
        calls = []
        for lane in "ab":
            calls.append(house.orchestrator.next_call)
            await socket.send_json(ASKED | {"stream_id": lane})
            await within(calls[-1].started)
        stopping.stop()
        ends = [await _next_terminal(socket) for _ in "ab"]
        assert {(end["stream_id"], end["type"], end["response"]["error"]["code"]) for end in ends} == {
            ("a", "response.failed", "server_shutdown"),
            ("b", "response.failed", "server_shutdown"),
        }
        assert await closed(socket) == 1001
        for call in calls:
            await within(call.cancelled)
        await stopping.stopped()


async def test_a_client_that_is_deaf_does_not_hold_up_the_end() -> None:
    async with Stopping(drain_seconds=0.05) as (house, _http, stopping):
        house.orchestrator.create = lambda request: playing(*turn(*["x" * 100_000] * 300))
        call, raw = house.orchestrator.next_call, RawSocket()
        await raw.open(house, limit=1024)
        raw.writer.transport.pause_reading()
        raw.send(msgspec.json.encode(ASKED))
        await within(call.started)
        stopping.stop()
        await stopping.stopped()
        raw.writer.transport.abort()


async def _next_terminal(socket: aiohttp.ClientWebSocketResponse) -> dict[str, object]:
    while True:
        frame = await receive(socket)
        if frame["type"] in ("response.completed", "response.failed", "error"):
            return frame


async def _flood(raw: RawSocket, house: House) -> None:
    frame = bytes([0x81, 0x80 | 1]) + bytes(4) + b"{"
    while True:
        raw.writer.write(frame * 10_000)
        await asyncio.wait_for(raw.writer.drain(), 10)
        assert (await house.http.get("/healthz")).status == 200
