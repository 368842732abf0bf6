"""The embedded Postgres: whatever is killed, the data stays, the next start works, and nothing is left running."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from launcher.become import NOBODY
from launcher.child import Account
from launcher.cluster import HANDOVER_SECONDS
from launcher.errors import PostgresError
from launcher.postgres import Postgres, open_postgres

ROOT = Path(__file__).parents[2]
OWNER = Path(__file__).with_name("postgres_owner.py")
WAIT_SECONDS = 30
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


class Owner(NamedTuple):
    """A process that owns a Postgres."""

    process: subprocess.Popen[str]
    dsn: str
    pid: int

    def end(self, number: signal.Signals) -> int:
        """Sends the signal to the whole process group, and waits for the process."""
        os.killpg(self.process.pid, number)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[object]:
    """Starts owners, and ends those that are left."""
    owners: list[Owner] = []

    def start(folder: Path, python: tuple[str, ...] = (sys.executable,)) -> Owner:
        process = subprocess.Popen(
            [*python, str(OWNER), str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True, env=ENVIRONMENT
        )
        assert process.stdout is not None
        owners.append(Owner(process, **json.loads(process.stdout.readline())))
        return owners[-1]

    yield start
    for owner in owners:
        if owner.process.poll() is None:
            owner.end(signal.SIGTERM)
        owner.process.stdout.close()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder of the user nobody that the user nobody can reach."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-test-") as folder:
        os.chmod(folder, 0o755)
        os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def write(dsn: str, number: int) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table if not exists kept (number int)")
        connection.execute("insert into kept values (%s)", [number])


def numbers(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select number from kept order by number")]


def runs(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


async def gone(pid: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while runs(pid):
            await asyncio.sleep(0.01)


async def another_pid(postgres: Postgres, old: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while postgres.pid == old:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["missing/deeper", "with spaces and ü", "x" * 120])
async def test_any_folder_will_do(tmp_path: Path, name: str) -> None:
    async with open_postgres(tmp_path / name, durable=False) as postgres:
        write(postgres.dsn, 1)
    async with open_postgres(tmp_path / name, durable=False) as postgres:
        assert numbers(postgres.dsn) == [1]


async def test_a_relative_and_empty_folder_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    async with open_postgres(Path("data"), durable=False) as postgres:
        write(postgres.dsn, 1)


async def test_an_initialisation_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "postgres.new" / "base").mkdir(parents=True)
    async with open_postgres(tmp_path, durable=False) as postgres:
        write(postgres.dsn, 1)
    assert not (tmp_path / "postgres.new").exists()


async def test_leaving_stops_the_server_and_removes_its_socket(tmp_path: Path) -> None:
    async with open_postgres(tmp_path, durable=False) as postgres:
        pid, sockets = postgres.pid, postgres.cluster.sockets
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert not runs(pid)
    assert not sockets.exists()


async def test_a_killed_server_is_started_again_with_its_data(tmp_path: Path) -> None:
    async with open_postgres(tmp_path, durable=False) as postgres:
        for number in range(3):
            write(postgres.dsn, number)
            old = postgres.pid
            os.kill(old, signal.SIGKILL)
            await another_pid(postgres, old)
        assert numbers(postgres.dsn) == [0, 1, 2]


async def test_a_killed_owner_takes_its_server_along(tmp_path: Path, launch) -> None:
    owner = launch(tmp_path)
    owner.end(signal.SIGKILL)
    await gone(owner.pid)
    launch(tmp_path)
    assert not Path(conninfo_to_dict(owner.dsn)["host"]).exists()


def test_the_folder_of_a_killed_owner_works_at_once(tmp_path: Path, launch) -> None:
    for number in range(3):
        owner = launch(tmp_path)
        write(owner.dsn, number)
        owner.end(signal.SIGKILL)
    assert numbers(launch(tmp_path).dsn) == [0, 1, 2]


def test_the_folder_of_killed_owner_and_server_works_at_once(tmp_path: Path, launch) -> None:
    owner = launch(tmp_path)
    with psycopg.connect(owner.dsn) as connection:
        connection.execute("create table kept as select 1 as number")
        connection.commit()
        os.kill(owner.process.pid, signal.SIGSTOP)
        os.kill(owner.pid, signal.SIGKILL)
        owner.end(signal.SIGKILL)
        assert numbers(launch(tmp_path).dsn) == [1]


def test_the_folder_works_at_once_after_sigterm_to_the_group(tmp_path: Path, launch) -> None:
    for number in range(3):
        owner = launch(tmp_path)
        write(owner.dsn, number)
        os.killpg(owner.process.pid, signal.SIGTERM)
    owner = launch(tmp_path)
    assert numbers(owner.dsn) == [0, 1, 2]


async def test_a_second_owner_is_refused_by_name_of_folder_and_process(tmp_path: Path, launch) -> None:
    owner = launch(tmp_path)
    assert HANDOVER_SECONDS < WAIT_SECONDS
    with pytest.raises(PostgresError) as refusal:
        async with open_postgres(tmp_path):
            pass
    assert str(tmp_path) in str(refusal.value)
    assert f"process {owner.process.pid}" in str(refusal.value)
    write(owner.dsn, 1)


async def test_data_of_another_major_version_is_refused(tmp_path: Path) -> None:
    async with open_postgres(tmp_path, durable=False):
        pass
    (tmp_path / "postgres" / "PG_VERSION").write_text("15\n")
    with pytest.raises(PostgresError, match="made by Postgres 15"):
        async with open_postgres(tmp_path):
            pass


async def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "letter.txt").write_text("dear")
    with pytest.raises(PostgresError, match="not a Postgres data directory"):
        async with open_postgres(tmp_path):
            pass


async def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(PostgresError, match="cannot be used"):
        async with open_postgres(tmp_path / "data"):
            pass


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(PostgresError, match="max_connections"):
        async with open_postgres(tmp_path, durable=False, options={"max_connections": "no"}):
            pass


async def test_a_pid_file_that_names_somebody_elses_process_is_no_obstacle(tmp_path: Path) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    async with open_postgres(tmp_path, durable=False):
        pid_file = (tmp_path / "postgres" / "postmaster.pid").read_text().splitlines()
    (tmp_path / "postgres" / "postmaster.pid").write_text("\n".join([str(stranger.pid), *pid_file[1:]]) + "\n")
    async with open_postgres(tmp_path, durable=False) as postgres:
        write(postgres.dsn, 1)
    assert stranger.returncode is None
    stranger.kill()
    await stranger.wait()


@as_root
async def test_root_runs_the_server_as_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    async with open_postgres(tmp_path, durable=False) as postgres:
        assert postgres.cluster.account in (Account.NAMESPACE, Account.NOBODY)


@as_root
async def test_root_runs_the_data_of_nobody_as_nobody(reachable: Path) -> None:
    (reachable / "postgres").mkdir(mode=0o700)
    os.chown(reachable / "postgres", NOBODY, NOBODY)
    async with open_postgres(reachable, durable=False) as postgres:
        assert Path(f"/proc/{postgres.pid}").stat().st_uid == NOBODY
        write(postgres.dsn, 1)
    async with open_postgres(reachable, durable=False) as postgres:
        assert numbers(postgres.dsn) == [1]


@as_root
async def test_root_is_told_when_nobody_cannot_reach_the_data_of_nobody(reachable: Path) -> None:
    data = reachable / "closed" / "postgres"
    data.mkdir(parents=True)
    os.chown(data, NOBODY, NOBODY)
    data.parent.chmod(0o700)
    with pytest.raises(PostgresError, match="root"):
        async with open_postgres(data.parent, durable=False):
            pass


@as_root
async def test_the_data_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    os.chown(tmp_path / "postgres", 4321, 4321)
    with pytest.raises(PostgresError, match="belongs to user 4321"):
        async with open_postgres(tmp_path):
            pass


@as_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_an_ordinary_user_owns_a_postgres(reachable: Path, launch) -> None:
    python = python_of_nobody()
    owner = launch(reachable / "data", python)
    write(owner.dsn, 1)
    owner.end(signal.SIGTERM)
    assert numbers(launch(reachable / "data", python).dsn) == [1]


def python_of_nobody() -> tuple[str, ...]:
    """How to run, as the user nobody, a Python that this user can reach and that has our libraries; skips the test without one."""
    attempt = "import subprocess, sys, psycopg, launcher.postgres; subprocess.run([sys.executable, '-V'], check=True)"
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if subprocess.run([*AS_NOBODY, python, "-c", attempt], capture_output=True, env=ENVIRONMENT, check=False).returncode == 0:
            return *AS_NOBODY, python
    pytest.skip("the user nobody reaches no Python with our libraries")
