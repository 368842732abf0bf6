"""Chains: what the engine is asked when a turn continues from another one."""

from typing import cast

import pytest

from tests.end_to_end.client import Client, refusal_of, text_of, types_of
from tests.end_to_end.prompts import check_goes_on, kinds, texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, function_call, message_and_call, reasoning, text

WEATHER: Json = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


async def test_a_call_and_its_output_stay_in_the_chain(ada: Client, engine: FakeEngine) -> None:
    """B001: two turns later the engine still sees call, output and answer, in order and unchanged."""
    engine.play(function_call("get_weather", {"city": "Oslo"}, "call_1"), text("It is 65F and foggy."), text("65F"))

    first = await ada.create("weather?", tools=[WEATHER], tool_choice="required")
    second = await ada.create([_output("call_1", "65F foggy")], previous_response_id=first["id"])
    await ada.create("what temperature did the tool report?", previous_response_id=second["id"])

    asked = engine.posts[2]
    assert kinds(asked) == ["user", "function_call", "function_call_output", "assistant", "user"]
    assert asked.input[1]["call_id"] == asked.input[2]["call_id"] == "call_1"
    assert asked.input[2]["output"] == "65F foggy"


async def test_a_chain_of_twelve_turns_with_tools_is_whole(ada: Client, engine: FakeEngine) -> None:
    """B003: every input and output of all ancestors, once each, oldest first; and the prefix of each prompt is the one before."""
    told: list[str] = []
    parent: Json = {"id": None}
    answers: list[list[Json]] = []
    for turn in range(12):
        engine.play(_script_of(turn))
        said = [_output(f"call_{turn - 1}", f"result {turn}")] if turn % 3 == 2 else f"question {turn}"
        parent = await ada.create(said, previous_response_id=parent["id"], tools=[WEATHER])
        answers.append(cast(list[Json], parent["output"]))
        told += [*([f"result {turn}"] if turn % 3 == 2 else [f"question {turn}"]), *_texts_of(turn)]

    assert texts(engine.posts[-1]) == told[: -len(_texts_of(11))]
    check_goes_on(engine.posts, answers)


async def test_a_streamed_chain_asks_the_same_as_an_unstreamed_one(ada: Client, engine: FakeEngine) -> None:
    """B016: text and call of one turn are replayed once, adjacent, in order, before the output; reasoning stands in front."""
    script = reasoning("Let me think.") + message_and_call("let me check", "get_weather", {"city": "Bergen"}, "call_a")
    script = script + function_call("get_weather", {"city": "Oslo"}, "call_b")
    engine.play(script, text("done"), script, text("done"))
    outputs = [_output("call_a", "rain"), _output("call_b", "sun")]

    first = await ada.create("weather?", tools=[WEATHER])
    await ada.create(outputs, previous_response_id=first["id"], tools=[WEATHER])
    streamed = await ada.stream("weather?", tools=[WEATHER])
    await ada.stream(outputs, previous_response_id=streamed.response["id"], tools=[WEATHER])

    expected = ["user", "reasoning", "assistant", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert kinds(engine.posts[1]) == kinds(engine.posts[3]) == expected
    assert engine.posts[1].input == engine.posts[3].input


@pytest.mark.parametrize("streaming", [False, True])
async def test_reasoning_is_stored_and_replayed_without_loss(ada: Client, engine: FakeEngine, streaming: bool) -> None:
    """B009: all parts, summary and encrypted content are kept; the model gets the plain text back, directly before what followed it."""
    script = reasoning("First part.", "Second part.", summary=("A summary.",), encrypted_content="b3BhcXVl") + function_call(
        "get_weather", {}, "call_1"
    )
    engine.play(script, text("ok"))

    asked: Json = {"tools": [WEATHER], "include": ["reasoning.encrypted_content"]}
    first = (await ada.stream("think", **asked)).response if streaming else await ada.create("think", **asked)
    await ada.create([_output("call_1", "x")], previous_response_id=first["id"])

    thought = cast(list[Json], first["output"])[0]
    assert [part["text"] for part in cast(list[Json], thought["content"])] == ["First part.", "Second part."]
    assert [part["text"] for part in cast(list[Json], thought["summary"])] == ["A summary."]
    assert thought["encrypted_content"] == "b3BhcXVl"
    assert kinds(engine.posts[1]) == ["user", "reasoning", "function_call", "function_call_output"]
    assert texts(engine.posts[1])[1] == "First part.\nSecond part."


async def test_opaque_reasoning_goes_back_to_the_engine_that_made_it(ada: Client, engine: FakeEngine) -> None:
    """B009: with no plain text the encrypted content is what the model gets, as it was."""
    engine.strict = False  # vLLM refuses opaque content, an engine that makes some does not
    engine.play(reasoning(summary=("Hm.",), encrypted_content="b3BhcXVl") + text("hi"), text("ok"))

    first = await ada.create("think")
    await ada.create("go on", previous_response_id=first["id"])

    thought = engine.posts[1].input[1]
    assert (thought["type"], thought["encrypted_content"]) == ("reasoning", "b3BhcXVl")


async def test_the_whole_output_may_be_sent_back_instead_of_its_id(ada: Client, engine: FakeEngine) -> None:
    """B063: what the gateway puts out it takes in, ids, statuses and nulls of SDKs included, and asks the engine the same."""
    script = reasoning("Hm.") + message_and_call("let me check", "get_weather", {"city": "Oslo"}, "call_1")
    engine.play(script, text("by id"), text("by value"))

    first = await ada.create("weather?", tools=[WEATHER])
    output = [item | {"encrypted_content": None, "phase": None} for item in cast(list[Json], first["output"])]
    await ada.create([_output("call_1", "rain")], previous_response_id=first["id"])
    await ada.create([{"role": "user", "content": "weather?"}, *output, _output("call_1", "rain")])

    assert engine.posts[1].input == engine.posts[2].input


async def test_no_id_of_the_gateway_reaches_the_engine(ada: Client, engine: FakeEngine) -> None:
    """B015, B152: the strict engine refuses ids it did not mint, and none of those it minted is shown to the client."""
    engine.play(reasoning("Hm.") + function_call("get_weather", {}, "call_1"), text("foggy"), text("bye"))

    first = await ada.stream("weather?", tools=[WEATHER])
    second = await ada.stream([_output("call_1", "fog")], previous_response_id=first.response["id"])
    await ada.stream("thanks", previous_response_id=second.response["id"])

    shown = str([first.sse.events, second.sse.events, await ada.input_items(second.response["id"])])
    assert [minted for minted in engine.minted if minted in shown] == []
    assert all(id not in received.body.decode() for id in _ids(first.response) for received in engine.posts)


async def test_the_gateway_owns_the_state(ada: Client, engine: FakeEngine) -> None:
    """B021, B108: an engine that could keep state is never asked to, and gets no field that the gateway handles itself."""
    fields: Json = {
        "metadata": {"trip": "oslo"},
        "safety_identifier": "someone",
        "service_tier": "auto",
        "truncation": "disabled",
        "max_tool_calls": 3,
        "client_metadata": {"a": "b"},
        "prompt_cache_key": "thread-1",
        "include": ["reasoning.encrypted_content"],
    }
    first = await ada.create("one", **fields)
    second = await ada.create("two", previous_response_id=first["id"], **fields)

    assert [received.json["store"] for received in engine.posts] == [False, False]
    assert not {"previous_response_id", "conversation", "metadata", "safety_identifier"} & set(engine.posts[1].json)
    assert second["metadata"] == {"trip": "oslo"}
    assert (second["safety_identifier"], second["max_tool_calls"], second["prompt_cache_key"]) == ("someone", 3, "thread-1")


async def test_only_items_are_inherited(ada: Client, engine: FakeEngine) -> None:
    """Instructions, tools and sampling parameters belong to one request."""
    first = await ada.create("one", instructions="Be brief.", tools=[WEATHER], temperature=0.1, max_output_tokens=99)
    second = await ada.create("two", previous_response_id=first["id"])

    assert {"instructions", "tools", "temperature", "max_output_tokens"} & set(engine.posts[1].json) == set()
    assert (second["instructions"], second["tools"], second["temperature"], second["max_output_tokens"]) == (None, [], 1.0, None)


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_response_repeats_what_was_asked(ada: Client, engine: FakeEngine, streaming: bool) -> None:
    """B007: in the answer, in every lifecycle event and in GET, whatever the engine says or leaves out."""
    first = await ada.create("one")
    asked: Json = {
        "previous_response_id": first["id"],
        "instructions": "Be brief.",
        "tools": [WEATHER],
        "tool_choice": "none",
        "metadata": {"k": "v"},
        "truncation": "disabled",
        "temperature": 0.5,
        "parallel_tool_calls": False,
    }
    # the stream checker compares the lifecycle events with each other, and the client compares with GET
    second = (await ada.stream("two", **asked)).response if streaming else await ada.create("two", **asked)

    assert {key: second[key] for key in asked if key != "tools"} == {key: asked[key] for key in asked if key != "tools"}
    assert second["tools"] == [{"description": None, "strict": None, **WEATHER}]


@pytest.mark.parametrize("nothing", [{}, {"input": None}, {"input": ""}, {"input": []}])
async def test_a_turn_without_input_continues_from_its_parent(ada: Client, engine: FakeEngine, nothing: Json) -> None:
    """B013: with a parent the engine gets the history; with none it is a 400 that names the input."""
    first = await ada.create("one")
    second = await ada.request("POST", "/v1/responses", {"model": "m", "previous_response_id": first["id"], **nothing})
    refusal = refusal_of(await ada.request("POST", "/v1/responses", {"model": "m", **nothing}))

    assert second.json["previous_response_id"] == first["id"]
    assert kinds(engine.posts[1]) == ["user", "assistant"]
    assert refusal.said == (400, "invalid_request", "input")
    assert len(engine.posts) == 2


async def test_a_deleted_turn_in_the_middle_is_not_missed(ada: Client, engine: FakeEngine) -> None:
    """B019: children of a deleted response go on with its items; the response itself is gone, once and for all."""
    first = await ada.create("one")
    second = await ada.create("two", previous_response_id=first["id"])
    third = await ada.create("three", previous_response_id=second["id"])

    deleted = await ada.delete(second["id"])
    again = await ada.request("DELETE", f"/v1/responses/{second['id']}")
    await ada.create("four", previous_response_id=third["id"])
    await ada.create("other", previous_response_id=first["id"])
    gone = await ada.refused("five", previous_response_id=second["id"])

    assert deleted == {"id": second["id"], "object": "response.deleted", "deleted": True}
    assert again.status == 404
    assert texts(engine.posts[3])[::2] == ["one", "two", "three", "four"]
    assert texts(engine.posts[4])[::2] == ["one", "other"]
    assert gone.said == (400, "previous_response_not_found", "previous_response_id")
    assert not await ada.is_stored(second["id"])


async def test_arguments_cut_off_do_not_poison_the_chain(ada: Client, engine: FakeEngine) -> None:
    """B056: the cut call is incomplete, waits for no output, and no later prompt has its broken arguments."""
    engine.play(message_and_call("let me see", "get_weather", '{"path": "a.tsx"').incomplete(), text("fine"))

    cut = await ada.stream("read a file", tools=[WEATHER])
    await ada.create("never mind", previous_response_id=cut.response["id"])

    assert cut.response["status"] == "incomplete"
    assert cut.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cast(list[Json], cut.response["output"])[-1]["status"] == "incomplete"
    assert kinds(engine.posts[1]) == ["user", "assistant", "user"]


async def test_invalid_arguments_of_a_whole_call_reach_no_engine(ada: Client, engine: FakeEngine) -> None:
    """B056: the client gets the model's own string; an engine that reads arguments gets an object."""
    engine.play(function_call("get_weather", "{city: Oslo", "call_1"), text("fine"))

    first = await ada.create("weather?", tools=[WEATHER])
    await ada.create([_output("call_1", "bad arguments")], previous_response_id=first["id"])

    assert cast(list[Json], first["output"])[0]["arguments"] == "{city: Oslo"
    assert types_of(engine.posts[1].input) == ["message", "function_call", "function_call_output"]


async def test_settings_of_the_request_reach_the_engine(ada: Client, engine: FakeEngine) -> None:
    """B066: structured output, reasoning and sampling go with the model call, in a continuation too, and are echoed."""
    form = {"type": "json_schema", "name": "city", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}, "strict": True}
    fields: Json = {
        "text": {"format": form, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "temperature": 0.3,
        "top_p": 0.9,
        "max_output_tokens": 500,
        "parallel_tool_calls": False,
        "top_k": 40,
    }
    first = await ada.create("one")
    second = await ada.create("two", previous_response_id=first["id"], **fields)

    assert {key: engine.posts[1].json[key] for key in fields} == fields
    assert second["text"] == {"format": {"description": None, **form}, "verbosity": "low"}
    assert text_of(second) == '{"n": 1}'


def _output(call_id: str, output: object) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _script_of(turn: int) -> Script:
    return function_call("get_weather", {"turn": turn}, f"call_{turn}") if turn % 3 == 1 else text(f"answer {turn}")


def _texts_of(turn: int) -> list[str]:
    return [f'{{"turn": {turn}}}'] if turn % 3 == 1 else [f"answer {turn}"]


def _ids(response: Json) -> list[str]:
    return [str(response["id"]), *(str(item["id"]) for item in cast(list[Json], response["output"]))]
