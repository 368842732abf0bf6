"""The measurements. Each gives plain numbers; what is compared is measured in turn, round after round, so that noise meets all alike.

A round's figure of a target is CPU time per event or a quantile of latencies; the median over the rounds is what counts, and a ratio is the
median of the rounds' ratios. What the numbers may be stands in report.py.
"""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from bench import commits, database, mcp_loop
from bench.load import Answer, asked, connected, one_by_one, request_of, side_by_side
from bench.targets import Stand, Target, with_cpu

Numbers = dict[str, float]
Rounds = dict[str, list[Numbers]]

TOKENS = 256
PAUSE_MS = 20
ITEM_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int = 5
    requests: int = 60
    long_tokens: int = 4096
    paced_rounds: int = 3
    streams: int = 64
    paced_tokens: int = TOKENS
    memory_streams: int = 128
    memory_tokens: int = 150
    turns: int = 400
    indexes: tuple[int, ...] = (10, 100, 200, 400)
    turn_repeats: int = 60
    branches: int = 8
    branch_turns: int = 400
    committers: int = 64
    commit_seconds: float = 4.0
    mcp_repeats: int = 40


SMOKE = Sizes(
    rounds=2,
    requests=5,
    long_tokens=512,
    paced_rounds=1,
    streams=8,
    paced_tokens=20,
    memory_streams=8,
    memory_tokens=30,
    turns=20,
    indexes=(5, 10, 15, 20),
    turn_repeats=3,
    branches=2,
    branch_turns=10,
    committers=4,
    commit_seconds=0.5,
    mcp_repeats=2,
)


async def measure(stand: Stand, sizes: Sizes, say: Callable[[str], None]) -> dict[str, object]:
    """Everything, by name. Memory first: it must not hold what earlier load has left behind."""
    measures: dict[str, Callable[[], Awaitable[object]]] = {
        "start": lambda: _start(stand),
        "memory": lambda: _memory(stand.turnkeep, sizes),
        "full_speed": lambda: _full_speed(stand, sizes),
        "paced": lambda: _paced(stand, sizes),
        "turns": lambda: _turns(stand, sizes),
        "branches": lambda: _branches(stand, sizes),
        "committers": lambda: _committers(stand, sizes),
        "mcp_loop": lambda: mcp_loop.measure(stand, sizes.mcp_repeats),
    }
    found: dict[str, object] = {}
    for name, run in measures.items():
        say(f"measuring {name.replace('_', ' ')} ...")
        found[name] = await run()
    return found


def median(rounds: Sequence[Numbers], name: str) -> float:
    """The median of one figure over the rounds."""
    return statistics.median(numbers[name] for numbers in rounds)


def ratio(rounds: Sequence[Numbers], others: Sequence[Numbers], name: str) -> float:
    """The median over the rounds of how many times one target's figure is another's."""
    return statistics.median(numbers[name] / other[name] for numbers, other in zip(rounds, others, strict=True))


async def _start(stand: Stand) -> Numbers:
    return {"turnkeep_seconds": stand.turnkeep.start_seconds}


async def _memory(target: Target, sizes: Sizes) -> Numbers:
    """Resident megabytes: of a process that has served nothing yet, and with many streams under way."""
    idle = target.resident_mb()
    under_way: list[float] = []
    model = f"paced-{sizes.memory_tokens}-{PAUSE_MS}"
    await side_by_side(
        target.url, asked(model, store=True), sizes.memory_streams, spread=1.0, meanwhile=lambda: under_way.append(target.resident_mb())
    )
    return {"idle_mb": idle, "streaming_mb": max(*under_way, target.resident_mb())}


@dataclass(frozen=True, slots=True)
class _Lane:
    """One of the ways that are compared: requests of one kind to one target."""

    name: str
    target: Target
    store: bool


def _lanes(stand: Stand) -> list[_Lane]:
    return [
        _Lane("engine", stand.engine, store=False),
        _Lane("pass_through", stand.pass_through, store=False),
        _Lane("stateful", stand.turnkeep, store=True),
        _Lane("relay", stand.turnkeep, store=False),
        _Lane("three_stateful", stand.three, store=True),
        _Lane("three_relay", stand.three, store=False),
    ]


async def _full_speed(stand: Stand, sizes: Sizes) -> Rounds:
    """Streams and JSON answers, one after the other, as fast as they go."""
    found: Rounds = {lane.name: [] for lane in _lanes(stand)}
    for number in range(sizes.rounds + 1):
        for lane in _lanes(stand):
            numbers = await _full_speed_round(lane, sizes)
            if number > 0:  # the first round warms up
                found[lane.name].append(numbers)
    return found


async def _full_speed_round(lane: _Lane, sizes: Sizes) -> Numbers:
    streams, cpu = await with_cpu(lane.target, one_by_one(lane.target.url, asked(f"full-{TOKENS}", store=lane.store), sizes.requests))
    few = max(sizes.requests // 6, 2)
    long, long_cpu = await with_cpu(lane.target, one_by_one(lane.target.url, asked(f"full-{sizes.long_tokens}", store=lane.store), few))
    whole, whole_cpu = await with_cpu(
        lane.target, one_by_one(lane.target.url, asked(f"full-{TOKENS}", store=lane.store, stream=False), sizes.requests)
    )
    per_stream, per_long = cpu / len(streams), long_cpu / len(long)
    return {
        "stream_ms": _quantile([answer.seconds for answer in streams], 0.5) * 1000,
        "stream_p99_ms": _quantile([answer.seconds for answer in streams], 0.99) * 1000,
        "cpu_us_per_stream": per_stream * 1e6,
        "cpu_us_per_event": cpu / _events(streams) * 1e6,
        "cpu_us_per_further_event": (per_long - per_stream) / (long[0].events - streams[0].events) * 1e6,
        "json_ms": _quantile([answer.seconds for answer in whole], 0.5) * 1000,
        "json_cpu_us": whole_cpu / len(whole) * 1e6,
    }


async def _paced(stand: Stand, sizes: Sizes) -> Rounds:
    """Many streams at once, a token every few milliseconds: a network read holds one event.

    They begin within half of their length, so that their tokens wait for one another and not for a rush of turns that begin or end.
    """
    found: Rounds = {lane.name: [] for lane in _lanes(stand)}
    for _ in range(sizes.paced_rounds):
        for lane in _lanes(stand):
            found[lane.name].append(await _paced_round(lane, sizes))
    return found


async def _paced_round(lane: _Lane, sizes: Sizes) -> Numbers:
    request = asked(f"paced-{sizes.paced_tokens}-{PAUSE_MS}", store=lane.store)
    spread = sizes.paced_tokens * PAUSE_MS / 1000 / 2
    streams, cpu = await with_cpu(lane.target, side_by_side(lane.target.url, request, sizes.streams, spread))
    delays = [delay / 1000 for answer in streams for delay in answer.delays]
    return {
        "cpu_us_per_event": cpu / _events(streams) * 1e6,
        "delay_p50_ms": _quantile(delays, 0.5),
        "delay_p99_ms": _quantile(delays, 0.99),
    }


async def _turns(stand: Stand, sizes: Sizes) -> dict[str, object]:
    """One conversation: what its turns cost at several lengths, what they store, how many statements they take."""
    before = await database.sizes(stand.database)
    ids = await _conversation(stand.turnkeep, sizes.turns)
    after = await database.sizes(stand.database)
    checkpoints = await database.checkpoint_bytes(stand.database, ids)
    return {
        "at": await _at_indexes(stand, sizes, ids),
        "statements": await _statements(stand, _turn(ids[-1])),
        "statements_in_conversation": await _statements(stand, asked("full-16", store=True, conversation=await _new_conversation(stand))),
        "disk_bytes_per_turn": (after.tables - before.tables) / sizes.turns,
        "wal_bytes_per_turn": (after.wal - before.wal) / sizes.turns,
        "checkpoint_bytes": [min(checkpoints), max(checkpoints)],
    }


async def _conversation(target: Target, turns: int) -> list[str]:
    ids: list[str] = []
    async with connected(target.url) as (connection,):
        for _ in range(turns):
            answer = await connection.ask(_turn(ids[-1] if ids else None))
            ids.append(_response_id(answer))
    return ids


# An answer is as long as a question, so that each turn adds two items of the same size.
_ANSWER_TOKENS = ITEM_BYTES // len(" token")
_QUESTION = "How many tokens are there? ".ljust(ITEM_BYTES, "?")


def _turn(previous: str | None) -> bytes:
    return asked(f"full-{_ANSWER_TOKENS}", store=True, input=_QUESTION, previous_response_id=previous)


def _response_id(answer: Answer) -> str:
    body = answer.body
    start = body.index(b'"id":"resp_') + len(b'"id":"')
    return body[start : body.index(b'"', start)].decode()


async def _at_indexes(stand: Stand, sizes: Sizes, ids: Sequence[str]) -> dict[str, Rounds]:
    """The same turn again and again from several places of the conversation, and its engine request sent to the others directly.

    The engine's request for turn n is n questions and n - 1 answers long, whoever sends it.
    """
    found: dict[str, Rounds] = {str(index): {"engine": [], "pass_through": [], "stateful": []} for index in sizes.indexes}
    requests = {index: (_turn(ids[index - 2]), _engine_request(index)) for index in sizes.indexes}
    async with (
        connected(stand.engine.url) as (engine,),
        connected(stand.pass_through.url) as (passing,),
        connected(stand.turnkeep.url) as (own,),
    ):
        for _ in range(sizes.turn_repeats):
            for index, (turn, direct) in requests.items():
                rounds = found[str(index)]
                rounds["engine"].append({"ms": (await engine.ask(direct)).seconds * 1000})
                rounds["pass_through"].append({"ms": (await passing.ask(direct)).seconds * 1000})
                answer, cpu = await with_cpu(stand.turnkeep, own.ask(turn))
                rounds["stateful"].append({"ms": answer.seconds * 1000, "cpu_ms": cpu * 1000})
    return found


def _engine_request(index: int) -> bytes:
    question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _QUESTION}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": " token" * _ANSWER_TOKENS}]}
    return asked(f"full-{_ANSWER_TOKENS}", store=False, input=[question, answer] * (index - 1) + [question])


async def _new_conversation(stand: Stand) -> str:
    async with connected(stand.turnkeep.url) as (connection,):
        answer = await connection.ask(request_of({}, "/v1/conversations"), expected=b'"object":"conversation"')
    return str(msgspec.json.decode(answer.body)["id"])


async def _statements(stand: Stand, turn: bytes) -> dict[str, object]:
    """How many statements a turn takes, sent several times."""
    turns = 10
    await database.forget_statements(stand.database)
    await one_by_one(stand.turnkeep.url, turn, turns)
    calls = await database.statements(stand.database)
    return {"per_turn": sum(calls.values()) / turns, "calls": calls}


async def _branches(stand: Stand, sizes: Sizes) -> Numbers:
    """Branches of one tree that grow side by side: what their checkpoints take."""
    lists = await commits.branches(stand.history, sizes.branches, sizes.branch_turns)
    stored = [size for ids in lists for size in await database.checkpoint_bytes(stand.database, ids)]
    last = [size for ids in lists for size in await database.checkpoint_bytes(stand.database, ids[-1:])]
    return {"bytes_per_turn": statistics.mean(stored), "last_bytes": max(last), "total_bytes": sum(stored)}


async def _committers(stand: Stand, sizes: Sizes) -> Numbers:
    """Commits per second by many clients of the history service at once."""
    one = await commits.per_second(stand.history, sizes.committers, sizes.commit_seconds, one_tree=True)
    many = await commits.per_second(stand.history, sizes.committers, sizes.commit_seconds, one_tree=False)
    return {"one_tree": one, "many_trees": many}


def _events(answers: Sequence[Answer]) -> int:
    return sum(answer.events for answer in answers)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
