"""Compaction as clients see it: in a turn, by a trigger, on its own, and the tokens of an input."""

from dataclasses import replace
from typing import cast

import aiohttp

from tests.end_to_end.client import Client, refusal_of, text_of, types_of
from tests.end_to_end.conftest import KEYS
from tests.end_to_end.gateway import Gateway, Place, Sections
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import function_call, reasoning, refusal, silence, status, text

OVER_ONE = [{"type": "compaction", "compact_threshold": 1}]
LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}}
REASONING = ["reasoning.encrypted_content"]


def last_lines(engine: FakeEngine, post: int = -1) -> list[str]:
    """What the engine was told, without the words that head a summary."""
    return [one.rpartition("\n")[2] for one in texts(engine.posts[post])]


async def compact(client: Client, **fields: object) -> Json:
    reply = await client.request("POST", "/v1/responses/compact", {"model": "m", **fields})
    assert reply.status == 200, reply.body
    return reply.json


async def test_a_turn_that_compacts_is_streamed_stored_and_continued(ada: Client, engine: FakeEngine) -> None:
    engine.play(text("one"), text("the summary"), text("two"), text("three"), text("four"))
    first = await ada.create("1")
    turned = await ada.stream("2", previous_response_id=first["id"], context_management=OVER_ONE)
    await ada.create("3", previous_response_id=turned.response["id"])
    await ada.create("instead", previous_response_id=first["id"])

    assert types_of(turned.response["output"]) == ["compaction", "message"]
    assert len(turned.of_type("response.compaction.compacting")) == 1
    assert last_lines(engine, 3) == ["2", "the summary", "two", "3"]
    assert last_lines(engine, 4) == ["1", "one", "instead"]


async def test_a_trigger_gives_exactly_one_compaction(ada: Client, engine: FakeEngine) -> None:
    """B097."""
    engine.play(text("the summary"), text("two"))
    turned = await ada.create([{"role": "user", "content": "1"}, {"type": "compaction_trigger"}])
    assert types_of(turned["output"]) == ["compaction"]
    await ada.create("2", previous_response_id=turned["id"])
    assert last_lines(engine) == ["1", "the summary", "2"]


async def test_a_trigger_without_a_summary_is_an_error(ada: Client, engine: FakeEngine) -> None:
    """B097, B098."""
    for failure, said in ((silence(), 502), (refusal("No."), 502), (status(429), 429), (text("half").cut(events=4), 502)):
        engine.play(failure, failure)
        refused = await ada.refused([{"role": "user", "content": "1"}, {"type": "compaction_trigger"}])
        assert refused.status == said


async def test_a_compaction_on_its_own_is_the_next_input(ada: Client, bob: Client, engine: FakeEngine) -> None:
    """B094, B097: without a trace in the store; another owner cannot use it."""
    engine.play(text("the summary"), text("Yes."), text("No."))
    made = await compact(ada, input="1", instructions="Be kind.")
    output = cast(list[Json], made["output"])

    assert types_of(output) == ["message", "compaction"]
    assert (await ada.request("GET", f"/v1/responses/{made['id']}")).status == 404
    answer = await ada.create([*output, {"role": "user", "content": "2"}])
    listed = await ada.input_items(answer["id"])

    assert last_lines(engine) == ["1", "the summary", "2"]
    assert [item for item in listed if item["type"] == "compaction"] == output[-1:]
    assert (await bob.refused(output)).said[::2] == (400, "input[1].encrypted_content")


async def test_a_compaction_on_its_own_without_a_summary_is_an_error(ada: Client, engine: FakeEngine) -> None:
    """B097."""
    for failure, said in ((silence(), 502), (text("half").incomplete(), 502), (status(500), 502), (status(429), 429)):
        engine.play(failure)
        reply = await ada.request("POST", "/v1/responses/compact", {"model": "m", "input": "1"})
        assert refusal_of(reply).status == said


async def test_a_call_that_waits_survives_a_compaction(ada: Client, engine: FakeEngine) -> None:
    """B089."""
    engine.play(function_call("look", {}, "call_1"), text("the summary"), text("Yes."))
    asking = await ada.create("1", tools=[LOOK])
    compacted = await ada.create([{"type": "compaction_trigger"}], previous_response_id=asking["id"], tools=[LOOK])
    seen = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    answer = await ada.create([seen], previous_response_id=compacted["id"], tools=[LOOK])
    assert text_of(answer) == "Yes."
    assert last_lines(engine) == ["1", "the summary", "{}", "seen"]


async def test_reasoning_comes_back_sealed_over_http(ada: Client, engine: FakeEngine) -> None:
    """B009: as Codex sends it: nothing is stored and the text is null."""
    engine.play(reasoning("Hm.") + function_call("look", {}, "call_1"), text("Yes."))
    first = await ada.stream("1", store=False, tools=[LOOK], include=REASONING)
    thought, call = cast(list[Json], first.response["output"])
    seen = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    given = [{"role": "user", "content": "1"}, {**thought, "content": None}, call, seen]
    await ada.create(given, store=False, tools=[LOOK], include=REASONING)
    assert texts(engine.posts[-1]) == ["1", "Hm.", "{}", "seen"]


async def count(client: Client, **fields: object) -> int:
    reply = await client.request("POST", "/v1/responses/input_tokens", fields)
    assert reply.status == 200, reply.body
    assert reply.json["object"] == "response.input_tokens"
    return cast(int, reply.json["input_tokens"])


async def test_the_tokens_of_an_input_are_counted(ada: Client, engine: FakeEngine) -> None:
    """By estimate where the engine has no count: more text is more tokens, and what is continued counts."""
    short, long = await count(ada, model="m", input="hi"), await count(ada, model="m", input="hi" * 400)
    assert 0 < short < long
    first = await ada.create("x" * 400)
    assert await count(ada, model="m", input="hi", previous_response_id=first["id"]) > short + 200
    assert await count(ada, model="m", input="hi", instructions="y" * 400, tools=[LOOK]) > short + 100
    reply = await ada.request("POST", "/v1/responses/input_tokens", {"model": "m", "input": "hi", "previous_response_id": "resp_x"})
    assert refusal_of(reply).status == 400


async def test_nothing_is_required_of_an_input_that_is_counted(ada: Client, engine: FakeEngine) -> None:
    assert await count(ada) == 0
    assert await count(ada, input="hi") > 0
    assert await count(ada, model="m") == 0


async def test_compactions_by_configuration_outlive_the_process_that_made_them(
    place: Place, http: aiohttp.ClientSession, engine: FakeEngine
) -> None:
    """Another process opens what was sealed with a secret that is still among its own, and compacts by its own threshold."""
    engine.play(text("the summary"), text("one"), text("two"))
    made: list[Json] = []
    for secrets, threshold in ((["old"], 1), (["new", "old"], 100_000)):
        own: Sections = {"sealing": {"secrets": secrets}, "compaction": {"threshold": threshold}}
        with Gateway(replace(place, settings={**place.settings, **own})) as gateway:
            client = Client(http, gateway.url, KEYS["ada"])
            answer = await client.create([*made, {"role": "user", "content": "hi"}])
            made = cast(list[Json], answer["output"])
    assert types_of(made) == ["message"]
    assert last_lines(engine) == ["hi", "the summary", "one", "hi"]
