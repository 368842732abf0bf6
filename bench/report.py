"""The report: which figures make a row, what each may be, and the table. Measures nothing.

Budgets are ratios to the pass-through proxy or the engine of the same run wherever a machine's speed would decide otherwise.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measure import ITEM_BYTES, PAUSE_MS, TOKENS, Rounds, Sizes, median, ratio

OK, OVER, PRINTED = "ok", "OVER", ""
HEADINGS = ("", "direct", "pass-through", "Turnkeep", "budget", "")

Found = Mapping[str, Any]
Lanes = Mapping[str, Rounds]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `value` is what the budget bounds; without a limit the row is only printed."""

    name: str
    direct: str = ""
    pass_through: str = ""
    turnkeep: str = ""
    value: float | None = None
    limit: float | None = None
    budget: str = ""

    @property
    def verdict(self) -> str:
        """ok, OVER, or nothing for a row without a budget."""
        if self.limit is None or self.value is None:
            return PRINTED
        return OK if self.value <= self.limit else OVER


def rows_of(found: Found, sizes: Sizes) -> list[Row]:
    """All rows, in the order of the budgets."""
    return [
        *_full_speed(found["full_speed"]),
        *_paced(found["paced"], sizes),
        *_relay(found["full_speed"], found["paced"], sizes),
        *_turns(found["turns"]["at"]),
        *_storage(found, sizes),
        *_memory(found, sizes),
        *_three(found["full_speed"], found["paced"], sizes),
        *_mcp(found["mcp_loop"]),
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    lines = [HEADINGS, *((row.name, row.direct, row.pass_through, row.turnkeep, row.budget, row.verdict) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def _full_speed(rounds: Rounds) -> Iterator[Row]:
    value = median(rounds["stateful"], "cpu_us_per_event")
    name = f"stateful stream, {TOKENS} tokens at full speed: us CPU per event"
    yield _compared(name, rounds, "stateful", "cpu_us_per_event", value=value, limit=20, budget="at most 20")
    yield _compared("  each further event: us CPU", rounds, "stateful", "cpu_us_per_further_event")
    yield _compared("  ms per stream", rounds, "stateful", "stream_ms")
    yield _compared("  ms, not streamed", rounds, "stateful", "json_ms")


def _paced(rounds: Rounds, sizes: Sizes) -> Iterator[Row]:
    what = f"{sizes.streams} stateful streams, {PAUSE_MS} ms per token"
    yield _bounded(f"{what}: us CPU per event", rounds, "stateful", "cpu_us_per_event", 1.6)
    yield _compared("  token delay p50 ms", rounds, "stateful", "delay_p50_ms")
    yield _bounded("  token delay p99 ms", rounds, "stateful", "delay_p99_ms", 2.0)


def _relay(full: Rounds, paced: Rounds, sizes: Sizes) -> Iterator[Row]:
    yield _bounded(f"relayed stream, {TOKENS} tokens at full speed: us CPU per stream", full, "relay", "cpu_us_per_stream", 1.3)
    yield _bounded("  ms per stream", full, "relay", "stream_ms", 1.3)
    yield _bounded(f"{sizes.streams} relayed streams, {PAUSE_MS} ms per token: us CPU per event", paced, "relay", "cpu_us_per_event", 1.3)
    yield _compared("  token delay p99 ms", paced, "relay", "delay_p99_ms")


def _turns(at: Mapping[str, Rounds]) -> Iterator[Row]:
    for index, rounds in at.items():
        yield _compared(f"turn {index} of a conversation ({ITEM_BYTES} bytes an item): ms", rounds, "stateful", "ms")
    for index, rounds in at.items():
        own, cpu = _own_ms(rounds), median(rounds["stateful"], "cpu_ms")
        yield Row(f"  turn {index}, the engine's time taken out: ms", turnkeep=f"{_shown(own)} (CPU {_shown(cpu)})")
    *_, last = at
    first = next(iter(at))
    value = _own_ms(at[last]) / _own_ms(at[first])
    yield Row(f"  turn {last} over turn {first}", turnkeep=f"{value:.2f} x", value=value, limit=1.5, budget="at most 1.5 x")


def _own_ms(rounds: Rounds) -> float:
    return median(rounds["stateful"], "ms") - median(rounds["engine"], "ms")


def _storage(found: Found, sizes: Sizes) -> Iterator[Row]:
    turns, branches, committers = found["turns"], found["branches"], found["committers"]
    alone, within = turns["statements"]["per_turn"], turns["statements_in_conversation"]["per_turn"]
    yield Row("statements per continued turn", turnkeep=_shown(alone), value=alone, limit=2, budget="1 read, 1 commit")
    yield Row("  in a conversation", turnkeep=_shown(within), value=within, limit=3, budget="1 lease more")
    least, most = turns["checkpoint_bytes"]
    yield Row(
        f"checkpoint bytes per turn, {sizes.turns} turns in a line",
        turnkeep=f"{least} to {most}",
        value=most - least,
        limit=0,
        budget="constant",
    )
    yield Row(f"  {sizes.branches} branches x {sizes.branch_turns} turns", turnkeep=f"{_shown(branches['bytes_per_turn'])} on average")
    yield Row("database bytes on disk per turn", turnkeep=_shown(turns["disk_bytes_per_turn"]))
    yield Row("  bytes of write-ahead log per turn", turnkeep=_shown(turns["wal_bytes_per_turn"]))
    yield Row(f"commits per second, {sizes.committers} committers on one tree", turnkeep=_shown(committers["one_tree"]))
    yield Row(f"commits per second, {sizes.committers} committers on {sizes.committers} trees", turnkeep=_shown(committers["many_trees"]))


def _memory(found: Found, sizes: Sizes) -> Iterator[Row]:
    idle, streaming = found["memory"]["idle_mb"], found["memory"]["streaming_mb"]
    yield Row("memory of the one process, idle: MB", turnkeep=_shown(idle), value=idle, limit=120, budget="at most 120")
    what = f"  {sizes.memory_streams} streams: MB"
    yield Row(what, turnkeep=_shown(streaming), value=streaming, limit=200, budget="at most 200")
    yield Row("start, without the database's: s", turnkeep=_shown(found["start"]["turnkeep_seconds"]))


def _three(full: Rounds, paced: Rounds, sizes: Sizes) -> Iterator[Row]:
    yield _compared("three processes, stateful at full speed: us CPU per event", full, "three_stateful", "cpu_us_per_event")
    yield _compared("  ms per stream", full, "three_stateful", "stream_ms")
    yield _compared("  relayed, ms per stream", full, "three_relay", "stream_ms")
    yield _compared(f"  {sizes.streams} paced stateful streams: us CPU per event", paced, "three_stateful", "cpu_us_per_event")
    yield _compared("  token delay p99 ms", paced, "three_stateful", "delay_p99_ms")
    yield _compared(f"  {sizes.streams} paced relayed streams: us CPU per event", paced, "three_relay", "cpu_us_per_event")


def _mcp(found: Found) -> Iterator[Row]:
    """Set-up is all that a turn without a call costs more than asking the engine; a round, what a turn with calls costs beyond that."""
    lanes: Lanes = found["lanes"]
    idle, *calling = (int(calls) for calls in lanes)
    set_up = _added(lanes, idle, "ms")
    yield _looped("turn with an MCP server, no call: ms", lanes, idle, "ms", set_up, 15, f"at most 15 added: {_shown(set_up)}")
    yield _looped("  ms CPU", lanes, idle, "cpu_ms")
    for calls in calling:
        added = (_added(lanes, calls, "ms") - set_up) / calls
        name = f"turn of {calls} MCP round{'s' * (calls > 1)}"
        yield _looped(f"{name}: ms per round", lanes, calls, "ms", added, 10, f"at most 10 added: {_shown(added)}")
        yield _looped("  ms CPU per round", lanes, calls, "cpu_ms")
    opened = found["new_connections"]
    yield Row(f"new connections to the MCP server, {found['turns']} turns", turnkeep=str(opened), value=opened, limit=0, budget="none")


def _looped(
    name: str, lanes: Lanes, calls: int, figure: str, value: float | None = None, limit: float | None = None, budget: str = ""
) -> Row:
    """A row of the MCP loop, per round where it has any; Turnkeep's cell says how many times the direct client's it is."""
    rounds = lanes[str(calls)]
    direct, turnkeep = (median(rounds[lane], figure) / max(calls, 1) for lane in ("direct", "turnkeep"))
    times = ratio(rounds["turnkeep"], rounds["direct"], figure)
    return Row(name, _shown(direct), "", f"{_shown(turnkeep)} ({times:.1f} x)", value, limit, budget)


def _added(lanes: Lanes, calls: int, figure: str) -> float:
    rounds = lanes[str(calls)]
    return statistics.median(
        turnkeep[figure] - direct[figure] for turnkeep, direct in zip(rounds["turnkeep"], rounds["direct"], strict=True)
    )


def _bounded(name: str, rounds: Rounds, lane: str, figure: str, limit: float) -> Row:
    """A row whose budget is a ratio to the pass-through."""
    value = ratio(rounds[lane], rounds["pass_through"], figure)
    return _compared(name, rounds, lane, figure, value=value, limit=limit, budget=f"at most {limit} x: {value:.2f} x")


def _compared(
    name: str, rounds: Rounds, lane: str, figure: str, value: float | None = None, limit: float | None = None, budget: str = ""
) -> Row:
    engine, pass_through, turnkeep = (_shown(median(rounds[each], figure)) for each in ("engine", "pass_through", lane))
    return Row(name, engine, pass_through, turnkeep, value, limit, budget)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
