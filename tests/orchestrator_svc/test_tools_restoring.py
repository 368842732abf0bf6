"""Client-owned tools of every kind: no flat name reaches a client, and what it was told, or says, is the same to the byte."""

import json
from typing import cast

import pytest

from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import JsonObject
from tests.fakes.scripts import Script, function_call, reasoning, text
from tests.orchestrator_svc.tool_turns import CRM, LOOK, PATCH, SEARCH, Turned, World, listed, server
from tests.orchestrator_svc.turns import HELLO

FIND: JsonObject = {"type": "tool_search", "execution": "client", "description": "Finds tools."}
WEATHER: JsonObject = {"type": "function", "name": "weather", "description": "Tells the weather.", "parameters": {"type": "object"}}
INPUTS = [
    "*** Begin Patch\n\tindented\n*** End Patch\n",
    "carriage\r\nreturns\r\n",
    "  leading and trailing  \n\n",
    'quotes " and \\ back\\nslashes',
    "non-ASCII: é € 😀 \u2028",
    "nul \x00 and \x1b control",
    "",
]


def called(turned: Turned, kind: str) -> JsonObject:
    """The one call of a kind among a turn's output."""
    (call,) = [item for item in turned.output if item["type"] == kind]
    return call


def of_item(turned: Turned, id: object) -> list[JsonObject]:
    """All events that speak of an item."""
    return [event for event in turned.events if event.get("item_id") == id or cast(JsonObject, event.get("item", {})).get("id") == id]


def output_of(call: JsonObject, output: object = "seen", kind: str = "function_call_output") -> JsonObject:
    return {"type": kind, "call_id": call["call_id"], "output": output}


# Custom tools.


@pytest.mark.parametrize("written", INPUTS)
async def test_a_custom_input_is_the_same_to_the_byte_over_turns(world: World, written: str) -> None:
    """B060: in deltas, done, item, GET, and in what the model sees two turns later; the output keeps its shape."""
    world.engine.play(function_call("apply_patch", json.dumps({"input": written})), text("Ok."), text("Ok."))
    turned = await world.turn(HELLO, tools=[PATCH])
    call = called(turned, "custom_tool_call")
    deltas = [event["delta"] for event in turned.of_type("response.custom_tool_call_input.delta")]
    assert ("".join(map(str, deltas)), call["input"]) == (written, written)
    assert await world.stored(turned.id) == turned.response

    parts = [{"type": "input_text", "text": "Done."}, {"type": "input_text", "text": "Twice."}]
    second = await world.turn(output_of(call, parts, "custom_tool_call_output"), previous_response_id=turned.id, tools=[PATCH])
    await world.turn(HELLO, previous_response_id=second.id)
    for input in world.inputs()[1:]:
        assert json.loads(str(input[1]["arguments"])) == {"input": written}
        assert input[2]["output"] == parts


async def test_a_custom_call_is_told_in_the_recorded_order(world: World) -> None:
    """B060."""
    world.engine.play(function_call("apply_patch", {"input": "x"}))
    turned = await world.turn(HELLO, tools=[PATCH])
    steps = ["output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"]
    assert turned.story == steps


@pytest.mark.parametrize("arguments", ['{"text": "x"}', "just words", '{"input": 5}', "[1, 2]"])
async def test_a_custom_call_without_an_input_shows_what_the_model_wrote(world: World, arguments: str) -> None:
    """And the engine can read it back."""
    world.engine.play(function_call("apply_patch", arguments), text("Ok."))
    turned = await world.turn(HELLO, tools=[PATCH])
    call = called(turned, "custom_tool_call")
    assert call["input"] == arguments
    await world.turn(output_of(call, "ok", "custom_tool_call_output"), previous_response_id=turned.id)


# Namespaces.


async def test_a_member_is_known_by_its_namespace_in_every_event(world: World) -> None:
    """B059: no event, and nothing stored, holds the flat name; a chain and a transcript show the engine the flat one again."""
    world.engine.play(function_call("crm__lookup", {"id": 7}), text("Bob."), text("Bob."))
    choice = {"type": "function", "name": "lookup", "namespace": "crm"}
    turned = await world.turn(HELLO, tools=[CRM], tool_choice=choice)
    call = called(turned, "function_call")

    assert (call["namespace"], call["name"]) == ("crm", "lookup")
    for event in of_item(turned, call["id"]):
        item = cast(JsonObject, event.get("item", {"namespace": "crm", "name": "lookup"}))
        assert (item["namespace"], item["name"], event.get("name", "lookup")) == ("crm", "lookup", "lookup")
    assert "crm__lookup" not in json.dumps([turned.events, await world.stored(turned.id)])
    assert world.engine.posts[0].json["tool_choice"] == {"type": "function", "name": "crm__lookup"}

    await world.turn(output_of(call), previous_response_id=turned.id, tools=[CRM])
    await world.turn(HELLO, *turned.output, output_of(call), tools=[CRM])
    assert world.inputs()[1] == world.inputs()[2]
    assert world.inputs()[1][1]["name"] == "crm__lookup"


async def test_a_custom_member_keeps_namespace_and_input(world: World) -> None:
    tool: JsonObject = {"type": "namespace", "name": "fs", "description": "Files.", "tools": [PATCH]}
    world.engine.play(function_call("fs__apply_patch", {"input": "x"}))
    call = called(await world.turn(HELLO, tools=[tool]), "custom_tool_call")
    assert (call["namespace"], call["name"], call["input"]) == ("fs", "apply_patch", "x")


@pytest.mark.parametrize("name", ["n" * 65, "n" * 128, "with space", "mit.Punkt", "é"])
async def test_a_name_that_no_engine_takes_is_the_clients_all_the_same(world: World, name: str) -> None:
    """B080: the strict engine takes the tool, its call and the history; the client sees its own name only."""
    tool: JsonObject = {"type": "function", "name": name, "parameters": {"type": "object"}}
    world.engine.default = lambda received: function_call(str(received.json["tools"][0]["name"]), {})  # type: ignore[index]
    turned = await world.turn(HELLO, tools=[tool])
    call = called(turned, "function_call")
    assert {str(event["name"]) for event in of_item(turned, call["id"]) if "name" in event} == {name}
    assert call["name"] == name
    world.engine.play(text("Ok."))
    await world.turn(output_of(call), previous_response_id=turned.id)
    assert world.inputs()[1][1]["name"] != name


# Tools that come with items.


async def test_a_tool_search_of_the_clients_is_answered_with_tools_that_stay(world: World) -> None:
    """The call ends the turn; what was found can be called in the next turn, and in the one after that without being sent again."""
    world.engine.play(
        function_call("tool_search", {"query": "weather"}), function_call("weather", {}), text("Sunny."), function_call("weather", {})
    )
    first = await world.turn(HELLO, tools=[FIND])
    search = called(first, "tool_search_call")
    assert search.items() >= {"execution": "client", "arguments": {"query": "weather"}}.items()
    assert first.story == ["output_item.added", "output_item.done"]

    answer: JsonObject = {"type": "tool_search_output", "call_id": search["call_id"], "execution": "client", "tools": [WEATHER]}
    second = await world.turn(answer, previous_response_id=first.id, tools=[FIND])
    assert called(second, "function_call")["name"] == "weather"
    third = await world.turn(output_of(called(second, "function_call")), previous_response_id=second.id, tools=[FIND])
    fourth = await world.turn(HELLO, previous_response_id=third.id)
    assert called(fourth, "function_call")["name"] == "weather"

    offered = [[tool["name"] for tool in post.json["tools"]] for post in world.engine.posts]  # type: ignore[attr-defined]
    assert offered == [["tool_search"], ["tool_search", "weather"], ["tool_search", "weather"], ["weather"]]
    assert "weather" in str(world.inputs()[1][2]["output"])


async def test_additional_tools_can_be_called_at_once_and_later(world: World) -> None:
    """They are declared and are nothing that the model reads; a member of a namespace among them comes back as such."""
    more: JsonObject = {"type": "additional_tools", "role": "developer", "tools": [WEATHER, CRM, SEARCH]}
    world.engine.play(function_call("crm__lookup", {}), text("Bob."), function_call("web_search", {"query": "q"}), text("Found."))
    first = await world.turn(more, HELLO, tools=[LOOK])
    call = called(first, "function_call")
    assert (call["namespace"], call["name"]) == ("crm", "lookup")
    second = await world.turn(output_of(call), previous_response_id=first.id)
    third = await world.turn(HELLO, previous_response_id=second.id)
    assert third.types == ["web_search_call", "message"]

    names = [[tool["name"] for tool in post.json["tools"]] for post in world.engine.posts]  # type: ignore[attr-defined]
    assert names == [["look", "weather", "crm__lookup", "web_search"], *[["weather", "crm__lookup", "web_search"]] * 3]
    assert [item["type"] for item in world.inputs()[0]] == ["message"]


async def test_a_branch_from_before_the_tools_came_does_not_have_them(world: World) -> None:
    world.engine.play(text("Hi."), text("Hi."), text("Hi."))
    first = await world.turn(HELLO)
    await world.turn({"type": "additional_tools", "role": "developer", "tools": [WEATHER]}, HELLO, previous_response_id=first.id)
    await world.turn(HELLO, previous_response_id=first.id)
    assert "tools" not in world.engine.posts[2].json


# What the gateway made, sent back.

EVERY_KIND: tuple[Script, ...] = (
    reasoning("Hm.") + text("Let me see.") + function_call("web_search", {"query": "q"}, "c1") + function_call("docs__find", {}, "c2"),
    function_call("nobody", {}, "c3"),
    text("Now yours.")
    + function_call("look", {"a": 1}, "c4")
    + function_call("apply_patch", {"input": "x\r\n"}, "c5")
    + function_call("crm__lookup", {}, "c6")
    + function_call("tool_search", {"query": "w"}, "c7"),
)


async def everything(world: World) -> tuple[Turned, list[JsonObject], list[JsonObject]]:
    """A turn that makes an item of every kind, its answers, and its tools."""
    world.lister.tools_of["docs"] = listed("find")
    tools = [SEARCH, server(), LOOK, PATCH, CRM, FIND]
    world.engine.play(*EVERY_KIND)
    turned = await world.turn(HELLO, tools=tools)
    calls = {str(item.get("call_id")): item for item in turned.output}
    answers = [
        output_of(calls["c4"]),
        output_of(calls["c5"], "ok", "custom_tool_call_output"),
        output_of(calls["c6"]),
        {"type": "tool_search_output", "call_id": "c7", "execution": "client", "status": "completed", "tools": [WEATHER]},
    ]
    return turned, answers, tools


async def test_every_kind_of_output_can_be_sent_back_and_is_what_a_chain_shows(world: World) -> None:
    """B063, B065: the strict engine takes both inputs, the same but for what only the model saw; GET still has every field."""
    turned, answers, tools = await everything(world)
    kinds = ["mcp_list_tools", "reasoning", "message", "web_search_call", "mcp_call", "message", "function_call", "custom_tool_call"]
    assert turned.types == [*kinds, "function_call", "tool_search_call"]

    world.engine.play(text("Chained."), text("Sent back."))
    await world.turn(*answers, previous_response_id=turned.id, tools=tools)
    await world.turn(HELLO, *turned.output, *answers, tools=tools)
    chained, sent_back = world.inputs()[-2:]
    assert sent_back == [item for item in chained if item.get("call_id") != "c3"]
    assert await world.stored(turned.id) == turned.response


async def test_hosted_items_of_nobody_here_are_taken_and_mean_what_they_say(world: World) -> None:
    """From another gateway, or of a turn that was not stored: a call is its pair, a search and a listing are nothing."""
    turned = await stateless(world)
    assert turned.types == ["mcp_list_tools", "web_search_call", "mcp_call", "message"]
    world.engine.play(text("Ok."))
    await world.turn(HELLO, *turned.output, HELLO)
    assert [item.get("name", item.get("output", item["type"])) for item in world.inputs()[-1]] == [
        "message",
        "docs__find",
        "result of find",
        "message",
        "message",
    ]


async def stateless(world: World) -> Turned:
    world.lister.tools_of["docs"] = listed("find")
    world.engine.play(function_call("web_search", {"query": "q"}) + function_call("docs__find", {}), text("Ok."))
    return await world.turn(HELLO, tools=[SEARCH, server()], store=False)


async def test_a_foreign_item_is_not_regained(world: World) -> None:
    """Bob sends an id of ada's: he gets no word of what stands there."""
    world.engine.play(function_call("web_search", {"query": "q"}), text("Found."), text("Hi."))
    turned = await world.turn(HELLO, tools=[SEARCH])
    await world.turn(HELLO, turned.output[0], owner="bob")
    assert [item["type"] for item in world.inputs()[-1]] == ["message"]


async def test_nulls_of_an_sdk_are_taken_back(world: World) -> None:
    """B063: model_dump() writes null for every optional field."""
    turned = await stateless(world)
    dumped = [item | {"status": None, "created_by": None} for item in turned.output if item["type"] != "message"]
    world.engine.play(text("Ok."))
    await world.turn(HELLO, *dumped)
    assert len(world.inputs()[-1]) == 3


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "custom_tool_call_output", "call_id": "c9", "output": "x"}, "input"),
        ({"type": "custom_tool_call", "call_id": "c9", "name": "p", "input": "x"}, "input"),
        ({"type": "tool_search_call", "call_id": "c9", "execution": "client", "arguments": {}}, "input"),
        ({"type": "tool_search_output", "call_id": "c9", "execution": "client", "tools": "x"}, "input[0].tools"),
        ({"type": "mcp_call", "server_label": "x", "name": "y"}, "input[0].arguments"),
        ({"type": "mcp_approval_response", "approval_request_id": "x"}, "input[0].approve"),
        ({"type": "additional_tools", "tools": [1]}, "input[0].tools[0]"),
    ],
)
async def test_items_that_cannot_be_are_refused(world: World, item: JsonObject, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await world.turn(item)
    assert refused.value.param == param
    assert world.engine.posts == []
