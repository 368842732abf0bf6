"""Background turns over HTTP, in three processes of which one is killed: nothing is run twice and viewers see every event once."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import aiohttp
import pytest

from tests.end_to_end.client import Client, text_of, types_of
from tests.end_to_end.conftest import KEYS, SETTINGS
from tests.end_to_end.gateway import THREE_PROCESSES, Gateway, Place, twin_of, until_ready
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.mcp_server import FakeMcpServer
from tests.fakes.scripts import function_call, text
from tests.fakes.streams import check_response, check_stream, read_sse
from tests.postgres import fresh_database

CALL = "steps__step"


@pytest.fixture(scope="module")
def gateway(place: Place, postgres: str) -> Iterator[Gateway]:
    """Three processes over a database of their own, so that nobody else takes turns from the queue; leases are short."""
    orchestrator = {**SETTINGS["orchestrator"], "background_turns": 4, "background_lease_seconds": 2.0, "drain_seconds": 1.0}
    settings = {**SETTINGS, "orchestrator": orchestrator}
    with fresh_database(postgres) as dsn, Gateway(replace(place, database_url=dsn, settings=settings), THREE_PROCESSES) as gateway:
        yield gateway


@pytest.fixture
async def ada(gateway: Gateway, engine: FakeEngine, http: aiohttp.ClientSession) -> Client:
    await gateway.restart()
    await until_ready(gateway.url)
    return Client(http, gateway.url, KEYS["ada"])


async def started(ada: Client, **fields: object) -> Json:
    """A queued turn."""
    reply = await ada.request("POST", "/v1/responses", {"model": "m", "input": "go", "background": True, **fields})
    assert reply.status == 200, reply.body
    queued = check_response(reply.json)
    assert (queued["status"], queued["background"]) == ("queued", True)
    return queued


async def viewed(ada: Client, id: object, behind: int | None = None) -> list[Mapping[str, object]]:
    """The events behind a number, to the end of the turn."""
    query = "" if behind is None else f"&starting_after={behind}"
    reply = await ada.request("GET", f"/v1/responses/{id}?stream=true{query}")
    assert reply.status == 200, reply.body
    return list(read_sse(reply.body).events)


async def seen_until(ada: Client, id: object, type: str, times: int) -> list[Mapping[str, object]]:
    """What a viewer sees that leaves when it has seen an event of a type so often."""
    events: list[Mapping[str, object]] = []
    path = f"{ada.url}/v1/responses/{id}?stream=true"
    async with ada.http.get(path, headers={"authorization": f"Bearer {ada.key}"}) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:]))
                times -= events[-1]["type"] == type
                if not times:
                    break
    return events


async def test_a_turn_survives_the_kill_of_its_process_between_two_rounds(gateway: Gateway, ada: Client, engine: FakeEngine) -> None:
    """Three MCP rounds, kill -9 between the second and the third: finished calls are not run again, and a viewer that comes back with
    `starting_after` sees every event once."""
    held = asyncio.Event()
    engine.play(*(function_call(CALL, {"n": n}) for n in (1, 2)), function_call(CALL, {"n": 3}).hold_head(held))
    engine.play(function_call(CALL, {"n": 3}), text("Done."), text("More."))
    steps: list[int] = []

    def step(n: int) -> str:
        steps.append(n)
        return f"step {n}"

    async with FakeMcpServer(tools={"step": step}) as server:
        tool = {"type": "mcp", "server_label": "steps", "server_url": server.url, "require_approval": "never"}
        queued = await started(ada, tools=[tool])
        await engine.request(2)
        before = await seen_until(ada, queued["id"], "response.mcp_call.completed", 2)
        gateway.kill("orchestrator")
        await gateway.restart()
        behind = await viewed(ada, queued["id"], behind=int(str(before[-1]["sequence_number"])))

    response = check_stream([*before, *behind])
    assert steps == [1, 2, 3]
    assert types_of(response["output"]) == ["mcp_list_tools", "mcp_call", "mcp_call", "mcp_call", "message"]
    assert await ada.get(queued["id"]) == response
    assert engine.posts[2].input == engine.posts[3].input
    after = await ada.create("more", previous_response_id=queued["id"])
    assert text_of(after) == "More."
    assert engine.posts[-1].input[: len(engine.posts[-2].input)] == engine.posts[-2].input


async def test_another_gateway_goes_on_while_the_first_is_still_away(gateway: Gateway, ada: Client, engine: FakeEngine) -> None:
    engine.play(text("one two three four").hold(asyncio.Event(), before=6), text("Done."))
    queued = await started(ada)
    await seen_until(ada, queued["id"], "response.output_text.delta", 1)
    with twin_of(gateway):
        gateway.kill("orchestrator")
        response = check_stream(await viewed(ada, queued["id"]), taken_over=True)
    assert [item["status"] for item in response["output"]] == ["incomplete", "completed"]  # type: ignore[union-attr]
    assert text_of(response).endswith("Done.")


async def test_a_viewer_that_leaves_stops_nothing(ada: Client, engine: FakeEngine) -> None:
    held = asyncio.Event()
    engine.play(text("one two three").hold(held, before=5))
    async with ada.streaming("go", background=True) as answer:
        first = await answer.content.readuntil(b"\n\n")
    created = json.loads(first.partition(b"data: ")[2])
    held.set()
    response = check_stream(await viewed(ada, created["response"]["id"]))
    assert text_of(response) == "one two three"


async def test_a_running_turn_is_cancelled_and_says_so_again(ada: Client, engine: FakeEngine) -> None:
    engine.play(text("one two three").hold(asyncio.Event(), before=5))
    queued = await started(ada)
    await seen_until(ada, queued["id"], "response.output_text.delta", 1)
    path = f"/v1/responses/{queued['id']}"
    assert (await ada.request("POST", f"{path}/cancel")).json["status"] in ("in_progress", "cancelled")
    events = await viewed(ada, queued["id"])
    cancelled = await ada.get(queued["id"])
    assert (cancelled["status"], events[-1]["type"]) == ("cancelled", "response.output_item.done")
    assert (await ada.request("POST", f"{path}/cancel")).json == cancelled


async def test_a_gateway_that_stops_hands_its_turns_on(gateway: Gateway, ada: Client, engine: FakeEngine) -> None:
    engine.play(text("never").hold_head(asyncio.Event()), text("Done."))
    queued = await started(ada)
    await engine.request(0)
    assert gateway.stop("orchestrator") == 0
    await gateway.restart()
    assert text_of(check_stream(await viewed(ada, queued["id"]))) == "Done."


async def test_a_tools_own_credential_is_refused(ada: Client) -> None:
    tool = {"type": "mcp", "server_label": "steps", "server_url": "http://127.0.0.1:1/mcp", "authorization": "token"}
    refused = await ada.refused("go", background=True, tools=[tool])
    assert refused.said == (400, "invalid_request", "tools[0].authorization")
