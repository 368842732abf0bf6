"""The benchmark runs from end to end and its report is whole. Nothing here asks how fast anything was: that is for `make bench`."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.mcp_loop import MiscountedError, check
from bench.mcp_server import Counts
from bench.measure import SMOKE
from bench.report import Row, rows_of, table

ROOT = Path(__file__).parents[2]


async def quick_run(results: Path, environ: Mapping[str, str] | None = None) -> tuple[int | None, str, str]:
    """Exit status and output of `python -m bench --quick`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", "--quick", "--results", str(results)),
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.timeout(180)
async def test_a_quick_run_reports_every_row_and_keeps_the_raw_numbers(tmp_path: Path) -> None:
    status, output, errors = await quick_run(tmp_path)
    assert status == 0, errors
    (raw,) = tmp_path.glob("*.json")
    kept = json.loads(raw.read_text())
    rows = rows_of(kept["found"], SMOKE)
    assert table(rows) in output
    assert [row["name"] for row in kept["rows"]] == [row.name for row in rows]
    assert all(row.turnkeep for row in rows)
    assert {row.verdict for row in rows if row.limit is not None} <= {"ok", "OVER"}
    lanes = {"engine", "pass_through", "stateful", "relay", "three_stateful", "three_relay"}
    assert set(kept["found"]["full_speed"]) == set(kept["found"]["paced"]) == lanes
    loop = kept["found"]["mcp_loop"]
    assert {calls: {name: len(turns) for name, turns in lane.items()} for calls, lane in loop["lanes"].items()} == {
        calls: {"direct": SMOKE.mcp_repeats, "turnkeep": SMOKE.mcp_repeats} for calls in ("0", "1", "8")
    }
    assert loop["new_connections"] == 0


async def test_a_run_without_one_of_its_targets_fails_and_names_it(tmp_path: Path) -> None:
    status, output, errors = await quick_run(tmp_path, {"TURNKEEP_EDGE_HOST": "0.0.0.0"})
    assert status == 1
    assert "Turnkeep is missing" in errors
    assert not output
    assert not list(tmp_path.iterdir())


def test_a_figure_past_its_limit_is_over_and_one_at_it_is_not() -> None:
    assert [Row("r", value=value, limit=1.5).verdict for value in (1.4, 1.5, 1.6, None)] == ["ok", "ok", "OVER", ""]
    assert Row("printed only", value=3.0).verdict == ""


def test_a_loop_that_opens_a_connection_or_misses_a_call_fails_the_run() -> None:
    before = Counts(connections=3, calls=10)
    check(before, Counts(connections=3, calls=19), expected_calls=9)
    for after in (Counts(connections=4, calls=19), Counts(connections=3, calls=18), Counts(connections=3, calls=20)):
        with pytest.raises(MiscountedError):
            check(before, after, expected_calls=9)
