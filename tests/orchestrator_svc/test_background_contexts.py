"""What a background turn leaves behind is what the same turn leaves in the foreground, compacted or not, and also when its process dies."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Literal

import pytest

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ToolCall, ToolResult
from tests.fakes.engine import Received
from tests.fakes.scripts import Script, function_call, text
from tests.orchestrator_svc.background_turns import Process, Queue, open_queue
from tests.orchestrator_svc.tool_turns import listed, server
from tests.orchestrator_svc.turns import HELLO
from turnkeep.history.v1 import history_pb2

MORE: JsonObject = {"type": "message", "role": "user", "content": "go on"}
LONG = "found much " * 120
ROUNDS = 4
Way = Literal["foreground", "background", "killed"]


@pytest.fixture
async def queue(queue_database: str) -> AsyncIterator[Queue]:
    async with open_queue(queue_database) as opened:
        opened.lister.tools_of["docs"] = listed("find")
        yield opened


@dataclass
class Model:
    """An engine's mind: it calls a tool round after round, then answers; asked for a summary it gives one. It may wait once.

    Asked the same once more, it says the same.
    """

    hang_at: int = -1
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    said: dict[str, Script] = field(default_factory=dict)
    steps: Iterator[Script] = field(default_factory=lambda: iter(()))

    def answer(self, received: Received) -> Script:
        asked = str(received.input)
        if "Summarise the conversation" in str(received.input[-1]):
            return text("Short.")
        if asked not in self.said:
            self.said[asked] = next(self.steps)
            if len(self.said) == self.hang_at:
                self.hangs.set()
                return text("never").hold_head(asyncio.Event())
        return self.said[asked]


def steps() -> Iterator[Script]:
    for n in range(ROUNDS):
        yield function_call("docs__find", {"n": n}, f"call_{n}")
    yield text("Found.")
    yield text("More.")


async def long(call: ToolCall) -> ToolResult:
    return ToolResult(f"{call.arguments['n']}: {LONG}")


async def told(queue: Queue, way: Way, *, in_conversation: bool, **fields: object) -> list[list[JsonObject]]:
    """What the engine is told over a turn and the one that continues it, without what it is told twice."""
    model = Model(hang_at=4 if way == "killed" else -1, steps=steps())
    queue.engine.forget()
    queue.engine.default = model.answer
    queue.mcp.answer = long
    given: dict[str, object] = {"tools": [server()], **fields}
    async with queue.process() as process:
        where = {"conversation_id": await new_conversation(queue, way)} if in_conversation else {}
        id = await ran(queue, process, way, model, {**given, **where})
    async with queue.process() as process:
        await queue.world(process).turn(MORE, **(where or {"previous_response_id": id}))
    unique: list[list[JsonObject]] = []
    for input in queue.inputs():
        if input not in unique:
            unique.append(input)
    return unique


async def ran(queue: Queue, process: Process, way: Way, model: Model, given: dict[str, object]) -> str:
    if way == "foreground":
        return (await queue.world(process).turn(HELLO, **given)).id
    started = await process.start(HELLO, **given)
    if way == "background":
        await queue.ended(started)
        return started.id
    await model.hangs.wait()
    await process.kill()
    async with queue.process():
        await queue.ended(started, taken_over=True)
    return started.id


async def new_conversation(queue: Queue, way: Way) -> str:
    id = f"conv_{ord(way[0]):016x}{1:024x}"
    await queue.history.CreateConversation(
        history_pb2.CreateConversationRequest(owner="ada", conversation_id=id, metadata=b"{}", created_at=1)
    )
    return id


@pytest.mark.parametrize("way", ["background", "killed"])
@pytest.mark.parametrize("threshold", [0, 1_000, 2_000])
@pytest.mark.parametrize("in_conversation", [False, True])
async def test_the_engine_is_told_the_same_whichever_way_a_turn_is_run(
    queue: Queue, way: Way, threshold: int, *, in_conversation: bool
) -> None:
    """Thresholds: never compacted, after each long result, after some."""
    fields = {"context_management": [{"type": "compaction", "compact_threshold": threshold}]} if threshold else {}
    expected = await told(queue, "foreground", in_conversation=in_conversation, **fields)
    assert len(expected) > ROUNDS + 1
    assert await told(queue, way, in_conversation=in_conversation, **fields) == expected
