"""`python -m tests.clients [--only WORDS] [--list]`: a line for each scenario, a table, then `N passed, N failed`.

The exit status is 1 if any failed, or if there was none.
"""

import argparse
import asyncio
import sys

from tests.clients import codex_runs, sdks
from tests.clients.house import open_house
from tests.clients.installed import install
from tests.clients.scenario import Outcome, Scenario, play

SCENARIOS = (*codex_runs.SCENARIOS, *sdks.SCENARIOS)


def main() -> int:
    """Plays the scenarios; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description="The real clients against a Turnkeep on loopback.")
    parser.add_argument("--only", default="", help="play only the scenarios whose title has these words, as 'codex (http): shell'")
    parser.add_argument("--list", action="store_true", help="show the scenarios and play none")
    given = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if given.only.lower() in scenario.title.lower()]
    if given.list:
        print(*(scenario.title for scenario in chosen), sep="\n")
        return 0
    outcomes = asyncio.run(_play_all(chosen))
    failed = sum(outcome.fault is not None for outcome in outcomes)
    print(_table(outcomes), f"{len(outcomes) - failed} passed, {failed} failed", sep="\n\n", flush=True)
    return 1 if failed or not outcomes else 0


async def _play_all(scenarios: list[Scenario]) -> list[Outcome]:
    outcomes = []
    async with open_house(install()) as house:
        for scenario in scenarios:
            outcome = await play(scenario, house)
            outcomes.append(outcome)
            print(f"{_word(outcome)} {scenario.title}" + (f"\n{outcome.fault}\n" if outcome.fault else ""), flush=True)
    return outcomes


def _table(outcomes: list[Outcome]) -> str:
    rows = [("client", "scenario", "outcome", "seconds")]
    rows += [(one.scenario.client, one.scenario.name, _word(one), f"{one.seconds:.1f}") for one in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _word(outcome: Outcome) -> str:
    return "failed" if outcome.fault else "ok"


if __name__ == "__main__":
    sys.exit(main())
