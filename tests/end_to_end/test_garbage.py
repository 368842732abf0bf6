"""What a request was made of dies with it: nothing of ours is left for the collector, which looks rarely, and a context may be large.

All rooms run in the test's own process, so that what they leave behind can be looked at.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import aiohttp
import pytest

from launcher.rooms import ROOMS, Source, load_settings, open_rooms
from tests.end_to_end.client import Client
from tests.fakes.engine import FakeEngine
from tests.fakes.garbage import collected
from tests.fakes.mcp_server import FakeMcpServer
from tests.fakes.scripts import function_call, hang_up, status, text
from tests.fakes.secrets import marker

# Of cycles inside libraries, and nothing large: aiohttp's connection and its WebSocket, a session that the MCP SDK could not open.
OF_LIBRARIES = ("http_edge.listener.Connection", "orchestrator_svc.tools.mcp_", "orchestrator_svc.outbound_transport.")
KEY = marker("key-of-garbage")
Use = Callable[[Client, FakeEngine], Awaitable[None]]


@pytest.fixture
async def ada(postgres: str, database: str, engine_port: int, engine: FakeEngine, http: aiohttp.ClientSession) -> AsyncIterator[Client]:
    """A client of rooms in this process."""
    flags: dict[str, dict[str, object]] = {
        "history": {"listen": "", "database_url": database, "sweep_interval_seconds": 0.0},
        "engine": {"url": f"http://127.0.0.1:{engine_port}/v1"},
        "edge": {"port": 0},
        "orchestrator": {"listen": "", "background_turns": 1},
        "outbound": {"allow_hosts": ["127.0.0.1"]},
    }
    async with open_rooms(frozenset(ROOMS), load_settings(Source(None, {}, flags))) as opened:
        yield Client(http, opened.addresses["edge"], KEY)


async def _streamed(ada: Client, engine: FakeEngine) -> None:
    await ada.stream("go")


async def _whole(ada: Client, engine: FakeEngine) -> None:
    await ada.create("go")


async def _chained(ada: Client, engine: FakeEngine) -> None:
    first = await ada.create("go")
    second = await ada.stream("on", previous_response_id=first["id"])
    await ada.input_items(second.response["id"])
    await ada.delete(second.response["id"])


async def _relayed(ada: Client, engine: FakeEngine) -> None:
    for stream in (False, True):
        assert await _status_of(ada, {"model": "m", "input": "go", "store": False, "stream": stream}) == 200


async def _refused(ada: Client, engine: FakeEngine) -> None:
    for body in (b"{", {"model": "m", "input": "go", "temperature": "hot"}):
        assert await _status_of(ada, body) == 400
    for path in ("/v1/responses/resp_nothing", "/nothing"):
        assert (await ada.request("GET", path)).status == 404


async def _engine_refuses(ada: Client, engine: FakeEngine) -> None:
    engine.play(status(400, {"error": {"message": "no"}}), status(503, "busy"))
    assert await _status_of(ada, {"model": "m", "input": "go"}) == 400
    assert await _status_of(ada, _streaming()) >= 500


async def _engine_breaks_off(ada: Client, engine: FakeEngine) -> None:
    engine.play(text("one two three").cut(events=6, ending="reset"), hang_up())
    assert (await ada.stream("go")).response["status"] == "failed"
    assert await _status_of(ada, {"model": "m", "input": "go"}) >= 500


async def _left(ada: Client, engine: FakeEngine) -> None:
    engine.play(text("one two three").hold(asyncio.Event(), before=6))
    async with ada.streaming("go") as answer:
        await answer.content.readuntil(b"response.output_text.delta")
    await (await engine.request(0)).closed.wait()


async def _relay_breaks_off(ada: Client, engine: FakeEngine) -> None:
    engine.play(text("one two three").cut(events=6, ending="reset"))
    with pytest.raises(aiohttp.ClientError):
        await ada.request("POST", "/v1/responses", _streaming(store=False))


async def _relay_left(ada: Client, engine: FakeEngine) -> None:
    engine.play(text("one two three").hold(asyncio.Event(), before=6))
    async with ada.streaming("go", store=False) as answer:
        await answer.content.readuntil(b"response.output_text.delta")
    await (await engine.request(0)).closed.wait()


async def _in_a_conversation(ada: Client, engine: FakeEngine) -> None:
    made = (await ada.request("POST", "/v1/conversations", {"items": [{"role": "user", "content": "before"}]})).json
    await ada.stream("go", conversation=made["id"])
    assert await _status_of(ada, {"model": "m", "input": "go", "conversation": "conv_nothing"}) == 404


async def _tools(ada: Client, engine: FakeEngine) -> None:
    async with FakeMcpServer() as server:
        tool = {"type": "mcp", "server_label": "docs", "server_url": server.url, "require_approval": "never"}
        engine.play(function_call("docs__echo", {"text": "hi"}, "call_e"), text("done"))
        await ada.stream("go", tools=[tool])


async def _tool_out_of_reach(ada: Client, engine: FakeEngine) -> None:
    tool = {"type": "mcp", "server_label": "docs", "server_url": "http://127.0.0.1:9/mcp", "require_approval": "never"}
    engine.play(text("done"))
    assert "mcp_list_tools.failed" in (await ada.request("POST", "/v1/responses", _streaming(tools=[tool]))).body.decode()


async def _in_background(ada: Client, engine: FakeEngine) -> None:
    answer = await ada.request("POST", "/v1/responses", _streaming(background=True))
    assert b"response.completed" in answer.body


async def _by_socket(ada: Client, engine: FakeEngine) -> None:
    async with ada.http.ws_connect(f"{ada.url}/v1/responses", headers={"authorization": f"Bearer {KEY}"}) as socket:
        await socket.send_str(json.dumps({"type": "response.create", "model": "m", "input": "go"}))
        async with asyncio.timeout(10):
            while "response.completed" not in str((await socket.receive()).data):
                pass


async def _status_of(ada: Client, body: Mapping[str, object] | bytes) -> int:
    return (await ada.request("POST", "/v1/responses", body)).status


def _streaming(**fields: object) -> Mapping[str, object]:
    return {"model": "m", "input": "go", "stream": True, **fields}


@pytest.mark.parametrize(
    "use",
    [
        *(_streamed, _whole, _chained, _in_a_conversation, _in_background, _by_socket, _tools, _relayed),
        *(_tool_out_of_reach, _refused, _engine_refuses, _engine_breaks_off, _relay_breaks_off, _left, _relay_left),
    ],
)
async def test_nothing_of_ours_is_left_for_the_collector(ada: Client, engine: FakeEngine, use: Use) -> None:
    await use(ada, engine)
    with collected() as found:
        await use(ada, engine)
        await asyncio.sleep(0.2)
    assert sorted(name for name in found if not name.startswith(OF_LIBRARIES)) == []
