"""The bundled engine: it serves, it comes back on the same port after a crash, and says what to do where it is not installed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from launcher.errors import LocalEngineError
from launcher.local_engine import MODEL, open_local_engine, require_installed
from tests.launcher.process import processes_about

WAIT_SECONDS = 40


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    try:
        require_installed()
    except LocalEngineError as exc:
        pytest.skip(str(exc))
    async with open_local_engine() as url:
        yield url


async def models(url: str) -> list[str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as answer:
        answer.raise_for_status()
        return [model["id"] for model in (await answer.json())["data"]]


async def models_at_last(url: str) -> list[str]:
    """The models, as soon as somebody serves there."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await models(url)
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


def servers() -> set[int]:
    """Our own engine processes."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {int(child) for child in children} & processes_about("llama_server.py")


async def test_a_crashed_engine_comes_back_on_the_same_port(engine: str) -> None:
    assert await models(engine) == [MODEL]
    (crashed,) = servers()
    os.kill(crashed, signal.SIGKILL)
    assert await models_at_last(engine) == [MODEL]
    assert crashed not in servers()


def test_what_is_not_installed_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.path_importer_cache", {})
    with pytest.raises(LocalEngineError, match="make engine"):
        require_installed()
