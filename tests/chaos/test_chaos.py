"""Three rounds of `make chaos`, which plays fifty."""

import random

import pytest

from tests.chaos.rounds import play

ROUNDS = 3


@pytest.mark.timeout(240)
async def test_nothing_that_was_acknowledged_is_lost() -> None:
    """B133, B012, B006: kill -9 of a service, of Postgres and of everything at once; what a client saw completed is there, and whole."""
    told: list[str] = []
    outcomes = await play(ROUNDS, random.randrange(1 << 30), told.append)

    assert [outcome.faults for outcome in outcomes] == [()] * ROUNDS, "\n".join(told)
    assert all(outcome.acknowledged and outcome.read for outcome in outcomes)
