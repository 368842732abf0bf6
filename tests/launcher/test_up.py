"""`turnkeep up` from outside: what it says, what it serves, how it ends, and that it leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from launcher.errors import LocalEngineError
from launcher.local_engine import require_installed
from tests.launcher.process import Turnkeep, processes_about
from tests.postgres import fresh_database


def status_of(url: str) -> int:
    try:
        return urllib.request.urlopen(url, timeout=20).status
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code


def run_in_shell(line: str) -> dict[str, object]:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=50, check=True)
    return json.loads(done.stdout)


def test_the_two_lines_are_a_conversation_with_the_bundled_engine(turnkeep: Turnkeep) -> None:
    try:
        require_installed()
    except LocalEngineError as exc:
        pytest.skip(str(exc))
    house = turnkeep.start("up", "--data", turnkeep.data, "--port", "0")
    url = house.url()
    first, second = run_in_shell(house.line_with("curl")), run_in_shell(house.line_with("curl"))
    Path(f"/tmp/turnkeep-first-{urlsplit(url).port}.json").unlink()
    assert second["previous_response_id"] == first["id"]
    assert "banana" in second["output"][-1]["content"][0]["text"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert house.end() == 0


def test_a_dead_engine_does_not_stop_the_start(turnkeep: Turnkeep) -> None:
    house = turnkeep.up()
    url = house.url()
    assert "does not answer" in house.stderr
    assert (status_of(f"{url}/healthz"), status_of(f"{url}/readyz")) == (200, 503)


def test_the_progress_of_a_start_is_shown(turnkeep: Turnkeep) -> None:
    house = turnkeep.up()
    house.url()
    assert f"Starting Postgres in {turnkeep.data}" in house.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_stops_everything(turnkeep: Turnkeep, number: signal.Signals) -> None:
    house = turnkeep.up()
    house.url()
    assert processes_about(str(turnkeep.data))
    assert house.end(number) == 0
    assert not processes_about(str(turnkeep.data))


def test_the_folder_serves_again_at_once_after_sigterm(turnkeep: Turnkeep) -> None:
    house = turnkeep.up()
    house.url()
    os.killpg(house.process.pid, signal.SIGTERM)
    assert status_of(f"{turnkeep.up().url()}/healthz") == 200


def test_the_folder_serves_again_at_once_after_kill(turnkeep: Turnkeep) -> None:
    house = turnkeep.up()
    house.url()
    house.end(signal.SIGKILL)
    assert status_of(f"{turnkeep.up().url()}/healthz") == 200


def test_a_signal_during_the_start_stops_everything(turnkeep: Turnkeep) -> None:
    house = turnkeep.up()
    while "Starting Postgres" not in house.stderr:
        assert house.process.poll() is None
    assert house.end() == 0
    assert not processes_about(str(turnkeep.data))


def test_a_second_owner_of_the_folder_is_refused(turnkeep: Turnkeep) -> None:
    house = turnkeep.up()
    house.url()
    second = turnkeep.run("up", "--data", turnkeep.data, "--port", "0", "--engine", "http://127.0.0.1:9")
    assert (second.returncode, second.stdout) == (1, "")
    assert f"in use by process {house.process.pid}" in second.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_port_is_one_line_and_nothing_is_started(turnkeep: Turnkeep, workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        house = turnkeep.run("up", "--data", turnkeep.data, "--port", port, "--engine", "http://127.0.0.1:9", "--workers", workers)
    assert (house.returncode, house.stdout) == (1, "")
    assert house.stderr == f"turnkeep: port {port} on 127.0.0.1 is in use: stop what listens there, or choose another with --port\n"
    assert not turnkeep.data.exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[edge]\nporto = 1", "porto"),
        ("[edge]\nport = 'many'", "edge.port"),
        ("[edges]\nport = 1", "edges"),
        ("edge = 1", "edge"),
        ("[edge", "Expected ']'"),
    ],
)
def test_settings_that_do_not_fit_are_one_line_and_status_2(turnkeep: Turnkeep, text: str, named: str) -> None:
    file = turnkeep.folder / "turnkeep.toml"
    file.write_text(text)
    house = turnkeep.run("up", "--data", turnkeep.data, "--config", file)
    assert (house.returncode, house.stdout) == (2, "")
    assert house.stderr.startswith(f"turnkeep: {file}: ")
    assert named in house.stderr
    assert house.stderr.count("\n") == 1
    assert not turnkeep.data.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "99999"),
        ("--config", "absent.toml"),
        ("--host", "0.0.0.0"),
        ("--engine", "http://127.0.0.1:9", "--engine-api-key-env", "NO_SUCH_VARIABLE"),
        ("--engine", "127.0.0.1:9"),
        ("--engine", "http://"),
        ("--engine", "http://127.0.0.1:99999"),
        ("--engine", "http://127.0.0.1:9?key=1"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(turnkeep: Turnkeep, arguments: tuple[str, ...]) -> None:
    house = turnkeep.run("up", "--data", turnkeep.data, "--port", "0", *arguments)
    assert (house.returncode, house.stdout, house.stderr.count("\n")) == (2, "", 1)
    assert not turnkeep.data.exists()


def test_insecure_opens_the_house_to_other_machines(turnkeep: Turnkeep) -> None:
    house = turnkeep.up("--host", "0.0.0.0", "--insecure")
    assert status_of(f"{house.url()}/healthz") == 200


def test_with_keys_the_two_lines_present_one(turnkeep: Turnkeep) -> None:
    house = turnkeep.up("--host", "0.0.0.0", environ={"TURNKEEP_API_KEYS_ANN": "sk-1"})
    assert "$TURNKEEP_API_KEY" in house.line_with("curl")


def test_a_flag_beats_the_environment_which_beats_the_file(turnkeep: Turnkeep, server: str) -> None:
    file = turnkeep.folder / "turnkeep.toml"
    file.write_text("[edge]\nhost = '192.0.2.1'\n[history]\ndatabase_url = 'postgresql://192.0.2.1/absent'\n")
    with fresh_database(server) as dsn:
        house = turnkeep.up("--config", file, "--host", "127.0.0.1", environ={"TURNKEEP_HISTORY_DATABASE_URL": dsn})
        assert house.url().startswith("http://127.0.0.1:")
        house.end()
    assert [entry.name for entry in turnkeep.data.iterdir()] == ["sealing.secret"]


def test_workers_share_the_port_and_a_killed_one_comes_back(turnkeep: Turnkeep) -> None:
    house = turnkeep.up("--workers", "2")
    url = house.url()
    workers = workers_of(house.process.pid)
    assert len(workers) == 2
    os.kill(min(workers), signal.SIGKILL)
    while _is_alive(min(workers)):  # until then the kernel may still give it connections, which are reset
        time.sleep(0.01)
    while len(now := workers_of(house.process.pid)) < 2 or now == workers:
        assert status_of(f"{url}/healthz") == 200
    assert house.end() == 0
    assert not processes_about(str(turnkeep.data))


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def workers_of(parent: int) -> set[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(child) for child in children} & processes_about("launcher.command\0serve")
