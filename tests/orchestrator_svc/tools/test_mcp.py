"""The tools of real MCP servers, over each transport: what is listed, what the model reads, what the client sees, what a session costs."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from orchestrator_svc.tools.base import McpServer
from tests.fakes.mcp_server import PIXEL, FakeMcpServer
from tests.orchestrator_svc.tools.mcp_calls import call_of, failure, opened, run

KINDS = [("streamable_http", "modern"), ("streamable_http", "legacy"), ("sse", "modern"), ("stdio", "modern")]
PIXEL_URL = f"data:image/png;base64,{PIXEL}"


@pytest.fixture(params=KINDS, ids=" ".join)
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[FakeMcpServer]:
    """A server over each transport, and over HTTP in each era of the protocol."""
    transport, era = request.param
    async with FakeMcpServer(transport, era=era) as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[FakeMcpServer]:
    """A server of today."""
    async with FakeMcpServer() as server:
        yield server


SERVER = McpServer("fake")


async def test_a_server_is_listed_and_its_tools_are_called(fake: FakeMcpServer) -> None:
    async with opened({"fake": fake.settings}) as client:
        tools = {tool.name: tool for tool in await client.tools(SERVER)}
        result = await run(client, SERVER, "echo", text="caf\u00e9 \U0001f378")
    assert tools["add"].description == "Adds two numbers."
    assert tools["add"].input_schema["required"] == ["a", "b"]
    assert tools["look"].is_read_only
    assert not tools["delete_all"].is_read_only
    assert result.output == "caf\u00e9 \U0001f378"
    assert result.public == {"output": "caf\u00e9 \U0001f378", "error": None}
    assert [(call.name, call.arguments) for call in fake.calls] == [("echo", {"text": "caf\u00e9 \U0001f378"})]


async def test_twelve_slow_calls_run_side_by_side_over_one_session(fake: FakeMcpServer) -> None:
    async with opened({"fake": fake.settings}) as client:
        results = await asyncio.gather(*(run(client, SERVER, "meet", count=12) for _ in range(12)))
    assert [result.output for result in results] == ["met"] * 12
    assert fake.overlap == 12


async def test_a_tool_that_fails_says_so_to_the_model_and_the_client(http: FakeMcpServer) -> None:
    async with opened({"fake": http.settings}) as client:
        result = await run(client, SERVER, "fail")
    text = "Error executing tool fail: it failed"
    assert result.failed
    assert result.output == text
    assert result.public == {
        "output": text,
        "error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]},
    }


async def test_images_reach_the_model_as_images(http: FakeMcpServer) -> None:
    async with opened({"fake": http.settings}) as client:
        result = await run(client, SERVER, "picture")
    assert result.output == (
        {"type": "input_text", "text": "a pixel"},
        {"type": "input_image", "image_url": PIXEL_URL, "detail": "auto"},
    )
    assert result.public["output"] == "a pixel\n[image: image/png]"


async def test_a_structured_result_is_said_once(http: FakeMcpServer) -> None:
    async with opened({"fake": http.settings}) as client:
        table, total = await run(client, SERVER, "table"), await run(client, SERVER, "add", a=1, b=2)
    assert json.loads(str(table.output)) == {"rows": [1, 2, 3]}
    assert total.output == "3"


async def test_resources_are_read_and_what_no_engine_reads_is_named(http: FakeMcpServer) -> None:
    async with opened({"fake": http.settings}) as client:
        result = await run(client, SERVER, "mixed")
    assert result.output == (
        {"type": "input_text", "text": "first"},
        {"type": "input_text", "text": "[audio of type audio/wav is left out]"},
        {"type": "input_text", "text": "a link <file:///tmp/link>"},
        {"type": "input_text", "text": "a resource"},
        {"type": "input_text", "text": "[the resource file:///tmp/blob of type application/zip is left out]"},
        {"type": "input_image", "image_url": PIXEL_URL, "detail": "auto"},
        {"type": "input_text", "text": '{"more": true}'},
    )


async def test_half_a_surrogate_pair_in_the_arguments_is_replaced(fake: FakeMcpServer) -> None:
    async with opened({"fake": fake.settings}) as client:
        result = await run(client, SERVER, "echo", text="a\ud83db")
    assert result.output == "a\ufffdb"


async def test_a_list_is_kept_until_the_server_says_that_it_has_changed(fake: FakeMcpServer) -> None:
    async with opened({"fake": fake.settings}) as client:
        first = await client.tools(SERVER)
        assert await client.tools(SERVER) is first
        await run(client, SERVER, "grow")
        async with asyncio.timeout(20):
            while (now := await client.tools(SERVER)) is first:
                await run(client, SERVER, "echo", text="time passes")
    assert {tool.name for tool in now} - {tool.name for tool in first} == {"grown_1"}


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("json_response", [True, False])
async def test_a_pooled_session_costs_no_new_connection(era: str, json_response: bool) -> None:
    async with FakeMcpServer(era=era, json_response=json_response) as fake, opened() as client:
        server = McpServer("s", fake.url)
        await client.tools(server)
        await run(client, server, "echo", text="first")
        connections = fake.connections
        for n in range(20):
            await run(client, server, "echo", text=str(n))
        assert fake.connections == connections <= 4


async def test_requests_carry_what_the_tool_was_given_and_nothing_else_B086() -> None:
    async with FakeMcpServer() as fake, opened() as client:
        server = McpServer("s", fake.url, {"X-Own": "own"}, authorization="token-of-the-tool")
        await client.tools(server)
        await run(client, server, "echo", text="x")
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer token-of-the-tool"}
    assert {headers["x-own"] for headers in fake.headers} == {"own"}
    protocol = {"mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"}
    http = {"host", "accept", "accept-encoding", "connection", "content-length", "content-type", "user-agent", "cache-control"}
    assert {name for headers in fake.headers for name in headers} <= protocol | http | {"authorization", "x-own"}


async def test_each_set_of_credentials_has_a_session_of_its_own() -> None:
    async with FakeMcpServer(era="legacy") as fake, opened() as client:
        for token in ("one", "two", "one"):
            await run(client, McpServer("s", fake.url, authorization=token), "echo", text=token)
        sessions = {(headers["authorization"], headers.get("mcp-session-id")) for headers in fake.headers if "mcp-session-id" in headers}
    assert sorted(authorization for authorization, _ in sessions) == ["Bearer one", "Bearer two"]


async def test_a_secret_that_a_result_repeats_is_taken_out_of_it_B087() -> None:
    async with FakeMcpServer() as fake, opened() as client:
        server = McpServer("s", fake.url, {"X-Key": "header-secret"}, authorization="tok3n")
        result = await run(client, server, "leak")
        tools = {tool.name: tool for tool in await client.tools(server)}
    assert tools["leak"].annotations == {"title": "Leaks [redacted]"}
    assert "header-secret" not in str(result)
    assert "tok3n" not in str(result)
    assert json.loads(str(result.output))["authorization"] == "[redacted]"


async def test_a_secret_with_a_quote_in_it_is_taken_out_of_a_structured_result() -> None:
    async with FakeMcpServer() as fake, opened() as client:
        result = await run(client, McpServer("s", fake.url, {"X-Key": 'half "and" half'}), "leak")
    assert "and" not in str(result)
    assert "[redacted]" in str(result.output)


async def test_a_tool_that_the_server_does_not_know_is_a_failure() -> None:
    async with FakeMcpServer() as fake, opened() as client:
        result = await run(client, McpServer("s", fake.url), "nothing")
    assert result.failed


async def test_a_server_that_dies_takes_only_its_own_calls_along() -> None:
    async with FakeMcpServer() as dying, FakeMcpServer() as healthy, opened() as client:
        held = asyncio.create_task(failure(client, McpServer("a", dying.url), "hold"))
        other = asyncio.create_task(client.run(call_of(McpServer("b", healthy.url), "hold")))
        await dying.until(lambda: dying.overlap == 1)
        await healthy.until(lambda: healthy.overlap == 1)
        await dying.kill()
        failed = await held
        healthy.release.set()
        assert (await other).output == "held"
    assert failed.public["error"] == {"type": "mcp_protocol_error", "code": -32000, "message": failed.message}
    assert len(dying.calls) == 1


async def test_a_session_over_sse_that_dies_fails_its_calls_at_once() -> None:
    async with FakeMcpServer("sse") as dying, opened() as client:
        held = asyncio.create_task(failure(client, McpServer("a", dying.url), "hold"))
        await dying.until(lambda: dying.overlap == 1)
        await dying.kill()
        assert (await held).public["error"]["code"] == -32000  # type: ignore[index]


async def test_a_command_that_crashes_is_started_again_for_the_next_call() -> None:
    async with FakeMcpServer("stdio") as fake, opened({"fake": fake.settings}) as client:
        failed = await failure(client, SERVER, "crash")
        result = await run(client, SERVER, "echo", text="again")
    assert failed.public["error"] == {"type": "mcp_protocol_error", "code": -32000, "message": failed.message}
    assert result.output == "again"
    assert [call.name for call in fake.calls] == ["crash", "echo"]


@pytest.mark.parametrize(("transport", "era"), [("streamable_http", "modern"), ("streamable_http", "legacy"), ("sse", "modern")])
async def test_a_caller_that_is_cancelled_cancels_its_call_at_the_server(transport: str, era: str) -> None:
    async with FakeMcpServer(transport, era=era) as fake, opened() as client:
        server = McpServer("s", fake.url)
        held = asyncio.create_task(client.run(call_of(server, "hold")))
        await fake.until(lambda: fake.overlap == 1)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        await fake.until(lambda: fake.cancelled == ["hold"])
        assert (await run(client, server, "echo", text="still there")).output == "still there"
