"""The official openai Python SDK against a gateway: everything that a newcomer would try first, in its own words."""

from collections.abc import AsyncIterator
from typing import cast

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import FunctionToolParam, Response, ResponseFunctionToolCall
from openai.types.responses.response_input_param import ResponseInputParam
from pydantic import BaseModel

from tests.end_to_end.client import Client
from tests.end_to_end.prompts import check_goes_on, kinds, texts
from tests.fakes.answers import DIALECTS, Dialect, Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import function_call, message_and_call, reasoning, text

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    "strict": True,
}


class City(BaseModel):
    """What a model is asked to fill in."""

    name: str
    people: int


@pytest.fixture
async def sdk(ada: Client, engine: FakeEngine) -> AsyncIterator[AsyncOpenAI]:
    """The SDK with its own idea of retries switched off, so that each request is one."""
    async with AsyncOpenAI(base_url=f"{ada.url}/v1", api_key=ada.key, max_retries=0, timeout=40) as client:
        yield client


async def test_create_retrieve_and_delete(sdk: AsyncOpenAI) -> None:
    """The three calls on one response."""
    created = await sdk.responses.create(model="m", input="hello")
    got = await sdk.responses.retrieve(created.id)
    await sdk.responses.delete(created.id)

    assert created.output_text == got.output_text == "You said: hello"
    assert got.model_dump() == created.model_dump()
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(created.id)


async def test_the_raw_stream(sdk: AsyncOpenAI) -> None:
    """`stream=True`: typed events, deltas that make up the text."""
    events = [event async for event in await sdk.responses.create(model="m", input="hello", stream=True)]

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "You said: hello"
    assert events[-1].type == "response.completed"


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
async def test_the_stream_helper(sdk: AsyncOpenAI, engine: FakeEngine, dialect: Dialect) -> None:
    """B039, B042: `responses.stream()` accumulates reasoning, text and calls without an exception, one lifecycle per request."""
    script = reasoning("Hm.") + message_and_call("let me check", "get_weather", {"city": "Oslo"}, "call_1")
    engine.play(script.speaking(dialect))
    async with sdk.responses.stream(model="m", input="weather?", tools=[WEATHER]) as stream:
        kinds_seen = [event.type async for event in stream]
        final = await stream.get_final_response()

    assert [kinds_seen.count(kind) for kind in ("response.created", "response.in_progress", "response.completed")] == [1, 1, 1]
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert (await sdk.responses.retrieve(final.id)).output_text == "let me check"


async def test_the_stream_helper_sees_a_failure(sdk: AsyncOpenAI, engine: FakeEngine) -> None:
    """B030: a broken engine is `response.failed`, of the same response."""
    engine.play(text("one two three").cut(events=6, ending="reset"))
    async with sdk.responses.stream(model="m", input="go") as stream:
        events = [event async for event in stream]

    assert events[-1].type == "response.failed"
    assert (await sdk.responses.retrieve(events[-1].response.id)).status == "failed"


async def test_input_items_are_paged(sdk: AsyncOpenAI) -> None:
    """`input_items.list` iterates over all pages, in either order."""
    first = await sdk.responses.create(model="m", input="one")
    second = await sdk.responses.create(model="m", input="two", previous_response_id=first.id)
    rising = [item.id async for item in sdk.responses.input_items.list(second.id, order="asc", limit=1)]
    falling = [item.id async for item in sdk.responses.input_items.list(second.id, include=["message.output_text.logprobs"])]

    assert len(rising) == 3
    assert rising == falling[::-1]


async def test_a_function_round_trip(sdk: AsyncOpenAI, engine: FakeEngine) -> None:
    """B001: the call is answered by `call_id`, once by previous_response_id and once by sending everything back."""
    engine.play(reasoning("Hm.") + function_call("get_weather", {"city": "Oslo"}, "call_1"), text("Foggy."), text("Foggy."))
    asked = await sdk.responses.create(model="m", input="weather?", tools=[WEATHER], tool_choice="required")
    call = asked.output[-1]
    assert isinstance(call, ResponseFunctionToolCall)
    output: ResponseInputParam = [{"type": "function_call_output", "call_id": call.call_id, "output": "65F, foggy"}]
    by_id = await sdk.responses.create(model="m", input=output, previous_response_id=asked.id, tools=[WEATHER])
    whole = cast(ResponseInputParam, [{"role": "user", "content": "weather?"}, *asked.model_dump()["output"], *output])
    by_value = await sdk.responses.create(model="m", input=whole, tools=[WEATHER])

    assert by_id.output_text == by_value.output_text == "Foggy."
    assert engine.posts[1].input == engine.posts[2].input
    assert kinds(engine.posts[1]) == ["user", "reasoning", "function_call", "function_call_output"]


async def test_twelve_turns_in_a_chain(sdk: AsyncOpenAI, engine: FakeEngine) -> None:
    """B003: streamed and not in turns; every prompt starts with the bytes of the one before."""
    parent: str | None = None
    outputs: list[list[Json]] = []
    for turn in range(12):
        if turn % 2:
            async with sdk.responses.stream(model="m", input=f"turn {turn}", previous_response_id=parent) as stream:
                response: Response = await stream.get_final_response()
        else:
            response = await sdk.responses.create(model="m", input=f"turn {turn}", previous_response_id=parent)
        parent = response.id
        outputs.append([item.model_dump() for item in response.output])

    assert texts(engine.posts[-1])[::2] == [f"turn {turn}" for turn in range(12)]
    check_goes_on(engine.posts, outputs)


async def test_structured_output(sdk: AsyncOpenAI, engine: FakeEngine) -> None:
    """`responses.parse` with a pydantic model, and the same through the stream helper."""
    parsed = await sdk.responses.parse(model="m", input="a city", text_format=City)
    async with sdk.responses.stream(model="m", input="a city", text_format=City) as stream:
        streamed = await stream.get_final_response()

    assert parsed.output_parsed == streamed.output_parsed == City(name="sample", people=1)
    assert cast(Json, engine.posts[0].json["text"])["format"] == cast(Json, engine.posts[1].json["text"])["format"]


async def test_errors_are_the_sdks_own(sdk: AsyncOpenAI) -> None:
    """A status, a code and a param for each."""
    with pytest.raises(openai.BadRequestError) as unknown:
        await sdk.responses.create(model="m", input="x", previous_response_id=f"resp_{1:040x}")
    with pytest.raises(openai.BadRequestError) as invalid:
        await sdk.responses.create(model="m", input="x", temperature=9)
    with pytest.raises(openai.AuthenticationError):
        await sdk.with_options(api_key="wrong").responses.create(model="m", input="x")

    assert (unknown.value.code, unknown.value.param) == ("previous_response_not_found", "previous_response_id")
    assert (invalid.value.code, invalid.value.param) == ("invalid_request", "temperature")


async def test_models_and_chat_completions(sdk: AsyncOpenAI) -> None:
    """What goes to the engine as it is works with the SDK as well."""
    models = [model.id async for model in sdk.models.list()]
    chat = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    chunks = [
        chunk async for chunk in await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    ]

    assert models == ["m"]
    assert chat.choices[0].message.content == "You said: hello"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: hi"


async def test_an_unstored_response_of_the_sdk_is_the_engines(sdk: AsyncOpenAI, engine: FakeEngine) -> None:
    """`store=False` on its own is passed through; with a parent it is hydrated and forgotten."""
    passed = await sdk.responses.create(model="m", input="one", store=False)
    parent = await sdk.responses.create(model="m", input="two")
    hydrated = await sdk.responses.create(model="m", input="three", previous_response_id=parent.id, store=False)

    assert passed.id in engine.minted
    assert texts(engine.posts[2])[::2] == ["two", "three"]
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(hydrated.id)
