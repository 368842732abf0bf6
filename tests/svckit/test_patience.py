"""How long a wait may take, told by a clock that stands still unless a test moves it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from svckit.patience import Patience


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is what a test says it is."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    async def pass_by(self, seconds: float) -> None:
        """Lets time pass, and what is due then happen."""
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


def played(story: Callable[[Clock], Awaitable[None]]) -> None:
    clock = Clock()
    with asyncio.Runner(loop_factory=lambda: clock) as runner:
        runner.run(story(clock))  # type: ignore[arg-type]


class Waiting:
    """Somebody who waits, again and again, and is told when that takes too long."""

    def __init__(self, clock: Clock, first: float, later: float) -> None:
        self.told = 0
        self._clock = clock
        self.patience = Patience(first, later)
        self.patience.begin(self.tell)

    def tell(self) -> None:
        self.told += 1

    async def waits_in_vain(self, seconds: float) -> None:
        """It waits, and is told once these seconds are over, not before."""
        self.begins()
        for _ in range(9):
            await self._clock.pass_by(seconds / 10)
        await self._clock.pass_by(seconds / 10 - 0.1)
        assert self.told == 0
        await self._clock.pass_by(0.2)
        assert self.told == 1

    def begins(self) -> None:
        self.patience.since = self._clock.time()

    def ends(self) -> None:
        self.patience.since = None


@contextmanager
def waiting(clock: Clock, first: float, later: float = 1000.0) -> Iterator[Waiting]:
    somebody = Waiting(clock, first, later)
    yield somebody
    somebody.patience.close()


def test_a_wait_is_told_of_when_its_seconds_are_over_and_not_before_and_once() -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, 10) as somebody:
            await somebody.waits_in_vain(10)
            await clock.pass_by(100)
            assert somebody.told == 1

    played(story)


def test_many_waits_may_take_longer_together_than_one_of_them_may() -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, 10) as somebody:
            for _ in range(5):
                somebody.begins()
                await clock.pass_by(7)
                somebody.ends()
            await somebody.waits_in_vain(10)

    played(story)


def test_time_between_two_waits_counts_for_neither() -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, 10) as somebody:
            somebody.begins()
            await clock.pass_by(1)
            somebody.ends()
            await clock.pass_by(100)
            await somebody.waits_in_vain(10)

    played(story)


@pytest.mark.parametrize("first", [3.0, 5.0, 100.0])
def test_later_waits_have_a_bound_of_their_own(first: float) -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, first, 5) as somebody:
            somebody.begins()
            await clock.pass_by(1)
            somebody.ends()
            somebody.patience.go_on()
            for _ in range(3):
                somebody.begins()
                await clock.pass_by(4.9)
                somebody.ends()
            await somebody.waits_in_vain(5)

    played(story)


@pytest.mark.parametrize("first", [3.0, 5.0, 100.0])
def test_the_first_wait_has_its_own_bound_however_short_the_later_ones_are(first: float) -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, first, 2) as somebody:
            await somebody.waits_in_vain(first)

    played(story)


def test_whoever_waits_no_more_is_told_nothing() -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, 10) as somebody:
            somebody.begins()
        await clock.pass_by(100)
        assert somebody.told == 0

    played(story)


@pytest.mark.parametrize("idle", [0.0, 1.0, 4.0, 1000.0])
@pytest.mark.parametrize(("first", "later"), [(10.0, 3.0), (3.0, 10.0)])
def test_the_next_user_has_all_of_its_own_time_wherever_the_last_one_left_off(first: float, later: float, idle: float) -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, first, later) as somebody:
            somebody.begins()
            await clock.pass_by(1)
            somebody.patience.go_on()
            await clock.pass_by(1)
            somebody.patience.end()
            await clock.pass_by(idle)
            assert somebody.told == 0
            somebody.patience.begin(somebody.tell)
            await somebody.waits_in_vain(first)

    played(story)


def test_a_user_that_was_told_leaves_nothing_to_the_next() -> None:
    async def story(clock: Clock) -> None:
        with waiting(clock, 10, 3) as somebody:
            await somebody.waits_in_vain(10)
            somebody.patience.end()
            somebody.told = 0
            somebody.patience.begin(somebody.tell)
            await clock.pass_by(100)
            assert somebody.told == 0
            await somebody.waits_in_vain(10)

    played(story)
