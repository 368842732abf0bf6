"""The memory of a gateway's processes over its turns: samples, and the slope of a line through them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.soak.census import processes_of, status_of
from tests.soak.house import House

SAMPLE_SECONDS = 10.0
FEWEST_SAMPLES = 6
WARM_UP = 1 / 4
"""The first share of the samples, in which caches and the allocator fill up."""


@dataclass(slots=True)
class Memory:
    """Samples of one process: how many turns there had been, and its resident MB."""

    turns: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)

    @property
    def slope(self) -> float | None:
        """MB per 1,000 turns behind the warm-up; None where that would be a guess."""
        start = int(len(self.turns) * WARM_UP)
        return slope_of(self.turns[start:], self.megabytes[start:])


def slope_of(turns: Sequence[float], megabytes: Sequence[float]) -> float | None:
    """The least-squares slope per 1,000 turns."""
    if len(turns) < FEWEST_SAMPLES:
        return None
    mean_turns, mean_megabytes = sum(turns) / len(turns), sum(megabytes) / len(megabytes)
    spread = sum((turn - mean_turns) ** 2 for turn in turns)
    if not spread:
        return None
    shared = sum((turn - mean_turns) * (size - mean_megabytes) for turn, size in zip(turns, megabytes, strict=True))
    return 1000 * shared / spread


async def sampled(house: House, turns: Callable[[], int], into: dict[str, Memory]) -> None:
    """Takes samples until it is cancelled."""
    while True:
        for name, pid in processes_of(house).items():
            memory = into.setdefault(name, Memory())
            memory.turns.append(float(turns()))
            memory.megabytes.append(status_of(pid, "VmRSS") / 1024)
        await asyncio.sleep(SAMPLE_SECONDS)
