"""Requests that are wrong, odd or hostile: each gets a refusal in OpenAI's shape, with the right status, and nothing leaks."""

import asyncio
import gzip
import zlib

import msgspec
import pytest

from tests.http_edge.fake_services import CONVERSATION_ID, RESPONSE_ID, House, open_house, stored
from turnkeep.common.v1.common_pb2 import Item

KEY = "sk-marker-of-ada"
KEYS = {"ada": KEY, "bob": "sk-bob"}
ADA = {"Authorization": f"Bearer {KEY}"}
BOB = {"x-api-key": "sk-bob"}
ODD_IDS = [
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "resp_'%20OR%201=1--",
    'resp_"',
    "%00",
    RESPONSE_ID + "%00",
    RESPONSE_ID + "%0A",
    RESPONSE_ID.upper(),
    "x" * 10_240,
    "r%D0%B5sp_" + RESPONSE_ID[5:],
    RESPONSE_ID[:-1],
    "msg" + RESPONSE_ID[4:],
    "%FF%FE",
    "%ED%A0%80",
    "%25",
    "{response_id}",
    "resp_ffffffffffffffff" + "0" * 24,
]


@pytest.mark.parametrize("odd", ODD_IDS, ids=range(len(ODD_IDS)))
async def test_an_odd_id_in_a_path_is_not_found(house: House, odd: str) -> None:
    """B158: its form is checked before it reaches anything, and it is never an error of ours."""
    for method, path in (
        ("GET", f"/v1/responses/{odd}"),
        ("GET", f"/v1/responses/{odd}?stream=true"),
        ("DELETE", f"/v1/responses/{odd}"),
        ("POST", f"/v1/responses/{odd}/cancel"),
        ("GET", f"/v1/responses/{odd}/input_items"),
        ("GET", f"/v1/conversations/{odd}"),
        ("DELETE", f"/v1/conversations/{odd}"),
        ("GET", f"/v1/conversations/{odd}/items"),
        ("GET", f"/v1/conversations/{odd}/items/msg_1"),
        ("DELETE", f"/v1/conversations/{odd}/items/msg_1"),
    ):
        status, _, body = await _raw(house, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert (status, set(_error(body))) == (404, {"message", "type", "param", "code"})
        assert len(body) < 1000
    assert house.history.asked == []


async def test_raw_bytes_in_a_path_are_no_error_of_ours(house: House) -> None:
    """B158"""
    for path in (
        b"/v1/responses/\xff\xfe",
        b"/v1/responses/\xed\xa0\x80",
        b"/v1/\xf0\x9f\x8d\xb8",
        b"/v1/responses?a=\xff",
        b"*",
        b"//",
        b"/v1/responses/%",
        b"http://h/v1/x",
    ):
        status, _, body = await _raw(house, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert status in (400, 404), path
        assert _error(body)["type"] == "invalid_request_error"


@pytest.mark.parametrize("odd", ["../../etc/passwd", "resp_' OR 1=1 --", "\x00", "x" * 10_240, RESPONSE_ID + "\n", RESPONSE_ID.upper(), ""])
async def test_an_odd_parent_is_one_that_does_not_exist(house: House, odd: str) -> None:
    """B158: with `store` and without; the orchestrator is not asked."""
    for store in (True, False):
        answer = await house.create({"model": "m", "input": "hi", "previous_response_id": odd, "store": store})
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "previous_response_not_found", "previous_response_id")
        assert len(error["message"]) < 300
    assert house.orchestrator.turns == house.orchestrator.relayed == []


async def test_a_header_that_is_no_text_is_no_error_of_ours(house: House) -> None:
    """B158: it stays behind, as it cannot travel as text; the query travels as it was written."""
    head = b'POST /v1/completions?a=%41&b=%2f+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n'
    await _exchange(house, head + b"X-Odd: \xff\xfe\r\nX-Name: \xc3\xa9\r\nContent-Length: 2\r\n\r\n{}")
    [asked] = house.orchestrator.relayed
    assert asked.path == '/v1/completions?a=%41&b=%2f+"'
    assert {header.name: header.value for header in asked.headers} == {"x-name": "é"}


async def test_a_foreign_id_looks_exactly_like_an_unknown_one() -> None:
    """B150: the same status, the same body but for the id, and nothing changes."""
    async with open_house(api_keys=KEYS) as house:
        house.history.responses["ada", RESPONSE_ID] = stored({"object": "response"})
        house.history.inputs["ada", RESPONSE_ID] = [Item(id="msg_1", type="message", body=b"{}")]
        unknown = RESPONSE_ID[:-1] + "9"
        for method, suffix in (("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            answers = []
            for response_id in (RESPONSE_ID, unknown):
                answer = await house.http.request(method, f"/v1/responses/{response_id}{suffix}", headers=BOB)
                answers.append((answer.status, (await answer.text()).replace(response_id, "ID")))
            assert answers[0] == answers[1]
            assert answers[0][0] == 404
        assert (await house.http.get(f"/v1/responses/{RESPONSE_ID}", headers=ADA)).status == 200


async def test_every_route_of_the_api_asks_for_a_key() -> None:
    """B152: none of them, and no other spelling of one, is a way around the check."""
    async with open_house(api_keys=KEYS) as house:
        for method, path in API:
            for headers in (
                {},
                {"Authorization": "Bearer sk-wrong"},
                {"Authorization": KEY},
                {"x-api-key": KEY + "x"},
                {"Authorization": "Bearer"},
            ):
                answer = await house.http.request(method, path, headers=headers, data=b"{}")
                assert answer.status == 401, (method, path)
                assert (await answer.json())["error"]["code"] == "invalid_api_key"
        assert house.orchestrator.turns == house.orchestrator.relayed == house.history.asked == []


async def test_other_spellings_of_a_route_are_not_served() -> None:
    """B152: no alias, no trailing slash, no double slash, no other case."""
    async with open_house(api_keys=KEYS) as house:
        for method, path in API:
            if "?" in path:
                continue
            for alias in (
                path + "/",
                path.removeprefix("/v1"),
                "/openai" + path,
                "/" + path,
                path.upper(),
                "/v1" + path,
                "/v1/." + path[3:],
            ):
                status, _, body = await _raw(house, f"{method} {alias} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                assert (status, _error(body)["code"]) in ((404, "route_not_found"), (401, "invalid_api_key")), alias
        assert house.orchestrator.turns == house.orchestrator.relayed == house.history.asked == []


async def test_the_owner_comes_from_the_key_alone() -> None:
    """B159: what a caller says about itself is data."""
    async with open_house(api_keys=KEYS) as house:
        claims = {"user": "bob", "safety_identifier": "bob", "metadata": {"owner": "bob", "tenant": "bob"}, "owner": "bob"}
        headers = ADA | {"x-tenant": "bob", "x-owner": "bob", "openai-organization": "bob", "owner": "bob", "x-api-key": "sk-bob"}
        for store in (True, False):
            await house.create({"model": "m", "input": "hi", "store": store} | claims, headers=headers)
        await house.http.get(f"/v1/responses/{RESPONSE_ID}?owner=bob&user=bob", headers=headers)
        asked = [*house.orchestrator.turns, *house.orchestrator.relayed, *house.history.asked]
        assert [request.owner for request in asked] == ["ada"] * 3


async def test_a_refused_key_is_repeated_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    """B156: not in the answer, not in its headers, not in the log."""
    async with open_house(api_keys=KEYS, access_log=True) as house:
        wrong = "sk-marker-wrong"
        for headers in ({"Authorization": f"Bearer {wrong}"}, {"x-api-key": wrong}, {"Authorization": f"Basic {wrong}"}):
            answer = await house.create(b"{", headers=headers)
            assert wrong not in await answer.text() + str(answer.headers)
        for raw in (b"GET / HTTP/9\r\nAuthorization: Bearer sk-marker-wrong\r\n\r\n", b"GET / HTTP/1.1\r\nsk-marker-wrong\r\n\r\n"):
            _, _, body = await _raw(house, raw)
            assert b"sk-marker-wrong" not in body
    written = capfd.readouterr()
    assert wrong not in written.out + written.err


async def test_what_was_not_foreseen_is_masked_and_logged(house: House, capfd: pytest.CaptureFixture[str]) -> None:
    """B162: the client gets an id, the log the exception."""
    house.history.error = RuntimeError("sk-marker /srv/turnkeep/store.py select * from item")
    answer = await house.http.get(f"/v1/responses/{RESPONSE_ID}")
    text = await answer.text()
    assert (answer.status, msgspec.json.decode(text)["error"]["code"]) == (500, "internal_error")
    assert not any(word in text for word in ("sk-marker", "/srv", "select"))
    written = capfd.readouterr()
    assert "select * from item" in written.out + written.err


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"a":"\xff"}', b'{"a":' + b"[" * 100_000, b"\x00" * 100, b"model=m&input=hi"],
    ids=range(7),
)
async def test_a_body_that_is_no_json_object_is_refused(house: House, body: bytes) -> None:
    answer = await house.create(body)
    error = (await answer.json())["error"]
    assert (answer.status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_request")
    assert house.orchestrator.turns == house.orchestrator.relayed == []


async def test_a_body_past_the_limit_is_refused_however_it_comes() -> None:
    async with open_house(body_limit_bytes=1000) as house:
        big = b'{"store":false,"x":"' + b"x" * 2000 + b'"}'
        exact = b'{"store":false,"x":"' + b"x" * 978 + b'"}'
        for path in ("/v1/responses", "/v1/chat/completions"):
            assert (await house.http.post(path, data=exact)).status == 200
            for data, headers in ((big, {}), (_slices(big), {}), (gzip.compress(big * 100), {"Content-Encoding": "gzip"})):
                answer = await house.http.post(path, data=data, headers=headers)
                assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")


async def test_a_body_is_refused_by_its_length_before_it_is_sent() -> None:
    async with open_house(body_limit_bytes=1000) as house:
        status, _, body = await _raw(house, b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert (status, _error(body)["code"]) == (413, "request_too_large")


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with open_house(body_timeout_seconds=0.1) as house:
        status, _, body = await _raw(house, b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert (status, _error(body)["code"]) == (408, "request_timeout")


async def test_an_idle_connection_and_a_head_that_does_not_end_are_closed() -> None:
    async with open_house(idle_timeout_seconds=0.1) as house:
        for start in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(start)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()


async def test_a_compression_bomb_is_refused(house: House) -> None:
    bomb = zlib.compress(b" " * 200_000_000, 9)
    answer = await house.create(bomb, headers={"Content-Encoding": "deflate"})
    assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 400), ("deflate", 400), ("snappy", 415)])
async def test_a_body_that_cannot_be_unpacked_is_refused_and_not_logged(
    house: House, encoding: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Encoding: {encoding}\r\nContent-Length: 10\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(head.encode() + b"not packed")
    answer = await asyncio.wait_for(reader.readuntil(b"}}"), 10)
    writer.close()
    await house.create({"model": "m", "input": "hello"})

    assert int(answer.split()[1]) == status
    assert b"invalid_request_error" in answer
    assert caplog.messages == []


@pytest.mark.parametrize("encoding", ["br", "zstd"])
async def test_an_encoding_that_needs_a_library_which_is_not_here_is_no_broken_http(house: House, encoding: str) -> None:
    answer = await house.create(b"not packed", headers={"Content-Encoding": encoding})
    assert (answer.status, (await answer.json())["error"]["code"]) in ((400, "invalid_request"), (415, "unsupported_content_encoding"))


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404, "route_not_found"),
        (b"PUT /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 426, "upgrade_required"),
        (b"GET /v1/responses/compact HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"DELETE /v1/responses/input_tokens HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"PATCH /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: the-unexpected\r\nConnection: close\r\n\r\n", 400, "bad_http"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-Big: " + b"x" * 200_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X-N: x\r\n" * 10_000 + b"\r\n", 400, "bad_http"),
        (b"hello\r\n\r\n", 400, "bad_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_http"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400, "bad_http"),
        (b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400, "bad_http"),
        (b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_http"),
        (b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n", 400, None),
    ],
    ids=range(16),
)
async def test_every_refusal_has_the_same_shape_and_a_request_id(house: House, raw: bytes, status: int, code: str | None) -> None:
    answered, headers, body = await _raw(house, raw)
    assert answered == status
    error = _error(body)
    assert set(error) == {"message", "type", "param", "code"}
    assert code is None or error["code"] == code
    assert headers["x-request-id"].startswith("req_")
    assert headers["content-type"].startswith("application/json")


async def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on(house: House) -> None:
    body = b'{"model":"m","input":"hi"}'
    raw = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    data = await _exchange(house, raw + body)
    assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


API = [
    ("POST", "/v1/responses"),
    ("GET", f"/v1/responses/{RESPONSE_ID}"),
    ("DELETE", f"/v1/responses/{RESPONSE_ID}"),
    ("GET", f"/v1/responses/{RESPONSE_ID}/input_items"),
    ("GET", "/v1/responses"),
    ("GET", f"/v1/responses/{RESPONSE_ID}?stream=true"),
    ("POST", f"/v1/responses/{RESPONSE_ID}/cancel"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/v1/conversations"),
    ("GET", f"/v1/conversations/{CONVERSATION_ID}"),
    ("POST", f"/v1/conversations/{CONVERSATION_ID}"),
    ("DELETE", f"/v1/conversations/{CONVERSATION_ID}"),
    ("POST", f"/v1/conversations/{CONVERSATION_ID}/items"),
    ("GET", f"/v1/conversations/{CONVERSATION_ID}/items"),
    ("GET", f"/v1/conversations/{CONVERSATION_ID}/items/msg_1"),
    ("DELETE", f"/v1/conversations/{CONVERSATION_ID}/items/msg_1"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
]


async def _slices(data: bytes):
    for start in range(0, len(data), 100):
        yield data[start : start + 100]


async def _raw(house: House, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """One exchange on a connection of its own: status, headers in lower case, body."""
    head, _, body = (await _exchange(house, raw)).partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status_line.split()[1]), headers, body


async def _exchange(house: House, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(raw)
    data = b""
    async with asyncio.timeout(20):
        while not _is_whole(data):
            piece = await reader.read(65536)
            if not piece:
                break
            data += piece
    writer.close()
    return data


def _is_whole(data: bytes) -> bool:
    """Has an answer with a Content-Length arrived? (The server may leave the connection open to read on.)"""
    head, end, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    return bool(end) and bool(lengths) and len(body) >= int(lengths[0])


def _error(body: bytes) -> dict[str, object]:
    return msgspec.json.decode(body)["error"]
