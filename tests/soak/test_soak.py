"""A few seconds of `make soak`, which runs for half an hour in each shape."""

import random

import pytest

from tests.soak.census import CONNECTIONS, Census
from tests.soak.house import MOST_CONNECTIONS
from tests.soak.memory import slope_of
from tests.soak.runs import Plan, soak

SHORT = Plan(seconds=3.0, warm_up_seconds=2.0, seconds_between_kills=1.0, memory=False, settle_seconds=15.0, most_errors=1.0)


async def test_nothing_is_left_behind_by_mixed_traffic_with_faults() -> None:
    told: list[str] = []
    checks = await soak("one", SHORT, random.randrange(1 << 30), told.append)

    assert [check for check in checks if check.holds is False] == [], "\n".join(told)
    assert sum(check.holds is True for check in checks) >= 15


def test_a_count_that_is_higher_than_before_is_named_but_pools_may_fill() -> None:
    before = Census({"work rows": 0, "files": 4, CONNECTIONS: 3}, {})
    after = Census({"work rows": 1, "files": 3, "gauge": 1, CONNECTIONS: MOST_CONNECTIONS}, {"trees": 9})
    assert before.exceeded_by(after) == ["work rows", "gauge"]


def test_the_slope_of_memory_is_that_of_the_line_through_its_samples() -> None:
    turns = [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]
    assert slope_of(turns, [50 + turn / 500 for turn in turns]) == pytest.approx(2.0)
    assert slope_of(turns[:3], [1.0, 2.0, 3.0]) is None
    assert slope_of([7.0] * 6, turns) is None
