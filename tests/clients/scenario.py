"""One thing that one client is asked to do, and what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.clients.house import Failure, House
from tests.fakes.scripts import Script

DEADLINE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`act` runs the client and raises where something is not as it should be; `plays` is what the model says, before it only obeys."""

    client: str
    name: str
    act: Callable[[House], Awaitable[None]]
    plays: tuple[Script, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.client}: {self.name}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a scenario went; without a fault it went well."""

    scenario: Scenario
    seconds: float
    fault: str | None


async def play(scenario: Scenario, house: House) -> Outcome:
    """Runs one scenario within its deadline."""
    house.engine.forget()
    house.engine.play(*scenario.plays)
    log, started = len(house.gateway.log_bytes()), time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await scenario.act(house)
        _check_refusals(house)
        house.check_log(log)
        fault = None
    except TimeoutError:
        fault = f"it did not end within {DEADLINE_SECONDS:.0f} s"
    except Failure as failure:
        fault = _with_refusals(house, str(failure))
    return Outcome(scenario, time.monotonic() - started, fault)


def _check_refusals(house: House) -> None:
    refusals = [received.refused for received in house.engine.posts if received.refused]
    if refusals:
        raise Failure(f"the engine refused what the gateway sent: {refusals}")


def _with_refusals(house: House, fault: str) -> str:
    refusals = [received.refused for received in house.engine.posts if received.refused]
    return f"{fault}\nthe engine refused: {refusals}" if refusals else fault
