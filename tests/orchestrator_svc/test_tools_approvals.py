"""Approvals and listings: what waits for a client's word, what its word lets happen, and how often."""

import asyncio
import json
from typing import cast

import pytest

from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ToolCall, ToolFailed, ToolResult
from tests.fakes.scripts import function_call, text
from tests.orchestrator_svc.tool_turns import LOOK, Turned, World, listed, server
from tests.orchestrator_svc.turns import HELLO

GATED = server(require_approval="always", authorization="token")


def delete(call_id: str = "c1", arguments: str = '{ "all": true }') -> object:
    """The model wants to delete everything."""
    return function_call("docs__delete", arguments, call_id)


def answer_to(turned: Turned, approve: bool = True, **more: object) -> JsonObject:
    """A client's word on the last item of a turn."""
    return {"type": "mcp_approval_response", "approval_request_id": turned.output[-1]["id"], "approve": approve, **more}


async def asked(world: World, *tools: JsonObject, **fields: object) -> Turned:
    """A turn that ends with an approval request."""
    world.lister.tools_of["docs"] = listed("delete")
    world.engine.play(delete())  # type: ignore[arg-type]
    turned = await world.turn(HELLO, tools=[*(tools or (GATED,))], **fields)
    assert turned.types[-1] == "mcp_approval_request"
    return turned


def seen(world: World, request: int = -1) -> list[JsonObject]:
    """What the engine was given besides messages."""
    return [item for item in world.inputs()[request] if item["type"] != "message"]


async def refusal(world: World, *input: JsonObject, **fields: object) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as refused:
        await world.turn(*input, **fields)
    return refused.value.reason, refused.value.param


# Asking.


@pytest.mark.parametrize("approval", ["always", None])
async def test_nothing_runs_before_it_is_approved(world: World, approval: str | None) -> None:
    """B069: the default is to ask; the turn ends with the request, whole from the start, and no call of it."""
    turned = await asked(world, server(require_approval=approval))
    assert turned.response["status"] == "completed"
    assert turned.story[-2:] == ["output_item.added", "output_item.done"]
    assert turned.output[-1].items() >= {"server_label": "docs", "name": "delete", "arguments": '{ "all": true }'}.items()
    assert world.mcp.calls == []


async def test_the_request_has_one_id_everywhere(world: World) -> None:
    """B072."""
    turned = await asked(world)
    streamed = [cast(JsonObject, event["item"])["id"] for event in turned.events if "item" in event][-2:]
    stored = cast(list[JsonObject], (await world.stored(turned.id))["output"])[-1]["id"]
    assert {*streamed, stored} == {turned.output[-1]["id"]}


async def test_a_request_that_could_not_be_run_goes_back_to_the_model(world: World) -> None:
    """Arguments that are no object cannot be approved."""
    world.lister.tools_of["docs"] = listed("delete")
    world.engine.play(delete(arguments="{no"), text("Sorry."))  # type: ignore[arg-type]
    turned = await world.turn(HELLO, tools=[GATED])
    assert turned.types == ["mcp_list_tools", "message"]
    assert "not a JSON object" in str(seen(world)[1]["output"])


async def test_approval_is_asked_for_server_by_server(world: World) -> None:
    """B071: one server is free and one is not: the free call runs, the other waits, and approving it does not run the first again."""
    tools = [server("free"), server("docs", require_approval="always")]
    world.lister.tools_of |= {"free": listed("read"), "docs": listed("delete")}
    world.engine.play(function_call("free__read", {}, "c0") + delete(), text("Done."))  # type: ignore[operator]
    turned = await world.turn(HELLO, tools=tools)
    assert (world.mcp.names, turned.types[2:]) == (["read"], ["mcp_call", "mcp_approval_request"])

    last = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=tools)
    assert (world.mcp.names, last.types) == (["read", "delete"], ["mcp_call", "message"])


# Answering.


async def test_an_approved_call_runs_once_with_exactly_what_was_approved(world: World) -> None:
    """Its item names the request, and the model sees the pair."""
    turned = await asked(world)
    world.engine.play(text("Deleted."))
    last = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED])

    (call,) = world.mcp.calls
    assert (call.tool.name, call.arguments, call.approval_request_id) == ("delete", {"all": True}, turned.output[-1]["id"])
    assert last.types == ["mcp_call", "message"]
    expected = {"arguments": '{ "all": true }', "approval_request_id": turned.output[-1]["id"], "output": "result of delete"}
    assert last.output[0].items() >= expected.items()
    assert [item.get("name", item.get("output")) for item in seen(world)] == ["docs__delete", "result of delete"]
    assert await world.stored(last.id) == last.response


async def test_a_denied_call_is_not_run_and_the_model_is_told(world: World) -> None:
    turned = await asked(world)
    world.engine.play(text("Then not."), text("Still not."))
    last = await world.turn(answer_to(turned, approve=False, reason="too bold"), previous_response_id=turned.id, tools=[GATED])
    assert (last.types, world.mcp.calls) == (["message"], [])
    assert "did not approve" in str(seen(world)[1]["output"])
    assert "too bold" in str(seen(world)[1]["output"])

    before = seen(world)
    await world.turn(HELLO, previous_response_id=last.id)
    assert seen(world) == before


async def test_a_request_without_an_answer_stays_pending_and_unseen(world: World) -> None:
    """The model knows nothing of it; two turns later it can still be approved."""
    turned = await asked(world)
    world.engine.play(text("Yes?"), text("Deleted."))
    between = await world.turn(HELLO, previous_response_id=turned.id, tools=[GATED])
    assert seen(world) == []
    await world.turn(answer_to(turned), previous_response_id=between.id, tools=[GATED])
    assert world.mcp.names == ["delete"]


async def test_an_approval_that_is_given_again_gets_the_result_that_there_is(world: World) -> None:
    """B069: two branches approve one request; the call runs once, and both models know what came of it."""
    turned = await asked(world)
    world.engine.play(text("One."), text("Two."))
    one = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED])
    two = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED])
    assert world.mcp.names == ["delete"]
    assert [turn.output[0]["output"] for turn in (one, two)] == ["result of delete"] * 2


async def test_two_approvals_at_once_run_one_call(world: World) -> None:
    """Whoever claims it runs it; the other is told that the outcome is unknown, for it is."""
    turned = await asked(world)
    may_end = asyncio.Event()

    async def slowly(call: ToolCall) -> ToolResult:
        await may_end.wait()
        return ToolResult("deleted")

    world.mcp.answer = slowly
    world.engine.play(text("Ok."), text("Ok."))
    first = asyncio.create_task(world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED]))
    await world.mcp.until(lambda: world.mcp.running == 1)
    second = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED])
    may_end.set()
    assert (await first).output[0]["status"] == "completed"
    assert second.output[0]["status"] == "failed"
    assert "outcome_unknown" in json.dumps(second.output[0])
    assert len(world.mcp.calls) == 1


async def test_a_call_that_was_cut_off_is_never_run_again(world: World) -> None:
    """The client left while it ran: who asks again is told that nobody knows what came of it."""
    turned = await asked(world)

    async def never(call: ToolCall) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    world.mcp.answer = never
    leaving = asyncio.create_task(world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED]))
    await world.mcp.until(lambda: world.mcp.running == 1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving

    world.engine.play(text("Hm."))
    again = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED])
    assert len(world.mcp.calls) == 1
    assert "outcome_unknown" in str(seen(world)[1]["output"])
    assert again.output[0]["status"] == "failed"


async def test_credentials_are_those_of_the_request_that_approves(world: World) -> None:
    """Nothing of them was kept; a request without the server is refused, and one with another token uses that."""
    turned = await asked(world)
    assert await refusal(world, answer_to(turned), previous_response_id=turned.id) == ("invalid_request", "tools")
    assert await refusal(world, answer_to(turned), previous_response_id=turned.id, tools=[server("other")]) == ("invalid_request", "tools")
    world.engine.play(text("Deleted."))
    await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[server(authorization="new")])
    (call,) = world.mcp.calls
    assert call.tool.server is not None
    assert call.tool.server.authorization == "new"


@pytest.mark.parametrize("id", ["mcpr_nobody", f"mcpr_{'0' * 40}", "", "x" * 200])
async def test_an_answer_to_nothing_is_refused(world: World, id: str) -> None:
    """B072."""
    turned = await asked(world)
    told: JsonObject = {"type": "mcp_approval_response", "approval_request_id": id, "approve": True}
    assert await refusal(world, told, previous_response_id=turned.id, tools=[GATED]) == (
        "invalid_request",
        "input[0].approval_request_id",
    )
    assert len(world.engine.posts) == 1


async def test_an_answer_to_what_was_answered_is_refused(world: World) -> None:
    """B072."""
    turned = await asked(world)
    world.engine.play(text("Deleted."))
    last = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED])
    place = ("invalid_request", "input[0].approval_request_id")
    assert await refusal(world, answer_to(turned), previous_response_id=last.id, tools=[GATED]) == place
    assert await refusal(world, answer_to(turned), answer_to(turned), previous_response_id=turned.id, tools=[GATED]) == (
        "invalid_request",
        "input[1].approval_request_id",
    )


async def test_a_foreign_request_cannot_be_answered(world: World) -> None:
    """B072: another owner, and another conversation of the same owner that sends nothing of it."""
    turned = await asked(world)
    place = ("invalid_request", "input[0].approval_request_id")
    assert await refusal(world, answer_to(turned), owner="bob", tools=[GATED]) == place
    world.engine.play(text("Hi."))
    other = await world.turn(HELLO)
    assert await refusal(world, answer_to(turned), previous_response_id=other.id, tools=[GATED]) == place
    assert world.mcp.calls == []


# Clients that chain nothing.


async def test_a_request_that_is_sent_back_is_the_one_that_is_stored(world: World) -> None:
    """Other arguments in the copy change nothing: what was asked is what runs."""
    turned = await asked(world)
    forged = turned.output[-1] | {"arguments": '{"all": false}'}
    world.engine.play(text("Deleted."))
    last = await world.turn(HELLO, *turned.output[:-1], forged, answer_to(turned), tools=[GATED])
    assert [call.arguments for call in world.mcp.calls] == [{"all": True}]
    assert last.types[-2:] == ["mcp_call", "message"]


async def test_a_past_with_its_approval_is_not_lived_again(world: World) -> None:
    """B063: the whole transcript comes back: no call runs again, and the model sees what a chain would show it."""
    turned = await asked(world)
    world.engine.play(text("Deleted."))
    last = await world.turn(answer_to(turned), previous_response_id=turned.id, tools=[GATED])
    world.engine.play(text("Chained."), text("Sent back."))
    await world.turn(HELLO, previous_response_id=last.id)
    await world.turn(HELLO, *turned.output, answer_to(turned), *last.output, HELLO)
    assert world.inputs()[-1] == world.inputs()[-2]
    assert world.mcp.names == ["delete"]


async def test_an_unstored_request_can_be_sent_back_and_approved(world: World) -> None:
    turned = await asked(world, store=False)
    world.engine.play(text("Deleted."))
    last = await world.turn(HELLO, turned.output[-1], answer_to(turned), tools=[GATED], store=False)
    assert (world.mcp.names, last.types[-2:]) == (["delete"], ["mcp_call", "message"])


# Listings.


async def test_a_server_is_shown_once_in_a_chain(world: World) -> None:
    """B074: the second turn shows only the new server, and offers what its own allowed_tools say."""
    world.lister.tools_of |= {"a": listed("one", "two"), "b": listed("three")}
    world.engine.play(text("1"), text("2"), text("3"))
    first = await world.turn(HELLO, tools=[server("a")])
    second = await world.turn(HELLO, previous_response_id=first.id, tools=[server("a", allowed_tools=["two"]), server("b")])
    third = await world.turn(HELLO, previous_response_id=second.id, tools=[server("b"), server("a")])
    shown = [[item["server_label"] for item in turn.output if item["type"] == "mcp_list_tools"] for turn in (first, second, third)]
    assert shown == [["a"], ["b"], []]
    offered = [[tool["name"] for tool in post.json["tools"]] for post in world.engine.posts]  # type: ignore[attr-defined]
    assert offered == [["a__one", "a__two"], ["a__two", "b__three"], ["b__three", "a__one", "a__two"]]


async def test_a_server_that_does_not_answer_is_an_item_and_the_turn_goes_on(world: World) -> None:
    """With the reason in it, and the tools of the others; once it answers it is shown."""
    world.lister.tools_of |= {"docs": ToolFailed("The server cannot be reached."), "other": listed("find")}
    world.engine.play(text("Hi."), text("Hi."))
    first = await world.turn(HELLO, tools=[server(), server("other"), LOOK], tool_choice="auto")
    failed = next(item for item in first.output if item.get("server_label") == "docs")
    assert (failed["error"], failed["tools"], first.response["status"]) == ("The server cannot be reached.", [], "completed")
    assert "mcp_list_tools.failed" in first.story
    assert [tool["name"] for tool in world.engine.posts[0].json["tools"]] == ["look", "other__find"]  # type: ignore[attr-defined]

    world.lister.tools_of["docs"] = listed("find")
    second = await world.turn(HELLO, previous_response_id=first.id, tools=[server()])
    assert second.types == ["mcp_list_tools", "message"]


@pytest.mark.parametrize("choice", ["required", "auto", "none"])
async def test_no_choice_is_sent_where_no_tool_is_left(world: World, choice: str) -> None:
    """An engine refuses `required` without tools."""
    world.lister.tools_of["docs"] = ToolFailed("The server cannot be reached.")
    world.engine.play(text("Hi."))
    turned = await world.turn(HELLO, tools=[server()], tool_choice=choice)
    assert (turned.response["tool_choice"], world.engine.posts[0].json.get("tool_choice")) == (choice, None)


async def test_listings_that_take_long_come_after_the_first_bytes(world: World) -> None:
    """Two servers, listed at once, shown after created and in_progress."""
    world.lister.held = asyncio.Event()
    world.lister.tools_of |= {"a": listed("one"), "b": listed("two")}
    world.engine.play(text("Hi."))
    running = asyncio.create_task(world.turn(HELLO, tools=[server("a"), server("b")]))
    while len(world.lister.asked) < 2:
        await asyncio.sleep(0)
    world.lister.held.set()
    turned = await running
    assert turned.types == ["mcp_list_tools", "mcp_list_tools", "message"]


async def test_a_listing_that_takes_a_name_twice_refuses_the_turn(world: World) -> None:
    world.lister.tools_of["docs"] = listed("find")
    tool: JsonObject = {"type": "function", "name": "docs__find"}
    assert await refusal(world, HELLO, tools=[tool, server()]) == ("invalid_request", "tools[1]")
    assert world.engine.posts == []
