"""The bytes that loads share: in order, bounded, and whole again however a holder leaves."""

import asyncio
import random

import pytest

from history_svc.budget import ByteBudget
from history_svc.errors import HistoryOverloaded


async def test_who_finds_room_goes_in_and_gives_it_back() -> None:
    budget = ByteBudget(10, 1)

    async with budget.hold(6) as held:
        assert budget.free == 4
        held.shrink(2)
        assert budget.free == 8
        held.shrink(5)  # never grows
        assert budget.free == 8

    assert budget.free == 10


async def test_more_than_all_is_all() -> None:
    budget = ByteBudget(10, 1)

    async with budget.hold(99):
        assert budget.free == 0

    assert budget.free == 10


async def test_who_waits_is_served_in_order() -> None:
    budget = ByteBudget(10, 5)
    served: list[int] = []

    async def load(size: int) -> None:
        async with budget.hold(size):
            served.append(size)

    async with budget.hold(10):
        waiting = [asyncio.create_task(load(size)) for size in (8, 1, 9, 2)]
        await asyncio.sleep(0)
        assert served == []
    await asyncio.gather(*waiting)

    assert (served, budget.free) == ([8, 1, 9, 2], 10)


async def test_who_waits_too_long_is_refused_and_blocks_nobody() -> None:
    budget = ByteBudget(10, 0.01)

    async with budget.hold(5):
        with pytest.raises(HistoryOverloaded):
            async with budget.hold(6):
                pass
        async with budget.hold(5):
            assert budget.free == 0

    assert budget.free == 10


async def test_who_leaves_lets_those_behind_in() -> None:
    budget = ByteBudget(10, 5)

    async def load(size: int) -> None:
        async with budget.hold(size):
            pass

    async with budget.hold(5):
        large, small = asyncio.create_task(load(8)), asyncio.create_task(load(5))
        await asyncio.sleep(0)
        large.cancel()
        await small

    assert budget.free == 10


async def test_the_budget_is_whole_after_callers_left_at_any_moment__b144() -> None:
    chance = random.Random(3)
    budget = ByteBudget(100, 0.002)

    async def load() -> None:
        async with budget.hold(chance.randint(1, 60)) as held:
            await asyncio.sleep(chance.choice((0, 0.001)))
            held.shrink(chance.randint(0, 30))
            await asyncio.sleep(0)

    async def leaves() -> None:
        task = asyncio.create_task(load())
        for _ in range(chance.randint(0, 5)):
            await asyncio.sleep(0)
        if chance.random() < 0.6:
            task.cancel()
        await asyncio.wait([task])

    for _ in range(20):
        await asyncio.gather(*(leaves() for _ in range(30)))

    assert budget.free == 100
    async with budget.hold(100):
        assert budget.free == 0
