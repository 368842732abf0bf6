"""`python -m bench`: starts all targets, measures them, prints the table and leaves the raw numbers beside it.

Exit status 1 when a target is missing or does not answer as it should, or a session with the MCP server was not kept; a budget that is
exceeded is said in the table.
"""

import argparse
import asyncio
import gc
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench.load import LoadError
from bench.measure import SMOKE, Sizes, measure
from bench.report import OVER, Row, rows_of, table
from bench.targets import ROOT, TargetMissing, open_stand
from launcher.errors import LaunchError
from svckit import logs

RESULTS = ROOT / "bench" / "results"


def main() -> int:
    """Runs the benchmark; gives the exit status."""
    arguments = _parser().parse_args()
    logs.configure("warning", "console")
    gc.disable()  # the load's own pauses would be measured as delays
    started = time.monotonic()
    try:
        found, rows = asyncio.run(_run(SMOKE if arguments.quick else Sizes()))
    except (TargetMissing, LaunchError, LoadError) as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    print(table(rows))
    raw = _keep(arguments.results, found, rows)
    over = sum(row.verdict == OVER for row in rows)
    print(f"\n{over or 'no'} budgets exceeded; {time.monotonic() - started:.0f} s; raw numbers in {raw}")
    return 0


async def _run(sizes: Sizes) -> tuple[dict[str, object], list[Row]]:
    with tempfile.TemporaryDirectory(prefix="tkb-") as folder:
        _say("starting the targets ...")
        async with open_stand(Path(folder)) as stand:
            found = await measure(stand, sizes, _say)
    return found, rows_of(found, sizes)


def _keep(folder: Path, found: dict[str, object], rows: list[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    verdicts = [{"name": row.name, "value": row.value, "limit": row.limit, "verdict": row.verdict} for row in rows]
    raw = folder / time.strftime("%Y%m%d-%H%M%S.json")
    data = msgspec.json.encode({"machine": machine, "rows": verdicts, "found": found})
    raw.write_bytes(msgspec.json.format(data, indent=1))
    return raw


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Engine, pass-through and Turnkeep in one run, against budgets.")
    parser.add_argument("--quick", action="store_true", help="a smoke run that shows that everything works; its numbers mean little")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the raw numbers go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
