"""Turns with tools over HTTP: a search service, MCP servers by the SDK, tools of the client's, and what of all that a continuation has."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import cast

import pytest

from tests.end_to_end.client import Client, text_of, types_of
from tests.end_to_end.gateway import Gateway
from tests.end_to_end.prompts import input_bytes
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine, Received
from tests.fakes.mcp_server import FakeMcpServer
from tests.fakes.scripts import Script, function_call, text
from tests.fakes.web import Answer, FakeWeb
from tests.orchestrator_svc.tools.provider_answers import SEARXNG

SEARCH: Json = {"type": "web_search"}
LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}}
PATCH: Json = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
KINDS = ["mcp_list_tools", "web_search_call", "mcp_call", "function_call", "custom_tool_call"]


@pytest.fixture
async def web(search_port: int) -> AsyncIterator[FakeWeb]:
    """The search service."""
    async with FakeWeb(fixed_port=search_port) as web:
        web.answers["/search"] = SEARXNG
        yield web


@pytest.fixture
async def docs() -> AsyncIterator[FakeMcpServer]:
    """An MCP server."""
    async with FakeMcpServer() as server:
        yield server


def tool(server: FakeMcpServer, label: str = "docs", **more: object) -> Json:
    """The server as a request names it."""
    return {"type": "mcp", "server_label": label, "server_url": server.url, "require_approval": "never", **more}


def mixed_calls() -> Script:
    """One round with calls of every owner."""
    return (
        function_call("web_search", {"query": "ranges"}, "call_s")
        + function_call("docs__echo", {"text": "hi"}, "call_e")
        + function_call("look", {}, "call_l")
        + function_call("apply_patch", {"input": "\ta\r\n"}, "call_p")
    )


def outputs(received: Received) -> dict[str, str]:
    """What each call came to, as the engine was told."""
    return {str(item["call_id"]): str(item["output"]) for item in received.input if item["type"] == "function_call_output"}


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_mixed_turn_runs_ours_returns_the_clients_and_goes_on(
    ada: Client, engine: FakeEngine, web: FakeWeb, docs: FakeMcpServer, streaming: bool
) -> None:
    """B053: search, MCP, function and custom tool in one turn, whole and streamed, then the turn that answers them, then one more."""
    tools = [SEARCH, tool(docs), LOOK, PATCH]
    engine.play(mixed_calls(), text("All done, see https://www.postgresql.org/docs/rangetypes.html."), text("Bye."))
    answers: list[Json] = [
        {"type": "function_call_output", "call_id": "call_l", "output": "seen"},
        {"type": "custom_tool_call_output", "call_id": "call_p", "output": "patched"},
    ]
    first = (await ada.stream("hello", tools=tools)).response if streaming else await ada.create("hello", tools=tools)
    asked: Json = {"previous_response_id": first["id"], "tools": tools}
    second = (await ada.stream(answers, **asked)).response if streaming else await ada.create(answers, **asked)
    await ada.create("bye", previous_response_id=second["id"], tools=tools)

    assert types_of(first["output"]) == KINDS
    assert {item.get("status", "completed") for item in cast(list[Json], first["output"])} == {"completed"}
    assert types_of(second["output"]) == ["message"]
    assert (len(web.requests), [call.name for call in docs.calls]) == (1, ["echo"])
    told = outputs(engine.posts[1])
    assert (told["call_e"], told["call_l"], told["call_p"]) == ("hi", "seen", "patched")
    assert "postgresql.org" in told["call_s"]
    assert outputs(engine.posts[2]) == told
    assert input_bytes(engine.posts[2]).startswith(input_bytes(engine.posts[1]) + b",")


async def test_a_turn_that_streams_and_one_that_does_not_are_the_same(
    ada: Client, engine: FakeEngine, web: FakeWeb, docs: FakeMcpServer
) -> None:
    """stream: false is a fold over the stream, tools and all."""
    engine.play(mixed_calls(), mixed_calls())
    whole = await ada.create("hello", tools=[SEARCH, tool(docs), LOOK, PATCH])
    streamed = (await ada.stream("hello", tools=[SEARCH, tool(docs), LOOK, PATCH])).response
    bare = [
        [{key: value for key, value in item.items() if key != "id"} for item in cast(list[Json], one["output"])]
        for one in (whole, streamed)
    ]
    assert bare[0] == bare[1]


@pytest.mark.parametrize(
    "answer", [Answer(500), Answer(429), Answer(body=b"<html>"), Answer(body=b"", ending="cut")], ids=["500", "429", "html", "cut"]
)
async def test_a_search_that_fails_says_so_everywhere(ada: Client, engine: FakeEngine, web: FakeWeb, answer: Answer) -> None:
    """B062: item, GET and model agree: failed, with an action; the turn goes on."""
    web.answers["/search"] = answer
    engine.play(function_call("web_search", {"query": "x"}, "call_s"), text("Sorry."))
    turned = await ada.stream("hello", tools=[SEARCH])
    (item, _) = cast(list[Json], turned.response["output"])
    assert (item["status"], cast(Json, item["action"])["type"]) == ("failed", "search")
    assert outputs(engine.posts[1])["call_s"].startswith("Error: ")
    assert not turned.of_type("response.web_search_call.completed")


async def test_twelve_calls_of_one_round_overlap_up_to_the_bound(ada: Client, engine: FakeEngine, docs: FakeMcpServer) -> None:
    """The server's own counter says so: each call ends once eight run at the same time, and never do more."""
    calls = [function_call("docs__meet", {"count": 8}, f"call_{number}") for number in range(12)]
    engine.play(sum(calls[1:], calls[0]), text("Met."))
    response = await ada.create("hello", tools=[tool(docs)])
    assert (docs.overlap, len(docs.calls)) == (8, 12)
    assert [item.get("output") for item in cast(list[Json], response["output"])[1:13]] == ["met"] * 12


async def test_a_client_that_leaves_ends_the_call_that_runs(ada: Client, engine: FakeEngine, docs: FakeMcpServer) -> None:
    """The server is told, and the turn is stored as cancelled."""
    engine.play(function_call("docs__hold", {}, "call_h"))
    async with ada.streaming("hello", tools=[tool(docs)]) as answer:
        await docs.until(lambda: bool(docs.calls))
        head = await answer.content.readuntil(b"\n\n")
    async with asyncio.timeout(10):
        await docs.until(lambda: docs.cancelled == ["hold"])
    response_id = json.loads(head.partition(b"data: ")[2])["response"]["id"]
    async with asyncio.timeout(10):
        while not await ada.is_stored(response_id):
            await asyncio.sleep(0.02)
    assert (await ada.get(response_id))["status"] == "cancelled"


async def test_a_slow_call_keeps_the_stream_alive(ada: Client, engine: FakeEngine, docs: FakeMcpServer) -> None:
    """B123: heartbeats while a tool runs."""
    engine.play(function_call("docs__hold", {}, "call_h"), text("Held."))
    turning = asyncio.create_task(ada.stream("hello", tools=[tool(docs)]))
    await docs.until(lambda: bool(docs.calls))
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    asyncio.get_running_loop().call_later(0.8, docs.release.set)
    turned = await turning
    assert turned.sse.heartbeats >= 1
    assert text_of(turned.response) == "Held."


async def test_an_unreachable_server_is_an_item_and_the_turn_goes_on(ada: Client, engine: FakeEngine) -> None:
    """With an error that names no inner address."""
    engine.play(text("Hi."))
    gone: Json = {"type": "mcp", "server_label": "gone", "server_url": "http://127.0.0.1:9/mcp", "require_approval": "never"}
    turned = await ada.stream("hello", tools=[gone])
    assert types_of(turned.response["output"]) == ["mcp_list_tools", "message"]
    (item, _) = cast(list[Json], turned.response["output"])
    assert item["error"]
    assert turned.of_type("response.mcp_list_tools.failed")


async def test_a_server_with_a_private_address_is_not_reached(ada: Client, engine: FakeEngine) -> None:
    """B155: a URL of the request may not lead inside."""
    engine.play(text("Hi."))
    inside: Json = {"type": "mcp", "server_label": "in", "server_url": "http://169.254.169.254/mcp", "require_approval": "never"}
    response = await ada.create("hello", tools=[inside])
    (item, _) = cast(list[Json], response["output"])
    assert item["error"]


async def test_an_undeclared_tool_of_a_server_runs_nothing(ada: Client, engine: FakeEngine, docs: FakeMcpServer) -> None:
    """B057."""
    engine.play(function_call("docs__nobody", {}), text("Sorry."))
    response = await ada.create("hello", tools=[tool(docs)])
    assert (types_of(response["output"]), docs.calls) == (["mcp_list_tools", "message"], [])
    assert types_of(await ada.input_items((await ada.create("bye", previous_response_id=response["id"]))["id"])) == [
        "message",
        "mcp_list_tools",
        "message",
        "message",
    ]


async def test_unknown_tools_are_refused_by_name(ada: Client, engine: FakeEngine, gateway: Gateway) -> None:
    refusal = await ada.refused("hello", tools=[LOOK, {"type": "hologram"}])
    assert refusal.said == (400, "unsupported", "tools[1].type")
    assert engine.posts == []
