"""POST /v1/responses/compact, and a chain that starts from what it gave."""

from typing import cast

from tests.conformance.closed import check
from tests.conformance.talk import Server, Talk
from tests.end_to_end.client import text_of, types_of
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import text

GIVEN: list[Json] = [
    {"type": "message", "role": "user", "content": "Remember the number 7."},
    {"type": "message", "role": "assistant", "content": "I will remember 7."},
]


async def compacted(server: Server) -> list[Json]:
    """The checked output of a compaction."""
    status, body = await server.post("/v1/responses/compact", {"model": "m", "prompt_cache_key": "key", "input": GIVEN})
    assert status == 200, body
    return cast(list[Json], check("CompactResource", body)["output"])


async def test_a_context_is_compacted(server: Server) -> None:
    """compact-response"""
    assert "compaction" in types_of(await compacted(server))


async def test_a_compaction_needs_a_model(server: Server) -> None:
    """compact-missing-model"""
    status, body = await server.post("/v1/responses/compact", {"input": GIVEN})
    assert (status, cast(Json, body["error"])["param"]) == (400, "model")


async def test_a_chain_starts_from_a_compaction(talk: Talk, server: Server, engine: FakeEngine) -> None:
    """websocket-compact-new-chain, and the same over HTTP: the model is told the summary."""
    engine.play(text("The user likes 7."))
    output = await compacted(server)
    said = await talk(model="m", input=[*output, {"type": "message", "role": "user", "content": "Which number?"}], tools=[], store=False)
    assert text_of(said.completed) == "You said: Which number?"
    assert "The user likes 7." in str(engine.posts[-1].input)
