"""`python -m tests.soak --minutes 30 [--shape one|three|both] [--seed N]`: a table for each shape, then `N passed, N failed`.

The minutes are those of each shape; the exit status is 1 if any check failed.
"""

import argparse
import asyncio
import sys
import time

from tests.soak.house import SHAPES
from tests.soak.runs import Check, plan_for, soak


def main() -> int:
    """Plays the shapes; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Long mixed traffic with faults; nothing may be left behind.")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the traffic of each shape is (default: 30)")
    parser.add_argument("--shape", choices=(*SHAPES, "both"), default="both", help="one process, three, or both one after the other")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what the callers draw from")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    checks: list[Check] = []
    for shape in SHAPES if given.shape == "both" else (given.shape,):
        played = asyncio.run(soak(shape, plan_for(given.minutes), given.seed, lambda line: print(line, flush=True)))
        print(f"\n{_table(shape, played)}\n", flush=True)
        checks += played
    failed = sum(check.holds is False for check in checks)
    passed = sum(check.holds is True for check in checks)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0


def _table(shape: str, checks: list[Check]) -> str:
    rows = [(shape, "before", "after", "allowed", "")]
    rows += [(check.name, check.before, check.after, check.allowed, _word(check)) for check in checks]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _word(check: Check) -> str:
    return {None: "", True: "ok", False: "FAILED"}[check.holds]


if __name__ == "__main__":
    sys.exit(main())
