"""The toolbox: what it does with a call whatever the handler does, and with a listing whatever the lister does."""

import asyncio
import json

import pytest

from orchestrator_svc.request import ToolKinds
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.tools.base import Citation, ListedTool, McpServer, Tool, ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.toolbox import Toolbox
from tests.fakes.secrets import marker
from tests.orchestrator_svc.tool_turns import Answer, FakeLister, FakeTool, listed

SERVER = McpServer("docs", "https://docs.example/mcp")
CALL = ToolCall("call_1", Tool("search", "search", "search"), {})
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 300, "detail": "auto"}


def toolbox(answer: Answer, lister: FakeLister | None = None, **settings: object) -> Toolbox:
    own = OrchestratorSettings(**settings)  # type: ignore[arg-type]
    return Toolbox(ToolKinds({}), {"search": FakeTool(answer)}, lister or FakeLister(), own)


async def result_of(result: ToolResult, **settings: object) -> ToolResult:
    """What becomes of a handler's result."""

    async def answer(call: ToolCall) -> ToolResult:
        return result

    return await toolbox(answer, **settings).run(CALL)


async def failure(error: BaseException) -> ToolResult:
    """What becomes of a handler's failure."""

    async def answer(call: ToolCall) -> ToolResult:
        raise error

    return await toolbox(answer).run(CALL)


async def forever(call: ToolCall) -> ToolResult:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_reason_is_told_and_what_the_item_shows_of_it_is_kept() -> None:
    result = await failure(ToolFailed("not today", {"action": {"type": "search"}}))
    assert (result.output, result.failed, result.public) == ("Error: not today", True, {"action": {"type": "search"}})


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, OSError, UnicodeError, ExceptionGroup])
async def test_what_nobody_foresaw_is_masked(kind: type[Exception]) -> None:
    """B162: the words of an exception reach neither model nor client; an id that the log explains does."""
    secret = marker("path")
    error = ExceptionGroup(secret, [ValueError(secret)]) if kind is ExceptionGroup else kind(secret)
    result = await failure(error)
    assert result.failed
    assert secret not in json.dumps([result.output, result.public])
    assert "err_" in str(result.output)


async def test_a_cancellation_from_within_is_the_calls_failure_and_ends_nobody_else() -> None:
    """B078: a connection that is torn down cancels its own call only."""
    assert (await failure(asyncio.CancelledError())).failed


async def test_a_cancellation_from_without_reaches_the_handler() -> None:
    tool = FakeTool(forever)
    box = Toolbox(ToolKinds({}), {"search": tool}, FakeLister(), OrchestratorSettings())
    running = asyncio.create_task(box.run(CALL))
    await tool.until(lambda: tool.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert tool.ended == ["cancelled"]


async def test_a_call_ends_at_its_deadline() -> None:
    result = await toolbox(forever, tool_timeout_seconds=0.01).run(CALL)
    assert (result.failed, result.output) == (True, "Error: The tool did not answer within 0.01 seconds.")


async def test_a_tool_of_no_kind_is_a_failure_and_no_exception() -> None:
    other = ToolCall("call_1", Tool("x", "nobody", "x"), {})
    assert (await toolbox(forever).run(other)).failed


# Bounds.


async def test_every_text_of_a_result_is_cut() -> None:
    """B084: what the model reads, and what the item shows, by the same limit."""
    result = await result_of(ToolResult("é" * 500, public={"output": "a" * 500, "error": None}), max_tool_output_bytes=100)
    assert isinstance(result.output, str)
    assert len(result.output.encode()) <= 100
    assert len(str(result.public["output"])) <= 100
    assert "bytes shown" in result.output


async def test_parts_share_the_limit_and_a_large_image_is_named_instead() -> None:
    """B084: an image is never cut in two; what stands behind one that was left out is still told."""
    parts = ({"type": "input_text", "text": "before"}, IMAGE, {"type": "input_text", "text": "after"})
    kept = (await result_of(ToolResult(parts), max_tool_output_bytes=200)).output
    assert [part["type"] for part in kept] == ["input_text"] * 3  # type: ignore[index]
    assert [part["text"] for part in kept][::2] == ["before", "after"]  # type: ignore[index]
    whole = (await result_of(ToolResult(parts), max_tool_output_bytes=1000)).output
    assert whole == parts


async def test_parts_past_the_limit_are_left_out() -> None:
    parts = tuple({"type": "input_text", "text": "x" * 100} for _ in range(10))
    kept = (await result_of(ToolResult(parts), max_tool_output_bytes=250)).output
    assert sum(len(str(part["text"])) for part in kept) <= 250  # type: ignore[index]


async def test_halves_of_surrogate_pairs_are_nowhere_in_a_result() -> None:
    half = "a\ud800"
    result = await result_of(ToolResult(half, public={half: [half, {"k": half}]}, citations=(Citation(half, half),)))
    json.dumps([result.output, result.public, result.citations[0].url, result.citations[0].title], ensure_ascii=False).encode()


# Listings.


async def test_a_listing_is_what_the_lister_says() -> None:
    assert await toolbox(forever, FakeLister({"docs": listed("find")})).list(SERVER) == listed("find")


async def test_a_listing_that_does_not_come_is_a_failure() -> None:
    with pytest.raises(ToolFailed):
        await toolbox(forever, FakeLister(held=asyncio.Event()), list_timeout_seconds=0.01).list(SERVER)


async def test_a_listing_that_breaks_is_masked() -> None:
    """B162."""
    secret = marker("address")

    class Broken:
        async def tools(self, server: McpServer) -> tuple[ListedTool, ...]:
            raise OSError(secret)

    box = Toolbox(ToolKinds({}), {}, Broken(), OrchestratorSettings())
    with pytest.raises(ToolFailed) as failed:
        await box.list(SERVER)
    assert secret not in failed.value.message
