"""Recorded sessions of the Codex CLI, played again: every request is taken and answered, and a strict engine takes what becomes of it.

Only what a server hands out is replaced: response ids, and what is encrypted. `make clients` runs the CLI itself.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from tests.end_to_end.client import Client, types_of
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import Script, function_call, reasoning, text
from tests.fakes.streams import TERMINAL, check_stream

CODEX = Path(__file__).parents[1] / "data" / "codex"
OVER_HTTP = sorted(CODEX.glob("*_http*.json"))
OVER_WEBSOCKET = [CODEX / f"{name}.json" for name in ("shell_tool_ws", "code_mode_ws", "compaction_trigger_ws")]

Ask = Callable[[Json], Awaitable[Json]]


def bodies(recording: Path, transport: str) -> list[Json]:
    requests = json.loads(recording.read_bytes())["requests"]
    return [request["body"] for request in requests if request["transport"] == transport and request.get("body")]


def items(body: Json) -> list[Json]:
    return cast(list[Json], body["input"])


async def replay(recorded: list[Json], engine: FakeEngine, ask: Ask) -> list[Json]:
    """The responses to all requests; each request gets the ids and the blobs of the responses before it."""
    responses: list[Json] = []
    for number, body in enumerate(recorded):
        if body.get("generate") is not False:
            engine.play(*(answer for answer in (_needed(body, later) for later in recorded[number + 1 : number + 2]) if answer))
        parent = {"previous_response_id": responses[-1]["id"]} if "previous_response_id" in body else {}
        responses.append(await ask({**body, **parent, "input": [_opened(item, responses) for item in items(body)]}))
    return responses


def _needed(body: Json, later: Json) -> Script | None:
    """What the model must say for the next request to make sense, if that matters."""
    kinds = types_of(items(body))
    if kinds[-1:] == ["compaction_trigger"]:
        return text("A summary.")
    if "reasoning" in types_of(items(later)) and "reasoning" not in kinds:
        return reasoning("Hm.") + text("Yes.")
    if "previous_response_id" not in later:
        return None
    outputs = [item for item in items(later) if str(item["type"]).endswith("_output")]
    return _call(outputs[0]) if outputs else None


def _call(output: Json) -> Script:
    """The call that this is the output of."""
    call_id = str(output["call_id"])
    if output["type"] == "custom_tool_call_output":
        return function_call("functions__exec", {"input": "text(2);"}, call_id)
    return function_call("exec_command", {"cmd": "echo one"}, call_id)


def _opened(item: Json, responses: list[Json]) -> Json:
    """The item with a blob of ours in the place of the recorded one."""
    if "encrypted_content" not in item:
        return item
    made = [one for response in responses for one in cast(list[Json], response["output"]) if one["type"] == item["type"]]
    return item | {"encrypted_content": made[-1]["encrypted_content"]}


@asynccontextmanager
async def websocket(client: Client) -> AsyncIterator[Ask]:
    """Asks by frames of one connection."""
    headers = {"Authorization": f"Bearer {client.key}"}
    async with client.http.ws_connect(f"{client.url}/v1/responses", headers=headers) as socket:

        async def ask(body: Json) -> Json:
            await socket.send_json(body)
            frames = await _frames(socket)
            if body.get("generate") is False:
                assert [frame["type"] for frame in frames] == ["response.created", "response.in_progress", "response.completed"]
                return cast(Json, frames[-1]["response"])
            return check_stream(frames)

        yield ask


async def _frames(socket: aiohttp.ClientWebSocketResponse) -> list[Json]:
    frames: list[Json] = []
    while not frames or frames[-1]["type"] not in TERMINAL:
        frames.append(json.loads(await socket.receive_str(timeout=20)))
        assert frames[-1]["type"] != "error", frames[-1]
    return frames


def check_compactions(recorded: list[Json], responses: list[Json]) -> None:
    """What ends with a trigger is answered with exactly one compaction."""
    for body, response in zip(recorded, responses, strict=True):
        if types_of(items(body))[-1:] == ["compaction_trigger"]:
            assert types_of(response["output"]) == ["compaction"]


@pytest.mark.parametrize("recording", OVER_HTTP, ids=lambda path: path.stem)
async def test_a_session_over_http_is_played_again(ada: Client, engine: FakeEngine, recording: Path) -> None:
    async def ask(body: Json) -> Json:
        return (await ada.stream(**body)).response

    recorded = bodies(recording, "http")
    responses = await replay(recorded, engine, ask)
    assert {response["status"] for response in responses} == {"completed"}
    check_compactions(recorded, responses)


@pytest.mark.parametrize("recording", OVER_WEBSOCKET, ids=lambda path: path.stem)
async def test_a_session_over_a_websocket_is_played_again(ada: Client, engine: FakeEngine, recording: Path) -> None:
    recorded = bodies(recording, "websocket")
    async with websocket(ada) as ask:
        responses = await replay(recorded, engine, ask)
    assert {response["status"] for response in responses} == {"completed"}
    assert len(engine.posts) == len(recorded) - 1
    check_compactions(recorded, responses)
