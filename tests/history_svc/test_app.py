"""The service as a process of its own: settings, health, metrics, start and stop."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from psycopg import OperationalError
from structlog.testing import capture_logs

from history_svc.app import SERVICE, open_history
from history_svc.settings import HistorySettings, Settings
from svckit.settings import SettingsError
from tests.history_svc.database import change
from tests.history_svc.turns import Client, events, prompts, root, round_of
from tests.postgres import database_url
from turnkeep.common.v1 import common_pb2 as common


@asynccontextmanager
async def process(tmp_path: Path, **environment: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`python -m history_svc` with its address; ended with the block if it still runs."""
    socket = f"unix:{tmp_path}/h"
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "history_svc"),
        env={**os.environ, "TURNKEEP_HISTORY_LISTEN": socket, "TURNKEEP_HISTORY_METRICS_LISTEN": "", **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield running, socket
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def test_the_service_runs_alone_and_stops_when_asked(empty_database: str, tmp_path: Path) -> None:
    async with (
        process(tmp_path, TURNKEEP_HISTORY_DATABASE_URL=empty_database) as (running, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        health = await health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True, timeout=20)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        client = Client(channel)
        turn = root("q", "a")
        await client.commit(turn)
        assert (await client.load(turn.response_id)).prompts == prompts("q", "a")

        running.send_signal(signal.SIGTERM)

        assert await asyncio.wait_for(running.wait(), 20) == 0


async def test_a_turn_of_a_process_that_is_killed_goes_on_in_another(database: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    environment = {"TURNKEEP_HISTORY_DATABASE_URL": database}
    async with (
        process(tmp_path / "one", **environment) as (running, one_address),
        process(tmp_path / "two", **environment) as (_, two_address),
        grpc.aio.insecure_channel(one_address) as one_channel,
        grpc.aio.insecure_channel(two_address) as two_channel,
    ):
        for channel in (one_channel, two_channel):
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=20)
        one, two = Client(one_channel), Client(two_channel)
        id = await one.enqueue()
        first = await one.take("one")
        saved = await one.commit(round_of(first, 1, [], "q", "a", resume_state=b"here"))
        await one.log(first, "a", "lost with its process")
        viewer = asyncio.create_task(two.watch(id))
        running.kill()
        change(database, "update lease set expires_at = now()")

        second = await two.take("two")
        assert (second.response_id, second.round, (await two.load(id)).head.resume_state) == (id, 1, b"here")
        await two.commit(round_of(second, 2, saved.checkpoint, "b", status=common.RESPONSE_STATUS_COMPLETED))
        await two.log(second, "end", first=2, ended=True)

        assert (await two.load(id)).prompts == prompts("q", "a", "b")
        assert await asyncio.wait_for(viewer, 20) == events("a", "lost with its process", "end")


async def test_its_metrics_are_served(empty_database: str, tmp_path: Path, unused_tcp_port: int) -> None:
    metrics = f"127.0.0.1:{unused_tcp_port}"
    environment = {"TURNKEEP_HISTORY_DATABASE_URL": empty_database, "TURNKEEP_HISTORY_METRICS_LISTEN": metrics}
    async with process(tmp_path, **environment) as (_, address), grpc.aio.insecure_channel(address) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=20)
        await Client(channel).commit(root("q", "a"))

        async with aiohttp.ClientSession() as session, session.get(f"http://{metrics}/metrics") as page:
            text = await page.text()

    assert "turnkeep_history_commit_seconds_count 1.0" in text
    assert 'turnkeep_history_connections_lent{pool="commit"} 0.0' in text


async def test_a_setting_that_is_not_known_stops_the_start_by_name(tmp_path: Path) -> None:
    async with process(tmp_path, TURNKEEP_HISTORY_RETENTION="7") as (running, _):
        _, errors = await running.communicate()

    assert running.returncode == 2
    assert b"retention" in errors
    assert b"Traceback" not in errors


async def test_a_service_without_a_database_url_does_not_start() -> None:
    with pytest.raises(SettingsError, match="database_url"):
        async with open_history(Settings()):
            pass


async def test_a_start_that_waits_for_the_database_says_so_once(tmp_path: Path) -> None:
    nowhere = HistorySettings(listen="", database_url=database_url(tmp_path, "nowhere"), start_seconds=1.2)
    with capture_logs() as entries, pytest.raises(OperationalError):
        async with open_history(Settings(history=nowhere)):
            pass
    assert [entry["event"] for entry in entries] == ["the database does not answer yet"]


async def test_health_shows_a_database_that_is_gone(tmp_path: Path) -> None:
    nowhere = HistorySettings(
        listen=f"unix:{tmp_path}/h",
        database_url=database_url(tmp_path, "nowhere"),
        migrate_at_start=False,
        sweep_interval_seconds=0,
        pool_wait_seconds=0.2,
    )
    async with open_history(Settings(history=nowhere)) as history, grpc.aio.insecure_channel(history.address) as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))

    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
