"""The three services, started with exactly the commands and the environment of compose.yaml; only addresses are of this machine."""

import asyncio
import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest
import yaml

from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import text
from tests.launcher.process import ROOT, Running, Turnkeep
from tests.postgres import fresh_database

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = ("history", "orchestrator", "edge")
KEY = "sk-for-the-test"
GIVEN = {"TURNKEEP_GRPC_TOKEN": "shared", "TURNKEEP_API_KEY": KEY, "TURNKEEP_DATABASE_PASSWORD": "x"}
HOSTS = re.compile(r"\b(history|orchestrator|edge|0\.0\.0\.0)(?=:\d|$)")


class Ports(dict[str, str]):
    """A free port of this machine for each port of compose.yaml."""

    def __missing__(self, port: str) -> str:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self[port] = str(probe.getsockname()[1])
        return self[port]


def here(value: str, given: dict[str, str], ports: Ports) -> str:
    """A value of compose.yaml with its variables filled in and its addresses moved to this machine."""
    value = re.sub(r"\$\{(\w+)[^}]*\}", lambda found: given[found[1]], value)
    if not re.search(r"://|sk-", value):
        value = HOSTS.sub("127.0.0.1", value)
        value = re.sub(r"(?<=127\.0\.0\.1:)\d+$|^\d+$", lambda found: ports[found[0]], value)
    return value


@pytest.fixture
async def house(turnkeep: Turnkeep, server: str) -> AsyncIterator[tuple[str, FakeEngine, Ports]]:
    """The three services before a scripted engine; gives the URL of the edge."""
    ports = Ports()
    async with FakeEngine() as engine:
        with fresh_database(server) as dsn:
            given = {
                "TURNKEEP_GRPC_TOKEN": "shared",
                "TURNKEEP_API_KEY": KEY,
                "TURNKEEP_ENGINE_URL": engine.url,
                "TURNKEEP_DATABASE_PASSWORD": "x",
            }
            running: list[Running] = []
            for name in SERVICES:
                environ = {key: here(value, given, ports) for key, value in COMPOSE["services"][name]["environment"].items()}
                if "TURNKEEP_HISTORY_DATABASE_URL" in environ:
                    environ["TURNKEEP_HISTORY_DATABASE_URL"] = dsn
                running.append(turnkeep.start(*COMPOSE["services"][name]["command"], environ=environ))
                await asyncio.to_thread(running[-1].line_with, "Serving")
            yield f"http://127.0.0.1:{ports['8080']}", engine, ports
            for one in reversed(running):
                assert await asyncio.to_thread(one.end) == 0


def ask(url: str, body: dict[str, object] | None = None, key: str = KEY) -> tuple[int, dict[str, object]]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.loads(exc.read())


async def test_a_conversation_runs_through_three_processes(house: tuple[str, FakeEngine, Ports]) -> None:
    url, engine, _ = house
    engine.play(text("Hello Ann."), text("You are Ann."))
    status, first = await asyncio.to_thread(ask, f"{url}/v1/responses", {"model": "m", "input": "I am Ann."})
    assert (status, first["status"]) == (200, "completed")
    again = {"model": "m", "input": "Who am I?", "previous_response_id": first["id"]}
    assert (await asyncio.to_thread(ask, f"{url}/v1/responses", again))[0] == 200
    second = await engine.request(1)
    assert [item["content"][0]["text"] for item in second.input] == ["I am Ann.", "Hello Ann.", "Who am I?"]


async def test_the_door_asks_for_the_key(house: tuple[str, FakeEngine, Ports]) -> None:
    url, _, _ = house
    status, body = await asyncio.to_thread(ask, f"{url}/v1/responses", {"model": "m", "input": "hi"}, "sk-of-a-stranger")
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_every_healthcheck_passes(house: tuple[str, FakeEngine, Ports]) -> None:
    _, _, ports = house
    for name in SERVICES:
        probe = COMPOSE["services"][name]["healthcheck"]["test"][-1]
        address = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", probe)
        assert address is not None
        with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{ports[address[1]]}{address[2]}") as answer:
            assert answer.status == 200


def test_the_image_runs_the_command_that_the_services_name() -> None:
    assert 'ENTRYPOINT ["turnkeep"]' in (ROOT / "Dockerfile").read_text()
    assert all(COMPOSE["services"][name]["image"] == "turnkeep" for name in SERVICES)
