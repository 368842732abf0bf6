"""MCP servers that misbehave: each fault costs the call that met it, in bounded time and in clean words, and nothing else."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator

import pytest

from orchestrator_svc.outbound import Guard
from orchestrator_svc.settings import McpServerSettings, OutboundSettings, Settings
from orchestrator_svc.tools.base import McpServer, ToolFailed
from orchestrator_svc.tools.mcp import open_mcp
from tests.fakes.faulty_mcp_server import FaultyMcpServer
from tests.fakes.mcp_server import FakeMcpServer
from tests.fakes.secrets import found, marker
from tests.orchestrator_svc.tools.mcp_calls import call_of, failure, list_failure, opened, run

LOST = -32000
TIMED_OUT = -32001
NOT_MCP = -32700


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A URL at which nothing listens: the port is taken, and silent."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"


def error_of(failed: ToolFailed) -> tuple[object, object]:
    error = failed.public["error"]
    assert isinstance(error, dict)
    assert error["message"] == failed.message
    return error["type"], error["code"]


FAULTS = {
    "dies_before_headers": ("mcp_protocol_error", LOST),
    "dies_after_headers": ("mcp_protocol_error", LOST),
    "dies_mid_sse": ("mcp_protocol_error", LOST),
    "status_500": ("http_error", 500),
    "status_401": ("http_error", 401),
    "status_404": ("http_error", 404),
    "redirects": ("http_error", 302),
    "jsonrpc_error": ("mcp_protocol_error", -32602),
    "html": ("mcp_protocol_error", NOT_MCP),
    "not_json": ("mcp_protocol_error", NOT_MCP),
    "packed": ("mcp_protocol_error", NOT_MCP),
    "wrong_schema": ("mcp_protocol_error", NOT_MCP),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_that_goes_wrong_is_a_failed_call_B075_B077(fault: str) -> None:
    async with FaultyMcpServer(calling=fault) as server, opened() as client:
        failed = await failure(client, McpServer("s", server.url), "echo", text="x")
        assert error_of(failed) == FAULTS[fault]
        server.faults["tools/call"] = ""
        assert (await run(client, McpServer("s", server.url), "echo", text="after")).output == "after"


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_listing_that_goes_wrong_is_a_failed_listing_B077(fault: str) -> None:
    async with FaultyMcpServer(listing=fault) as server, opened() as client:
        failed = await list_failure(client, McpServer("s", server.url))
        assert error_of(failed) == FAULTS[fault]
        server.faults["tools/list"] = ""
        assert [tool.name for tool in await client.tools(McpServer("s", server.url))] == ["echo", "other"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_that_cannot_be_agreed_with_fails_its_listing(fault: str) -> None:
    async with FaultyMcpServer(initialize=fault) as server, opened() as client:
        assert error_of(await list_failure(client, McpServer("s", server.url))) == FAULTS[fault]


@pytest.mark.parametrize("fault", ["dies_before_headers", "dies_after_headers", "dies_mid_sse"])
async def test_a_call_whose_connection_dies_is_never_sent_again_B075(fault: str) -> None:
    async with FaultyMcpServer(calling=fault) as server, opened() as client:
        await failure(client, McpServer("s", server.url), "echo", text="x")
        assert server.calls == 1


async def test_a_session_that_the_server_forgot_is_opened_again_once_B077() -> None:
    async with FaultyMcpServer() as server, opened() as client:
        remote = McpServer("s", server.url)
        await run(client, remote, "echo", text="before")
        server.lose_sessions()
        assert (await run(client, remote, "echo", text="after")).output == "after"
        assert server.sessions == 2


async def test_a_connection_that_the_server_closed_while_it_was_idle_is_replaced() -> None:
    async with FaultyMcpServer() as server, opened() as client:
        remote = McpServer("s", server.url)
        await run(client, remote, "echo", text="before")
        server.drop_connections()
        assert (await run(client, remote, "echo", text="after")).output == "after"
        assert (server.sessions, server.calls) == (1, 2)


async def test_a_server_that_never_knows_the_session_is_asked_twice_and_no_more_B077() -> None:
    async with FaultyMcpServer(calling="status_404") as server, opened() as client:
        await failure(client, McpServer("s", server.url), "echo", text="x")
        assert (server.sessions, server.calls) == (2, 2)


async def test_a_call_to_a_server_that_is_gone_since_the_last_one_fails_at_once() -> None:
    async with FakeMcpServer(era="legacy") as server, opened() as client:
        remote = McpServer("s", server.url)
        await run(client, remote, "echo", text="before")
        await server.kill()
        assert error_of(await failure(client, remote, "echo", text="down")) == ("mcp_protocol_error", LOST)


async def test_an_unreachable_server_fails_its_listing_and_its_calls(nowhere: str) -> None:
    async with opened() as client:
        assert error_of(await list_failure(client, McpServer("s", nowhere))) == ("mcp_protocol_error", LOST)
        assert error_of(await failure(client, McpServer("s", nowhere), "echo")) == ("mcp_protocol_error", LOST)


@pytest.mark.parametrize("request_of", ["initialize", "tools/list", "tools/call"])
async def test_a_silent_server_is_waited_for_until_the_deadline_only(request_of: str) -> None:
    bounds = {"connect_timeout_seconds": 0.3, "list_timeout_seconds": 0.3, "call_timeout_seconds": 0.3}
    async with FaultyMcpServer() as server, opened(None, **bounds) as client:
        server.faults[request_of] = "silent"
        remote = McpServer("s", server.url)
        failed = await (list_failure(client, remote) if request_of == "tools/list" else failure(client, remote, "echo", text="x"))
        assert error_of(failed) == ("mcp_protocol_error", TIMED_OUT)


async def test_a_server_that_says_it_is_at_work_gains_no_time() -> None:
    async with FaultyMcpServer(calling="chatters") as server, opened(None, call_timeout_seconds=0.3) as client:
        failed = await failure(client, McpServer("s", server.url), "echo", text="x")
        assert error_of(failed) == ("mcp_protocol_error", TIMED_OUT)
        assert (server.calls, server.count("notifications/cancelled")) <= (1, 1)


async def test_a_cancelled_call_is_cancelled_at_the_server_and_the_session_lives_on() -> None:
    async with FaultyMcpServer(calling="silent") as server, opened() as client:
        remote = McpServer("s", server.url)
        waiting = asyncio.create_task(client.run(call_of(remote, "echo", text="x")))
        await server.until(lambda: server.calls == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await server.until(lambda: len(server.cancelled) == 1)
        server.faults["tools/call"] = ""
        assert (await run(client, remote, "echo", text="after")).output == "after"
        assert server.sessions == 1


async def test_a_call_that_dies_leaves_the_others_of_its_session_alone() -> None:
    async with FaultyMcpServer(calling="dies_if_told") as server, opened() as client:
        remote = McpServer("s", server.url)
        others = [asyncio.create_task(client.run(call_of(remote, "echo", text=str(n)))) for n in range(5)]
        await server.until(lambda: server.calls == 5)
        await failure(client, remote, "echo", text="die")
        server.release.set()
        assert [(await other).output for other in others] == ["0", "1", "2", "3", "4"]


async def test_failures_reach_no_other_call_and_leave_no_task_behind_B078(nowhere: str, caplog: pytest.LogCaptureFixture) -> None:
    await _warm()
    before = asyncio.all_tasks()
    async with contextlib.AsyncExitStack() as stack:
        healthy = await stack.enter_async_context(FaultyMcpServer())
        faulty = [await stack.enter_async_context(FaultyMcpServer(calling=fault)) for fault in FAULTS]
        client = await stack.enter_async_context(opened())
        urls = [nowhere, *(server.url for server in faulty)]
        failing = [failure(client, McpServer("f", urls[n % len(urls)]), "echo", text="x") for n in range(50)]
        working = [run(client, McpServer("h", healthy.url), "echo", text=str(n)) for n in range(200)]
        failed, worked = await asyncio.gather(asyncio.gather(*failing), asyncio.gather(*working))
    assert len(failed) == 50
    assert [result.output for result in worked] == [str(n) for n in range(200)]
    gc.collect()
    assert asyncio.all_tasks() == before
    assert "cancel scope" not in caplog.text
    assert caplog.records == []


async def _warm() -> None:
    """Loads the SDK."""
    async with FaultyMcpServer() as server, opened() as client:
        await client.tools(McpServer("s", server.url))


@pytest.mark.parametrize("fault", ["status_401", "status_500", "jsonrpc_error", "html", "wrong_schema", "dies_mid_sse"])
async def test_no_failure_names_a_secret_B087(fault: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    caplog.set_level("DEBUG")
    token, key = marker("token"), marker("key")
    async with FaultyMcpServer(calling=fault, listing=fault) as server, opened() as client:
        remote = McpServer("s", server.url, {"X-Key": key}, authorization=token)
        failures = [await failure(client, remote, "echo", text="x"), await list_failure(client, remote)]
        heard = {request.headers.get("authorization") for request in server.received}
    written = capsys.readouterr()
    told = [repr((failed, failed.message, failed.public, failed.__cause__, failed.__context__)) for failed in failures]
    assert heard == {f"Bearer {token}"}
    assert (
        found((token, key), {"told": "".join(told), "logs": caplog.text, "out": written.out, "err": written.err, "repr": repr(remote)})
        == []
    )


async def test_cookies_of_a_server_are_not_sent_back_B086() -> None:
    async with FaultyMcpServer() as server, opened() as client:
        await run(client, McpServer("s", server.url), "echo", text="x")
        assert [request.headers["cookie"] for request in server.received if "cookie" in request.headers] == []


# Listings.


async def test_all_pages_of_a_listing_are_read_B083() -> None:
    async with FaultyMcpServer(listing="pages") as server, opened() as client:
        tools = await client.tools(McpServer("s", server.url))
    assert [tool.name for tool in tools] == [f"tool_{page}_{n}" for page in range(3) for n in range(50)]


@pytest.mark.parametrize(("fault", "most"), [("same_cursor", 2), ("endless", 100)])
async def test_a_listing_that_does_not_end_is_a_failure_B083(fault: str, most: int) -> None:
    async with FaultyMcpServer(listing=fault) as server, opened() as client:
        await list_failure(client, McpServer("s", server.url))
        assert server.count("tools/list") == most


async def test_a_tool_that_is_listed_twice_is_one_tool_B083() -> None:
    async with FaultyMcpServer(listing="duplicates") as server, opened() as client:
        tools = await client.tools(McpServer("s", server.url))
    assert [tool.name for tool in tools] == ["first", "echo", "last"]


async def test_those_who_list_at_the_same_time_share_one_request() -> None:
    async with FaultyMcpServer(listing="silent") as server, opened() as client:
        remote = McpServer("s", server.url)
        listings = [asyncio.create_task(client.tools(remote)) for _ in range(5)]
        await server.until(lambda: server.count("tools/list") == 1)
        listings[0].cancel()
        server.release.set()
        first, *others = await asyncio.gather(*listings, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert {len(other) for other in others if isinstance(other, tuple)} == {2}
        assert server.count("tools/list") == 1


async def test_a_listing_is_believed_for_its_lifetime_only() -> None:
    async with FaultyMcpServer() as server, opened(None, list_lifetime_seconds=0) as client:
        for _ in range(2):
            await client.tools(McpServer("s", server.url))
        assert server.count("tools/list") == 2


# Large results.


@pytest.mark.parametrize("fault", ["floods", "floods_sse"])
async def test_a_huge_text_is_cut_and_says_so_B084(fault: str) -> None:
    async with FaultyMcpServer(calling=fault) as server, opened(None, max_result_bytes=100_000) as client:
        result = await run(client, McpServer("s", server.url), "echo", text="x")
    assert isinstance(result.output, str)
    assert result.output.endswith("[cut: the result is longer than 100000 bytes]")
    assert 90_000 < len(result.output.encode()) < 101_000
    assert result.public["output"] == result.output


async def test_a_huge_text_over_sse_is_cut_and_the_session_lives_on_B084() -> None:
    async with FakeMcpServer("sse") as server, opened() as client:
        remote = McpServer("s", server.url)
        result = await run(client, remote, "flood", size=3_000_000)
        await run(client, remote, "echo", text="x")
        assert str(result.output).endswith("[cut: the result is longer than 1024000 bytes]")
        assert [headers["accept"] for headers in server.headers].count("text/event-stream") == 1


async def test_an_image_that_is_too_large_is_left_out_and_named_B084() -> None:
    async with FaultyMcpServer(calling="floods_image") as server, opened(None, max_result_bytes=100_000) as client:
        result = await run(client, McpServer("s", server.url), "echo", text="x")
    assert result.output == (
        "a picture\n[a part of type image was too large and is left out]\n[cut: the result is longer than 100000 bytes]"
    )


async def test_a_structured_result_that_is_too_large_is_cut_B084() -> None:
    async with FaultyMcpServer(calling="floods_structured") as server, opened(None, max_result_bytes=100_000) as client:
        result = await run(client, McpServer("s", server.url), "echo", text="x")
    assert isinstance(result.output, str)
    assert result.output.startswith('{"rows": ["row", "row"')
    assert result.output.endswith("[cut: the result is longer than 100000 bytes]")
    assert len(result.output) < 101_000


async def test_a_text_that_is_no_utf_8_is_made_so() -> None:
    async with FaultyMcpServer(calling="latin_1") as server, opened() as client:
        result = await run(client, McpServer("s", server.url), "echo", text="x")
    assert result.output == "caf\ufffd \ufffd \U0001f378 \\ud83d"


# How long sessions live.


def closes(server: FaultyMcpServer) -> bool:
    return any(request.method == "DELETE" for request in server.received)


async def test_a_session_that_nobody_uses_is_closed() -> None:
    async with FaultyMcpServer() as server, opened(None, idle_seconds=0.05) as client:
        await run(client, McpServer("s", server.url), "echo", text="x")
        await server.until(lambda: closes(server))
        await run(client, McpServer("s", server.url), "echo", text="x")
        assert server.sessions == 2


async def test_the_session_that_was_used_longest_ago_makes_room() -> None:
    async with FaultyMcpServer() as first, FaultyMcpServer() as second, FaultyMcpServer() as third, opened(None, max_sessions=2) as client:
        for server in (first, second, first, third):
            await run(client, McpServer("s", server.url), "echo", text="x")
        await second.until(lambda: closes(second))
        assert not closes(first)


async def test_a_session_in_use_makes_no_room() -> None:
    async with FaultyMcpServer(calling="silent") as busy, FaultyMcpServer() as other, opened(None, max_sessions=1) as client:
        held = asyncio.create_task(client.run(call_of(McpServer("a", busy.url), "echo", text="held")))
        await busy.until(lambda: busy.calls == 1)
        failed = await failure(client, McpServer("b", other.url), "echo", text="x")
        busy.release.set()
        assert (await held).output == "held"
        assert other.connections == 0
    assert failed.public["error"] is not None


async def test_leaving_the_client_ends_calls_and_sessions() -> None:
    async with FaultyMcpServer(calling="silent") as server:
        async with opened() as client:
            held = asyncio.create_task(failure(client, McpServer("a", server.url), "echo", text="x"))
            await server.until(lambda: server.calls == 1)
        assert error_of(await held) == ("mcp_protocol_error", LOST)
        assert closes(server)


# What may be reached.


async def test_a_url_of_a_request_stays_behind_the_outbound_guard_and_a_configured_one_does_not() -> None:
    async with FaultyMcpServer() as server:
        settings = Settings(mcp_servers={"known": McpServerSettings(url=server.url)})
        async with open_mcp(settings, Guard(OutboundSettings())) as client:
            for url in (server.url, "http://localhost:1/mcp", "http://169.254.169.254/latest", "ftp://example.com"):
                await failure(client, McpServer("s", url), "echo", text="x")
            assert server.connections == 0
            assert (await run(client, McpServer("known"), "echo", text="x")).output == "x"
