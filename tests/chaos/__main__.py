"""`python -m tests.chaos --rounds 50 [--seed N]`: a line for each round, then `N passed, N failed`; exit status 1 if any failed."""

import argparse
import asyncio
import sys
import time

from tests.chaos.rounds import play


def main() -> int:
    """Plays the rounds; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill services and Postgres under load; lose nothing.")
    parser.add_argument("--rounds", type=int, default=50, help="how many kills (default: 50)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the moments of the kills, to be played again")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    outcomes = asyncio.run(play(given.rounds, given.seed, lambda line: print(line, flush=True)))
    failed = sum(bool(outcome.faults) for outcome in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
