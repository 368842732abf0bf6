"""The official SDKs with tools: `openai` and `openai-agents` as their users call them, against search, MCP, approvals and mixed turns."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from agents import Agent, HostedMCPTool, OpenAIResponsesModel, Runner, WebSearchTool, function_tool, set_tracing_disabled
from openai import AsyncOpenAI, OpenAIError

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.gateway import Gateway
from tests.fakes.engine import FakeEngine
from tests.fakes.mcp_server import FakeMcpServer
from tests.fakes.scripts import function_call, text
from tests.fakes.web import FakeWeb
from tests.orchestrator_svc.tools.provider_answers import SEARXNG

set_tracing_disabled(True)

URL = "https://www.postgresql.org/docs/rangetypes.html"


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


@pytest.fixture
async def openai(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    """The official client. It never retries, so that every failure is seen."""
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEYS["ada"], max_retries=0) as client:
        yield client


def server(docs: FakeMcpServer, approval: str = "never") -> dict[str, Any]:
    return {"type": "mcp", "server_label": "docs", "server_url": docs.url, "require_approval": approval}


async def streamed(client: AsyncOpenAI, **request: Any) -> Any:
    """The final response of the SDK's stream helper, which puts it together from the events."""
    async with client.responses.stream(model="m", **request) as stream:
        return await stream.get_final_response()


async def whole(client: AsyncOpenAI, **request: Any) -> Any:
    return await client.responses.create(model="m", **request)


@pytest.mark.parametrize("create", [whole, streamed])
async def test_openai_runs_a_mixed_turn_and_answers_it(
    openai: AsyncOpenAI, engine: FakeEngine, web: FakeWeb, docs: FakeMcpServer, create: Any
) -> None:
    """Search, MCP, function and custom tool; the SDK's own objects go back as the next input."""
    tools = [
        {"type": "web_search", "search_context_size": "low"},
        server(docs),
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}},
    ]
    engine.play(
        function_call("web_search", {"query": "ranges"}, "call_s")
        + function_call("docs__add", {"a": 2, "b": 3}, "call_a")
        + function_call("look", {}, "call_l")
        + function_call("apply_patch", {"input": "x"}, "call_p"),
        text(f"See {URL}."),
        text("Sent back."),
    )
    first = await create(openai, input="hello", tools=tools, include=["web_search_call.action.sources"])
    assert [item.type for item in first.output] == ["mcp_list_tools", "web_search_call", "mcp_call", "function_call", "custom_tool_call"]
    listing, search, added, look, patch = first.output
    assert (added.output, patch.input, search.status) == ("5", "x", "completed")
    assert URL in [source.url for source in search.action.sources]
    assert "add" in [listed.name for listed in listing.tools]

    answers = [
        {"type": "function_call_output", "call_id": look.call_id, "output": "seen"},
        {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "patched"},
    ]
    second = await create(openai, input=answers, previous_response_id=first.id, tools=tools)
    assert second.output_text == f"See {URL}."

    sent_back = [item.model_dump() for item in first.output]
    await create(openai, input=[{"role": "user", "content": "hello"}, *sent_back, *answers], tools=tools)
    assert engine.posts[2].input == engine.posts[1].input


async def test_openai_streams_the_events_of_each_kind(openai: AsyncOpenAI, engine: FakeEngine, web: FakeWeb, docs: FakeMcpServer) -> None:
    engine.play(function_call("web_search", {"query": "x"}) + function_call("docs__echo", {"text": "hi"}), text("Done."))
    stream = await openai.responses.create(model="m", input="hello", tools=cast(Any, [{"type": "web_search"}, server(docs)]), stream=True)
    kinds = [event.type async for event in stream]
    for kind in ("web_search_call.searching", "mcp_list_tools.completed", "mcp_call_arguments.done", "mcp_call.completed", "completed"):
        assert f"response.{kind}" in kinds


@pytest.mark.parametrize("create", [whole, streamed])
@pytest.mark.parametrize("approve", [True, False])
async def test_openai_answers_an_approval(openai: AsyncOpenAI, engine: FakeEngine, docs: FakeMcpServer, create: Any, approve: bool) -> None:
    engine.play(function_call("docs__delete_all", {}), text("Done."))
    first = await create(openai, input="hello", tools=[server(docs, "always")])
    request = first.output[-1]
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
    second = await create(openai, input=[answer], previous_response_id=first.id, tools=[server(docs, "always")])
    assert (request.type, second.output_text) == ("mcp_approval_request", "Done.")
    assert [call.name for call in docs.calls] == (["delete_all"] if approve else [])


async def test_openai_is_told_which_tool_is_unknown(openai: AsyncOpenAI, engine: FakeEngine) -> None:
    with pytest.raises(OpenAIError) as refused:
        await openai.responses.create(model="m", input="hello", tools=cast(Any, [{"type": "code_interpreter", "container": "x"}]))
    assert cast(Any, refused.value).param == "tools[0].type"


# openai-agents.


@function_tool
def look() -> str:
    """Looks."""
    return "seen"


def agent(client: AsyncOpenAI, *tools: Any) -> Agent[None]:
    return Agent(name="Ada", instructions="Be kind.", model=OpenAIResponsesModel("m", client), tools=list(tools))


def hosted(docs: FakeMcpServer, approval: str, approve: bool | None = None) -> HostedMCPTool:
    """The server as a hosted tool; who is asked answers `approve`."""
    answer = None if approve is None else (lambda request: {"approve": approve, "reason": "because"})
    return HostedMCPTool(tool_config=cast(Any, server(docs, approval)), on_approval_request=cast(Any, answer))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("chained", [False, True])
async def test_agents_run_a_loop_with_every_owner(
    openai: AsyncOpenAI, engine: FakeEngine, web: FakeWeb, docs: FakeMcpServer, streaming: bool, chained: bool
) -> None:
    """The SDK's own loop runs its function, the gateway the rest; chained by id, or with everything sent back."""
    engine.play(
        function_call("web_search", {"query": "x"}) + function_call("docs__echo", {"text": "hi"}) + function_call("look", {}),
        text("All done."),
    )
    worker = agent(openai, WebSearchTool(), hosted(docs, "never"), look)
    if streaming:
        running = Runner.run_streamed(worker, "hello", auto_previous_response_id=chained)
        kinds = [event.type async for event in running.stream_events()]
        assert "run_item_stream_event" in kinds
        final = running.final_output
    else:
        final = (await Runner.run(worker, "hello", auto_previous_response_id=chained)).final_output
    assert final == "All done."
    assert [item["type"] for item in engine.posts[1].input][1:] == ["function_call", "function_call_output"] * 2 + [
        "function_call",
        "function_call_output",
    ]
    assert (len(web.requests), [call.name for call in docs.calls]) == (1, ["echo"])


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("chained", [False, True])
async def test_agents_answer_an_approval(
    openai: AsyncOpenAI, engine: FakeEngine, docs: FakeMcpServer, approve: bool, chained: bool
) -> None:
    engine.play(function_call("docs__delete_all", {}), text("Done."))
    worker = agent(openai, hosted(docs, "always", approve))
    result = await Runner.run(worker, "hello", auto_previous_response_id=chained)
    assert result.final_output == "Done."
    assert [call.name for call in docs.calls] == (["delete_all"] if approve else [])
