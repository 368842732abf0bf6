"""`turnkeep migrate`, `turnkeep doctor` and the arguments."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from launcher.command import main
from launcher.first_conversation import first_conversation
from launcher.workers import as_environment
from tests.fakes.engine import FakeEngine
from tests.launcher.process import Turnkeep
from tests.postgres import fresh_database


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TURNKEEP_HISTORY_DATABASE_URL", "TURNKEEP_ENGINE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_migrate_applies_once(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_database(server) as dsn:
        assert main(["migrate", "--database-url", dsn]) == 0
        assert "applied 0001" in capsys.readouterr().out
        assert main(["migrate", "--database-url", dsn]) == 0
        assert capsys.readouterr().out == "the schema is up to date\n"


def test_migrate_needs_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate"]) == 2
    assert "--database-url" in capsys.readouterr().err


def test_migrate_says_in_one_line_that_the_database_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--database-url", "postgresql://postgres@127.0.0.1:9/absent"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, tuple[bool, str]]]:
    status = main(["doctor", "--json", *arguments])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] == (status == 0)
    return status, {finding["name"]: (finding["ok"], finding["detail"]) for finding in report["findings"]}


async def test_the_doctor_finds_nothing_wrong_where_all_is_well(turnkeep: Turnkeep, server: str) -> None:
    async with FakeEngine() as engine:
        with fresh_database(server) as dsn:
            report = await run_doctor(turnkeep, "--engine", f"{engine.url}/v1", "--database-url", dsn, "--port", "0")
    assert report["ok"] is True
    assert {finding["name"] for finding in report["findings"]} == {"versions", "settings", "database", "engine", "port"}


async def run_doctor(turnkeep: Turnkeep, *arguments: str) -> dict[str, object]:
    done = await asyncio.to_thread(turnkeep.run, "doctor", "--json", *arguments)
    return json.loads(done.stdout)


def test_the_doctor_tells_each_fault_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, findings = examine(
            capsys,
            *("--engine", "http://127.0.0.1:9", "--database-url", "postgresql://postgres@127.0.0.1:9/absent"),
            *("--port", str(taken.getsockname()[1]), "--data", str(tmp_path)),
        )
    assert status == 1
    assert {name for name, (ok, _) in findings.items() if not ok} == {"engine", "database", "port"}


def test_the_doctor_names_a_setting_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "turnkeep.toml").write_text("[edge]\nporto = 1")
    status, findings = examine(capsys, "--config", str(tmp_path / "turnkeep.toml"))
    assert (status, findings["settings"][0]) == (1, False)


def test_the_doctor_names_an_engine_without_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    _, findings = examine(capsys, "--engine", "127.0.0.1:9")
    ok, detail = findings["engine"]
    assert (ok, "engine.url" in detail) == (False, True)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[history]\nread_connections = 0", "history.read_connections"),
        ("[history]\npool_wait_seconds = -1.0", "history.pool_wait_seconds"),
        ("[orchestrator]\nmax_rounds = 0", "orchestrator.max_rounds"),
        ("[orchestrator]\ngap_timeout_seconds = 0.0", "orchestrator.gap_timeout_seconds"),
    ],
)
def test_numbers_that_nothing_can_work_with_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, key: str) -> None:
    (tmp_path / "turnkeep.toml").write_text(text)
    _, findings = examine(capsys, "--config", str(tmp_path / "turnkeep.toml"))
    assert key in findings["settings"][1]


def test_the_doctor_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examine(capsys, "--data", str(tmp_path / "data"), "--port", "0")
    assert not (tmp_path / "data").exists()


def test_the_doctor_speaks_to_people_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--data", str(tmp_path), "--port", "0"])
    assert "database: embedded Postgres" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["sing"], ["serve"], ["serve", "kitchen"], ["up", "--workers", "0"]])
def test_arguments_that_do_not_fit_end_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("turnkeep ")


def test_flags_become_the_environment_of_a_worker() -> None:
    flags = {"edge": {"port": 1, "reuse_port": True}, "engine": {"url": "http://e"}, "sealing": {"secrets": ["a", "b"]}}
    assert as_environment(flags) == {
        "TURNKEEP_EDGE_PORT": "1",
        "TURNKEEP_EDGE_REUSE_PORT": "true",
        "TURNKEEP_ENGINE_URL": "http://e",
        "TURNKEEP_SEALING_SECRETS": "a,b",
    }


def test_a_model_with_odd_characters_stays_one_argument() -> None:
    for line in first_conversation("http://127.0.0.1:1", 'my\'ID "m"', with_key=False):
        assert r"""my'\''ID \"m\"""" in line
