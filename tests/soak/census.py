"""What a gateway holds at a moment, seen from outside: /proc, its database, its metrics and its files."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psycopg

from tests.end_to_end.gateway import ROOMS
from tests.soak.house import MOST_CONNECTIONS, House

CHECKED_ROWS = {
    "work rows": "select count(*) from work",
    "leases held": "select count(*) from lease where expires_at > clock_timestamp()",
    "leases of nothing": """
        select count(*) from lease
        where subject not in (select conversation_id from conversation) and subject not in (select response_id from work)""",
    "event logs not ended": "select count(*) from event_log where ended_at is null",
}
# Grows with what is stored, or may be left behind by a client that has left.
TOLD_ROWS = {
    "claims not settled": "select count(*) from claim where settled_at is null",
    "claims not settled, of completed turns": """
        select count(*) from claim c join response r on r.tree_key = c.tree_key and r.response_id = split_part(c.response_id, '/', 1)
        where c.settled_at is null and r.status = 'completed'""",
    "trees": "select count(*) from tree",
}
BACKENDS = """
    select count(*) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
CONNECTIONS = "database connections"
_GAUGE = re.compile(r"^# TYPE (turnkeep_\w+(?<!_created)) gauge$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Census:
    """Counts by name: those that may not be higher after the traffic, and those that are told and judged by nobody."""

    checked: Mapping[str, float]
    told: Mapping[str, float]

    def allowed(self, name: str) -> float:
        """The most that a later count may be. Pools fill as they are needed and have a bound of their own."""
        return MOST_CONNECTIONS if name == CONNECTIONS else self.checked.get(name, 0)

    def exceeded_by(self, later: "Census") -> list[str]:
        """The names of later counts that are too high."""
        return [name for name, count in later.checked.items() if count > self.allowed(name)]


async def take(house: House) -> Census:
    """Counts everything now."""
    rows, told, backends = await _database(house.dsn)
    gauges = await _gauges(house.metrics_urls)
    processes = processes_of(house)
    checked = {"processes": float(len(processes)), **rows, CONNECTIONS: backends, **gauges, "files": float(_files(house))}
    for name, pid in processes.items():
        lent = backends if "history" in name else 0
        checked[f"{name}: files and sockets open"] = _open(pid, "") - lent
        checked[f"{name}: sockets open"] = _open(pid, "socket:") - lent
        told[f"{name}: threads"] = status_of(pid, "Threads")
    return Census(checked, told)


def processes_of(house: House) -> dict[str, int]:
    """The gateway's processes by their rooms, known by the settings file that they were started with."""
    mark = str(house.gateway.directory).encode()
    found: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        words = _command(entry) if entry.name.isdigit() else []
        if any(mark in word for word in words):
            name = "+".join(room for room in ROOMS if room.encode() in words) or "child"
            found[name if name not in found else f"{name} {entry.name}"] = int(entry.name)
    return dict(sorted(found.items()))


def status_of(pid: int, field: str) -> float:
    """A number of /proc/PID/status; sizes are in kB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return float(line.split()[1])
    raise LookupError(field)


def _command(entry: Path) -> list[bytes]:
    try:
        return (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended


def _open(pid: int, kind: str) -> float:
    """How many descriptors of a kind are open; those of this process's connections to the database are taken off by the caller."""
    return float(sum(target.startswith(kind) for target in _targets(pid)))


def _targets(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield str(descriptor.readlink())
        except OSError:
            continue  # closed meanwhile


def _files(house: House) -> int:
    return sum(1 for folder in (house.gateway.directory, house.temporary) for _ in folder.rglob("*"))


async def _database(dsn: str) -> tuple[dict[str, float], dict[str, float], float]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as hand:

        async def count(query: str) -> float:
            row = await (await hand.execute(query)).fetchone()
            assert row is not None
            return float(row[0])

        rows = {name: await count(query) for name, query in CHECKED_ROWS.items()}
        told = {name: await count(query) for name, query in TOLD_ROWS.items()}
        return rows, told, await count(BACKENDS)


async def _gauges(urls: tuple[str, ...]) -> dict[str, float]:
    """The sum of each gauge of ours over its labels and over all processes."""
    sums: dict[str, float] = {}
    async with aiohttp.ClientSession() as http:
        for url in urls:
            async with http.get(f"{url}/metrics") as answer:
                page = await answer.text()
            for name in _GAUGE.findall(page):
                values = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
                sums[name] = sums.get(name, 0) + sum(map(float, values))
    return sums
