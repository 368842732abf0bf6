"""A process runs until a signal; background tasks are waited for, then cancelled, and their errors are logged."""

import asyncio
import signal
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from svckit.lifecycle import Background

PROGRAM = """
import asyncio
from svckit.lifecycle import run

async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("stopped in order", flush=True)

run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_the_process_to_stop_and_a_second_one_changes_nothing(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.send_signal(number)
        assert process.stdout.read() == "stopped in order\n"
    assert process.returncode == 0


async def test_leaving_waits_for_background_tasks() -> None:
    done: list[str] = []
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.append("work")

    async with Background(grace=10) as background:
        background.start(work(), "work")
        asyncio.get_running_loop().call_soon(gate.set)
    assert done == ["work"]


async def test_past_the_grace_background_tasks_are_cancelled_and_clean_up() -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("cleaned")

    async with Background(grace=0.01) as background:
        task = background.start(work(), "work")
    assert done == ["cleaned"]
    assert task.cancelled()


async def test_an_error_of_a_background_task_is_logged_and_ends_nothing_else() -> None:
    async def fail() -> None:
        raise LookupError("lost")

    with capture_logs() as written:
        async with Background(grace=10) as background:
            task = background.start(fail(), "sweep")
            await asyncio.wait([task])
    assert [(line["event"], line["task"]) for line in written] == [("a background task failed", "sweep")]


async def test_a_task_can_be_awaited_for_its_result() -> None:
    async def work() -> int:
        return 7

    async with Background(grace=10) as background:
        assert await background.start(work(), "work") == 7


async def test_nothing_is_started_after_the_stop() -> None:
    async def work() -> None: ...

    async with Background(grace=0) as background:
        pass
    with pytest.raises(RuntimeError):
        background.start(work(), "late")


async def test_a_cancelled_owner_still_ends_its_tasks() -> None:
    ended = asyncio.Event()
    started = asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def own() -> None:
        async with Background(grace=60) as background:
            background.start(work(), "work")
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    await started.wait()
    owner.cancel()
    await asyncio.sleep(0)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert ended.is_set()
