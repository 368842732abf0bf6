"""Child processes: started again when they end, stopped when we stop, killed when they do not listen."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from launcher.child import Process, open_child, start_child, stop_child

WAIT_SECONDS = 30
STEPS = ((signal.SIGTERM, 5.0),)
SLEEP = shutil.which("sleep") or ""
SHELL = shutil.which("sh") or ""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_child_that_ends_is_started_again() -> None:
    async with open_child("sleeper", partial(start_child, SLEEP, "600"), STEPS) as child:
        first = child.process
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: child.process is not first)
        assert child.process.returncode is None
    assert child.process.returncode == -signal.SIGTERM


async def test_a_start_that_fails_is_tried_again() -> None:
    starts: list[str] = []

    async def start() -> Process:
        starts.append("tried")
        if len(starts) == 2:
            raise OSError("not now")
        return await start_child(SLEEP, "600")

    async with open_child("sleeper", start, STEPS) as child:
        first = child.process
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: child.process is not first)
    assert len(starts) == 3


async def test_the_first_start_that_fails_is_the_callers_to_know() -> None:
    async def start() -> Process:
        raise OSError("never")

    with pytest.raises(OSError, match="never"):
        async with open_child("sleeper", start, STEPS):
            pass


async def test_a_child_asked_to_end_is_not_started_again() -> None:
    starts: list[Process] = []

    async def start() -> Process:
        starts.append(await start_child(SLEEP, "600"))
        return starts[-1]

    async with open_child("sleeper", start, STEPS) as child:
        child.ask_to_end()
        await child.keep()
    assert len(starts) == 1


async def test_a_child_asked_to_end_before_its_next_start_is_not_started_again() -> None:
    starts: list[Process] = []

    async def start() -> Process:
        starts.append(await start_child(SLEEP, "600" if starts else "0"))
        return starts[-1]

    async with open_child("sleeper", start, STEPS) as child:
        await child.process.wait()
        child.ask_to_end()
        await child.keep()
    assert len(starts) == 1


async def test_a_child_asked_to_end_while_it_starts_again_ends() -> None:
    starts: list[Process] = []

    async def start() -> Process:
        if starts:
            child.ask_to_end()
        starts.append(await start_child(SLEEP, "600" if starts else "0"))
        return starts[-1]

    async with open_child("sleeper", start, STEPS) as child:
        await child.keep()
    assert [process.returncode for process in starts] == [0, -signal.SIGTERM]


async def test_a_child_that_does_not_listen_is_killed() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    child = await start_child(sys.executable, "-c", deaf, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    await child.stdout.readline()
    await stop_child(child, ((signal.SIGTERM, 0.01),))
    assert child.returncode == -signal.SIGKILL


async def test_a_child_works_in_the_folder_it_is_given(tmp_path: Path) -> None:
    child = await start_child(SHELL, "-c", "pwd", directory=tmp_path, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    assert output.decode().strip() == str(tmp_path)


async def test_a_command_that_is_not_there_says_so() -> None:
    child = await start_child("/no/such/command", stderr=asyncio.subprocess.PIPE)
    _, complaint = await child.communicate()
    assert child.returncode == 1
    assert b"No such file or directory: /no/such/command" in complaint
