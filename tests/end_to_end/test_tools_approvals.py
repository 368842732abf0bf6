"""Approvals over HTTP, and what becomes of them when every service is killed: an approved call runs once or, nobody knows, never again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import cast

import aiohttp
import psycopg
import pytest
from psycopg.types.string import TextLoader

from tests.end_to_end.client import Client, types_of
from tests.end_to_end.conftest import KEYS
from tests.end_to_end.gateway import THREE_PROCESSES, Gateway, Place
from tests.end_to_end.prompts import texts
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.mcp_server import FakeMcpServer
from tests.fakes.scripts import function_call, text
from tests.fakes.secrets import found, marker


@pytest.fixture
async def docs() -> AsyncIterator[FakeMcpServer]:
    """An MCP server."""
    async with FakeMcpServer() as server:
        yield server


@pytest.fixture
def mortal(place: Place) -> Iterator[Gateway]:
    """Three processes that a test may kill."""
    with Gateway(place, THREE_PROCESSES) as gateway:
        yield gateway


def tool(server: FakeMcpServer, **more: object) -> Json:
    """The server as a request names it; approvals are the default."""
    return {"type": "mcp", "server_label": "docs", "server_url": server.url, **more}


def word(response: Json, approve: bool = True) -> list[Json]:
    """A client's answer to the request that ends a response."""
    request = cast(list[Json], response["output"])[-1]
    assert request["type"] == "mcp_approval_request"
    return [{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}]


def names(server: FakeMcpServer) -> list[str]:
    return [call.name for call in server.calls]


async def asked(client: Client, engine: FakeEngine, server: FakeMcpServer, name: str = "delete_all") -> Json:
    """A turn that asks whether the tool may be called."""
    engine.play(function_call(f"docs__{name}", {}, "call_d"))
    return (await client.stream("hello", tools=[tool(server)])).response


@pytest.mark.parametrize("approve", [True, False])
async def test_a_call_runs_once_it_is_approved_and_not_before(ada: Client, engine: FakeEngine, docs: FakeMcpServer, approve: bool) -> None:
    """B069."""
    first = await asked(ada, engine, docs)
    assert (types_of(first["output"]), names(docs)) == (["mcp_list_tools", "mcp_approval_request"], [])
    engine.play(text("So be it."))
    second = (await ada.stream(word(first, approve), previous_response_id=first["id"], tools=[tool(docs)])).response
    assert types_of(second["output"]) == (["mcp_call", "message"] if approve else ["message"])
    assert names(docs) == (["delete_all"] if approve else [])
    assert ("deleted" in texts(engine.posts[1])) is approve


async def test_an_answer_twice_or_to_nothing_is_refused(ada: Client, bob: Client, engine: FakeEngine, docs: FakeMcpServer) -> None:
    """B072."""
    first = await asked(ada, engine, docs)
    engine.play(text("Done."))
    second = await ada.create(word(first), previous_response_id=first["id"], tools=[tool(docs)])
    place = (400, "invalid_request", "input[0].approval_request_id")
    assert (await ada.refused(word(first), previous_response_id=second["id"], tools=[tool(docs)])).said == place
    assert (await bob.refused(word(first), tools=[tool(docs)])).said == place
    assert names(docs) == ["delete_all"]


async def test_an_approval_given_after_every_service_was_killed_runs_the_call_once(
    mortal: Gateway, engine: FakeEngine, docs: FakeMcpServer, http: aiohttp.ClientSession
) -> None:
    """kill -9 of history, orchestrator and edge between request and approval; other processes go on."""
    first = await asked(Client(http, mortal.url, KEYS["ada"]), engine, docs)
    for room in ("edge", "orchestrator", "history"):
        mortal.kill(room)
    await asyncio.to_thread(mortal.start)

    client = Client(http, mortal.url, KEYS["ada"])
    engine.play(text("Deleted."), text("Deleted, I said."))
    second = await client.create(word(first), previous_response_id=first["id"], tools=[tool(docs)])
    again = await client.create(word(first), previous_response_id=first["id"], tools=[tool(docs)])
    assert names(docs) == ["delete_all"]
    outputs = [cast(list[Json], response["output"])[0].get("output") for response in (second, again)]
    assert outputs == ["deleted", "deleted"]


async def test_a_call_that_was_killed_is_never_run_again_and_the_model_is_told_so(
    mortal: Gateway, engine: FakeEngine, docs: FakeMcpServer, http: aiohttp.ClientSession
) -> None:
    """kill -9 of every service while the approved call runs."""
    first = await asked(Client(http, mortal.url, KEYS["ada"]), engine, docs, "hold")
    dying = Client(http, mortal.url, KEYS["ada"])
    running = asyncio.create_task(dying.request("POST", "/v1/responses", _approving(first, docs)))
    await docs.until(lambda: names(docs) == ["hold"])
    for room in ("edge", "orchestrator", "history"):
        mortal.kill(room)
    with pytest.raises(aiohttp.ClientError):
        await running
    await asyncio.to_thread(mortal.start)

    client = Client(http, mortal.url, KEYS["ada"])
    engine.play(text("Nobody knows."))
    second = (await client.stream(word(first), previous_response_id=first["id"], tools=[tool(docs)])).response
    call = cast(list[Json], second["output"])[0]
    assert (call["type"], call["status"]) == ("mcp_call", "failed")
    assert "outcome_unknown" in " ".join(texts(engine.posts[-1]))
    assert [name for name in names(docs) if name == "hold"] == ["hold"]


def _approving(response: Json, server: FakeMcpServer) -> Json:
    return {"model": "m", "input": word(response), "previous_response_id": response["id"], "tools": [tool(server)]}


async def test_secrets_of_a_server_are_used_and_stand_nowhere(
    ada: Client, gateway: Gateway, engine: FakeEngine, docs: FakeMcpServer, database: str
) -> None:
    """B086, B087: they reach the server and nothing else: no reply, event, row, log, metric or engine request, also when
    the server says them back or cannot be reached; nor does our key reach the server."""
    token, header = marker("mcp-token"), marker("mcp-header")
    url = docs.url.replace("http://", f"http://user:{marker('mcp-password')}@") + f"?key={marker('mcp-query')}"
    secret = tool(docs, authorization=token, headers={"X-Api-Secret": header}, require_approval="never")
    lost = tool(docs, server_label="lost", server_url=url.replace("/mcp", "/nowhere"), authorization=token, require_approval="never")
    engine.play(function_call("docs__leak", {}), text("Done."), text("Bye."))
    start = len(gateway.log_bytes())
    streamed = await ada.stream("hello", tools=[secret, lost], metadata={"a": "b"})
    second = await ada.create("bye", previous_response_id=streamed.response["id"], tools=[secret])
    refused = await ada.request("POST", "/v1/responses", {"model": "m", "input": "x", "tools": [secret, secret]})
    items = await ada.input_items(second["id"])
    metrics = await ada.request("GET", "/metrics")

    assert {seen.get("authorization") for seen in docs.headers} >= {f"Bearer {token}"}
    assert {seen.get("x-api-secret") for seen in docs.headers} >= {header}
    places: dict[str, bytes | str] = {
        "events": str(streamed.sse.events),
        "second": str(second),
        "refusal": refused.body,
        "items": str(items),
        "metrics": metrics.body,
        "log": gateway.log_bytes(start),
        "rows": dump(database),
    }
    engines = {f"engine {received.number}": received.body + str(received.raw_headers).encode() for received in engine.posts}
    planted = [token, header, *(part for part in url.replace("@", "/").replace(":", "/").replace("=", "/").split("/") if "planted" in part)]
    assert found(planted, places | engines) == []
    assert found([KEYS["ada"], *gateway.place.environ.values()], {"server": str(docs.headers)}) == []


def dump(database: str) -> bytes:
    """Every row of every table, as text."""
    with psycopg.connect(database) as connection:
        connection.adapters.register_loader("timestamptz", TextLoader)  # Python has no infinite times
        tables = connection.execute("select relname from pg_stat_user_tables").fetchall()
        rows: list[str] = []
        for (name,) in tables:
            for row in connection.execute(f'select * from "{name}"'):  # type: ignore[arg-type]
                rows += [value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in row]
    return "\n".join(rows).encode("utf-8", "replace")
