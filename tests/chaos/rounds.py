"""Rounds: load, a kill at a random moment, a recovery, and a look at everything that was acknowledged."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from tests.chaos.clients import Book, Client
from tests.chaos.houses import House, open_three, open_up
from tests.chaos.verify import Verifier
from tests.fakes.engine import FakeEngine

CLIENTS = 6
SECONDS_PER_TOKEN = 0.004
LONGEST_WAIT = 1.2
COME_BACK_SECONDS = 60.0
ROUND_SECONDS = 150.0
OPENINGS: dict[str, Callable[[str], AbstractAsyncContextManager[House]]] = {"three": open_three, "up": open_up}
# Each shape with what is killed in it; a run of n rounds takes the first n, over and over.
PLAN = (
    ("three", "history"),
    ("up", "everything"),
    ("three", "postgres"),
    ("three", "orchestrator"),
    ("up", "postgres"),
    ("three", "edge"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one round."""

    number: int
    house: str
    target: str
    acknowledged: int
    read: int
    strays: int
    errors: int
    faults: tuple[str, ...]

    @property
    def line(self) -> str:
        """The round in one line, and a line for each fault."""
        counted = f"{self.acknowledged} acknowledged, {self.read} read back, {self.strays} stored unseen, {self.errors} errors"
        told = f"round {self.number}: {self.house}, kill -9 {self.target}: {counted}: {'FAILED' if self.faults else 'ok'}"
        return "\n".join([told, *(f"    {fault}" for fault in self.faults[:10])])


async def play(rounds: int, seed: int, tell: Callable[[str], None]) -> list[Outcome]:
    """Plays so many rounds, those of one shape one after the other in one house."""
    chance = random.Random(seed)
    planned = [PLAN[number % len(PLAN)] for number in range(rounds)]
    outcomes: list[Outcome] = []
    async with FakeEngine(strict=True, seconds_per_token=SECONDS_PER_TOKEN) as engine:
        for shape, opening in OPENINGS.items():
            targets = [target for name, target in planned if name == shape]
            if targets:
                async with opening(engine.url) as house:
                    outcomes += await _in_house(house, targets, len(outcomes), engine, chance, tell)
    return outcomes


async def _in_house(
    house: House, targets: list[str], played: int, engine: FakeEngine, chance: random.Random, tell: Callable[[str], None]
) -> list[Outcome]:
    book, known = Book(), set[str]()
    outcomes: list[Outcome] = []
    for number, target in enumerate(targets, start=played + 1):
        last = number == played + len(targets)
        async with asyncio.timeout(ROUND_SECONDS):
            outcomes.append(await _round(number, house, target, book, known, engine, chance, everything=last))
        tell(outcomes[-1].line)
    return outcomes


async def _round(
    number: int, house: House, target: str, book: Book, known: set[str], engine: FakeEngine, chance: random.Random, *, everything: bool
) -> Outcome:
    engine.forget()
    before, errors = set(book.turns), book.errors
    clients = [Client(number * 100 + place, house.url(), book, chance) for place in range(CLIENTS)]
    faults = await _under_load(house, target, clients, chance)
    fresh = [turn for turn_id, turn in book.turns.items() if everything or turn_id not in before]
    tips = [client.tip for client in clients if client.tip]
    findings = await Verifier(house.url(), house.dsn(), book, engine).verify(fresh, tips, known)
    faults += book.faults + findings.faults + [f"a strict engine refused: {got.refused}" for got in engine.posts if got.refused]
    book.faults = []
    acknowledged = len(book.turns) - len(before)
    return Outcome(number, house.name, target, acknowledged, findings.read, findings.strays, book.errors - errors, tuple(faults))


async def _under_load(house: House, target: str, clients: list[Client], chance: random.Random) -> list[str]:
    """Runs the clients while the target dies and comes back; they must all get on afterwards."""
    stop = asyncio.Event()
    running = [asyncio.create_task(client.run(stop)) for client in clients]
    try:
        await asyncio.sleep(chance.uniform(0.1, LONGEST_WAIT))
        house.kill(target)
        await asyncio.sleep(chance.uniform(0, 0.3))
        await house.recover()
        return await _all_get_on(clients)
    finally:
        stop.set()
        await asyncio.gather(*running)


async def _all_get_on(clients: list[Client]) -> list[str]:
    had = {client.number: client.acknowledged for client in clients}
    try:
        async with asyncio.timeout(COME_BACK_SECONDS):
            while any(client.acknowledged == had[client.number] for client in clients):
                await asyncio.sleep(0.02)
    except TimeoutError:
        return ["some clients got no turn done after the house was ready again"]
    return []
