"""One turn of each kind: whatever the way it is asked for, the response is of the published shape, completed, and has output."""

import pytest

from tests.conformance.closed import check, events
from tests.conformance.talk import Server, Talk
from tests.end_to_end.client import text_of, types_of
from tests.fakes.answers import DIALECTS, Dialect, Json
from tests.fakes.engine import FakeEngine
from tests.fakes.mcp_server import PIXEL
from tests.fakes.scripts import function_call, reasoning, refusal, text

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def message(role: str, content: object, **more: object) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


async def test_a_message_of_the_user_is_answered(talk: Talk) -> None:
    """basic-response"""
    said = await talk(model="m", input=[message("user", "Say hello in three words.")])
    assert text_of(said.completed) == "You said: Say hello in three words."


async def test_messages_of_the_assistant_may_have_a_phase(talk: Talk, engine: FakeEngine) -> None:
    """assistant-phase: without id and status; the model is told what they say."""
    thinking = message("assistant", "Let me look.", phase="commentary")
    answer = message("assistant", "It is 4.", phase="final_answer")
    said = await talk(model="m", input=[thinking, answer, message("user", "Are you sure?")])
    assert text_of(said.completed) == "You said: Are you sure?"
    assert ["Let me look." in str(engine.posts[0].input), "It is 4." in str(engine.posts[0].input)] == [True, True]


@pytest.mark.parametrize("phase", ["commentary", "final_answer", None])
async def test_a_phase_in_the_output_is_of_the_published_shape(server: Server, phase: str | None) -> None:
    """response-output-phase-schema: a response with a phase in its output is valid, and so is one without, as ours are."""
    response = (await server.plain(model="m", input="hello")).completed
    output = response["output"]
    assert isinstance(output, list)
    more = {} if phase is None else {"phase": phase}
    check("ResponseResource", {**response, "output": [{**item, **more} for item in output]})


async def test_a_stream_has_listed_events_only_and_ends_completed(server: Server) -> None:
    """streaming-response"""
    said = await server.streamed(model="m", input=[message("user", "Count from one to five.")])
    assert text_of(said.completed) == "You said: Count from one to five."
    assert {str(event["type"]) for event in said.events} <= set(events())
    assert len(events()) == 24


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
async def test_whatever_an_engine_streams_comes_out_in_listed_events(talk: Talk, engine: FakeEngine, dialect: Dialect) -> None:
    """streaming-response, for reasoning, refusals and calls of every kind of engine."""
    script = reasoning("Well then.") + refusal("Not that.") + text("But this.") + function_call("get_weather", {"city": "Oslo"})
    engine.play(script.speaking(dialect))
    said = await talk(model="m", input="go", tools=[WEATHER])
    assert types_of(said.completed["output"]) == ["reasoning", "message", "message", "function_call"]


async def test_a_system_message_comes_before_the_user(talk: Talk, engine: FakeEngine) -> None:
    """system-prompt"""
    said = await talk(model="m", input=[message("system", "Talk like a pirate."), message("user", "Hello.")])
    assert text_of(said.completed) == "You said: Hello."
    assert [item["role"] for item in engine.posts[0].input] == ["system", "user"]


async def test_a_function_tool_without_strict_is_called(talk: Talk) -> None:
    """tool-calling"""
    said = await talk(model="m", input=[message("user", "What is the weather in Oslo?")], tools=[WEATHER])
    assert "function_call" in types_of(said.completed["output"])


async def test_the_call_of_a_tool_is_streamed(server: Server) -> None:
    """tool-calling-streaming: the item opens and closes, and its arguments come in deltas."""
    said = await server.streamed(model="m", input=[message("user", "What is the weather in Oslo?")], tools=[WEATHER])
    kinds = [str(event["type"]).removeprefix("response.") for event in said.events]
    wanted = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert [kind for kind in dict.fromkeys(kinds) if kind in wanted] == wanted


async def test_an_image_without_detail_is_taken(talk: Talk, engine: FakeEngine) -> None:
    """image-input"""
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}]
    said = await talk(model="m", input=[message("user", parts)])
    assert text_of(said.completed) == "You said: What is this?"
    assert PIXEL in str(engine.posts[0].input)


async def test_a_conversation_may_be_sent_whole(talk: Talk, engine: FakeEngine) -> None:
    """multi-turn"""
    given = [message("user", "My name is Ada."), message("assistant", "Hello Ada."), message("user", "What is my name?")]
    said = await talk(model="m", input=given)
    assert text_of(said.completed) == "You said: What is my name?"
    assert [item["role"] for item in engine.posts[0].input] == ["user", "assistant", "user"]


async def test_nothing_absent_is_told_as_null(talk: Talk, engine: FakeEngine) -> None:
    """Optional keys are left out: readers that know no null there fail on it."""
    engine.play(reasoning("Hm.") + text("Yes."))
    said = await talk(model="m", input="go")
    for item in said.completed["output"]:  # type: ignore[attr-defined]
        assert None not in item.values()
