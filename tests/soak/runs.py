"""A soak from its start to its verdict: warm up, count, traffic with faults, settle, count again."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp
import psycopg

from tests.end_to_end.gateway import UNFORESEEN
from tests.soak.census import Census, take
from tests.soak.house import House, open_house
from tests.soak.memory import Memory, sampled
from tests.soak.traffic import CALLERS, Caller, Tally, poke

WARM_UP_SECONDS = 60.0
LOOK_SECONDS = 0.5
FORGET_SECONDS = 1.0
BUSY = ("work rows", "leases held", "event logs not ended", "turnkeep_orchestrator_turns_in_flight")
MOST_SLOPE = 1.0
KILL = """
    select pg_terminate_backend(pid) from (
      select pid from pg_stat_activity
      where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
      order by random() limit %s) victim"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a soak is, and what is judged: the slope of memory takes more turns than a short one has, and errors depend on the machine.

    `most_errors` is a share of all turns.
    """

    seconds: float
    warm_up_seconds: float
    seconds_between_kills: float
    settle_seconds: float = 90.0
    most_errors: float = 0.05
    memory: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. `holds` is None for what is only told."""

    name: str
    before: str
    after: str
    allowed: str
    holds: bool | None


def plan_for(minutes: float) -> Plan:
    """The plan of a run of so many minutes of traffic."""
    seconds = minutes * 60
    return Plan(seconds, min(WARM_UP_SECONDS, seconds / 5), 3.0)


async def soak(shape: str, plan: Plan, seed: int, tell: Callable[[str], None]) -> list[Check]:
    """Plays one shape."""
    chance = random.Random(seed)
    tally, memory = Tally(), dict[str, Memory]()
    async with open_house(shape) as house:
        tell(f"{shape}: warming up for {plan.warm_up_seconds:.0f} s")
        await _traffic(house, plan, plan.warm_up_seconds, Tally(), chance)
        before = await _calm(house, plan.settle_seconds)
        tell(f"{shape}: traffic for {plan.seconds:.0f} s")
        async with _alongside(sampled(house, lambda: tally.turns, memory)):
            await _traffic(house, plan, plan.seconds, tally, chance)
        after = await _settled(house, before, plan.settle_seconds)
        tell(f"{shape}: {tally.turns} turns, {tally.well} ended well, errors {tally.errors}, uses {tally.kinds}")
        logged = house.gateway.log_bytes()
    checks = _counts(before, after) + _behaviour(tally, logged, plan.most_errors, tell)
    return checks + (_slopes(memory) if plan.memory else [])


async def _traffic(house: House, plan: Plan, seconds: float, tally: Tally, chance: random.Random) -> None:
    """Lets callers and faults loose for a time; the faults end first."""
    stop = asyncio.Event()
    callers = [Caller(house.gateway.url, house.mcp.url, tally, random.Random(chance.random())) for _ in range(CALLERS)]
    async with _alongside(_forgetting(house)), asyncio.TaskGroup() as running:
        for caller in callers:
            running.create_task(caller.run(stop))
        async with _alongside(_killing(house, plan.seconds_between_kills, tally, chance)):
            await asyncio.sleep(seconds * 0.9)
        await asyncio.sleep(seconds * 0.1)
        stop.set()


@asynccontextmanager
async def _alongside(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Runs work as long as the block; what it dies of is ours to see."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _killing(house: House, seconds: float, tally: Tally, chance: random.Random) -> None:
    """Ends connections to the database, one, some or all, over and over."""
    async with await psycopg.AsyncConnection.connect(house.dsn, autocommit=True) as hand:
        while True:
            await asyncio.sleep(chance.uniform(0.5, 1.5) * seconds)
            tally.killed += (await hand.execute(KILL, [chance.choice((1, 1, 1, 3, 100))])).rowcount


async def _forgetting(house: House) -> None:
    while True:
        await asyncio.sleep(FORGET_SECONDS)
        house.forget()


async def _calm(house: House, seconds: float) -> Census:
    """The counts once they stand still, or when that takes too long."""
    await house.cut_idle_connections()
    deadline = time.monotonic() + seconds
    last: Census | None = None
    while True:
        now = await _looked(house)
        if (last is not None and now.checked == last.checked and _idle(now)) or time.monotonic() > deadline:
            return now
        last = now


async def _settled(house: House, before: Census, seconds: float) -> Census:
    """The counts once they are no higher than before, or when that takes too long."""
    await house.cut_idle_connections()
    deadline = time.monotonic() + seconds
    while True:
        now = await _looked(house)
        if not before.exceeded_by(now) or time.monotonic() > deadline:
            return now


async def _looked(house: House) -> Census:
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        await poke(house.gateway.url)
    await asyncio.sleep(LOOK_SECONDS)
    return await take(house)


def _idle(census: Census) -> bool:
    return not any(census.checked[name] for name in BUSY)


def _counts(before: Census, after: Census) -> list[Check]:
    exceeded = before.exceeded_by(after)
    checked = [
        Check(name, _number(before.checked.get(name, 0)), _number(count), f"<= {_number(before.allowed(name))}", name not in exceeded)
        for name, count in after.checked.items()
    ]
    told = [Check(name, _number(before.told.get(name, 0)), _number(count), "", None) for name, count in after.told.items()]
    return checked + told


def _behaviour(tally: Tally, logged: bytes, most_errors: float, tell: Callable[[str], None]) -> list[Check]:
    for fault in tally.faults:
        tell(f"    {fault}")
    unforeseen = sum(logged.count(words) for words in UNFORESEEN)
    if unforeseen:
        start = min(logged.find(words) for words in UNFORESEEN if words in logged)
        tell(logged[max(0, start - 1000) : start + 4000].decode(errors="replace"))
    errors = sum(tally.errors.values())
    most = max(10, int(most_errors * tally.turns))
    return [
        Check("turns that ended well", "", str(tally.well), ">= 1", tally.well > 0),
        Check("connections to the database that were killed", "", str(tally.killed), ">= 1", tally.killed > 0),
        Check("errors under faults", "", str(errors), f"<= {most}", errors <= most),
        Check("what must not be answered", "", str(len(tally.faults)), "<= 0", not tally.faults),
        Check("logged and unforeseen", "", str(unforeseen), "<= 0", not unforeseen),
    ]


def _slopes(memory: dict[str, Memory]) -> list[Check]:
    return [_slope(name, one) for name, one in memory.items()]


def _slope(name: str, memory: Memory) -> Check:
    slope = memory.slope
    ends = f"{memory.megabytes[0]:.1f} MB", f"{memory.megabytes[-1]:.1f} MB"
    if slope is None:
        return Check(f"{name}: resident memory (too few samples for a slope)", *ends, "", None)
    return Check(f"{name}: resident memory, {slope:+.2f} MB per 1,000 turns", *ends, f"< {MOST_SLOPE:g}", slope < MOST_SLOPE)


def _number(count: float) -> str:
    return f"{count:g}"
