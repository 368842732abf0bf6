"""How long a block may wait, told by a clock that stands still unless a test moves it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

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


async def begun(patience: Patience, event: asyncio.Event) -> asyncio.Task[str]:
    """A wait that has begun."""
    wait = asyncio.create_task(_waited(patience, event))
    await asyncio.sleep(0)
    return wait


async def _waited(patience: Patience, event: asyncio.Event) -> str:
    try:
        with patience:
            await event.wait()
    except TimeoutError:
        return "too long"
    return "in time"


def test_a_wait_is_broken_off_when_its_seconds_are_over_and_not_before() -> None:
    async def story(clock: Clock) -> None:
        with closing(Patience(seconds=10)) as patience:
            wait = await begun(patience, asyncio.Event())
            await clock.pass_by(9.9)
            assert not wait.done()
            await clock.pass_by(0.2)
            assert await wait == "too long"

    played(story)


def test_many_waits_may_take_longer_together_than_one_of_them_may() -> None:
    async def story(clock: Clock) -> None:
        with closing(Patience(seconds=10)) as patience:
            for _ in range(5):
                event = asyncio.Event()
                wait = await begun(patience, event)
                await clock.pass_by(7)
                event.set()
                assert await wait == "in time"
            wait = await begun(patience, asyncio.Event())
            await clock.pass_by(9.9)
            assert not wait.done()
            await clock.pass_by(0.2)
            assert await wait == "too long"

    played(story)


def test_time_between_two_waits_counts_for_neither() -> None:
    async def story(clock: Clock) -> None:
        with closing(Patience(seconds=10)) as patience:
            with patience:
                await clock.pass_by(1)
            await clock.pass_by(100)
            with patience:
                await clock.pass_by(9.9)

    played(story)


def test_a_shorter_bound_counts_from_the_next_wait_on() -> None:
    async def story(clock: Clock) -> None:
        with closing(Patience(seconds=100)) as patience:
            with patience:
                await clock.pass_by(1)
            patience.seconds = 5
            wait = await begun(patience, asyncio.Event())
            await clock.pass_by(4.9)
            assert not wait.done()
            await clock.pass_by(0.2)
            assert await wait == "too long"

    played(story)


def test_no_wait_goes_on_past_the_end_however_short_it_is() -> None:
    async def story(clock: Clock) -> None:
        with closing(Patience(until=clock.time() + 10)) as patience:
            with patience:
                await clock.pass_by(9)
            wait = await begun(patience, asyncio.Event())
            await clock.pass_by(1.1)
            assert await wait == "too long"
            late = await begun(patience, asyncio.Event())
            await clock.pass_by(0)
            assert await late == "too long"

    played(story)


def test_a_cancellation_from_outside_stays_one() -> None:
    async def story(clock: Clock) -> None:
        with closing(Patience(seconds=10)) as patience:
            wait = await begun(patience, asyncio.Event())
            await clock.pass_by(1)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait

    played(story)
