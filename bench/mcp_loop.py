"""The loop over one MCP server: turns that call its tool so many times and then answer, by Turnkeep and by a client of engine and server.

The direct client is this process: it keeps one connection to each, and makes the same requests. Both lanes take turns. CPU is that of the
process that runs the loop. How often the server was connected to and called is the server's own count.
"""

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from bench.load import Connection, LoadError, asked, connected, request_of
from bench.mcp_server import COUNTS, PATH, RESULT, TOOL, TOOL_SCHEMA, Counts
from bench.targets import Stand, Target, with_cpu

CALLS = (0, 1, 8)
WARM_UP = 2

Turn = Callable[[int], Awaitable[object]]
Found = dict[str, dict[str, list[dict[str, float]]]]

_COUNTS_REQUEST = f"GET {COUNTS} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()
_QUESTION: dict[str, object] = {"type": "message", "role": "user", "content": "What is there?"}
_FUNCTION = {"type": "function", "name": TOOL, "description": "Looks somewhere.", "parameters": TOOL_SCHEMA}
_LAST_EVENT = b"event: response.completed\ndata: "


class MiscountedError(LoadError):
    """The MCP server saw something else than the loop asks for."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """One of the ways to run the loop, and the process that does."""

    name: str
    target: Target
    turn: Turn


async def measure(stand: Stand, repeats: int) -> dict[str, object]:
    """The milliseconds of each turn, by its number of calls. Raises MiscountedError when a turn needed a new connection."""
    async with (
        connected(stand.engine.url) as (engine,),
        connected(stand.mcp_server.url) as (server,),
        connected(stand.turnkeep.url) as (own,),
    ):
        lanes = (
            _Lane("direct", Target("the direct client", "", (os.getpid(),)), lambda calls: _direct_turn(engine, server, calls)),
            _Lane("turnkeep", stand.turnkeep, lambda calls: own.ask(_request(stand.mcp_server, calls))),
        )
        await _run(lanes, WARM_UP)
        before = await _counts(server)
        found = await _run(lanes, repeats)
        check(before, await _counts(server), expected_calls=sum(CALLS) * len(lanes) * repeats)
        return {"lanes": found, "turns": len(CALLS) * repeats, "new_connections": 0}


def check(before: Counts, after: Counts, expected_calls: int) -> None:
    """Raises MiscountedError unless all calls were made over the connections that were there before."""
    opened, calls = after.connections - before.connections, after.calls - before.calls
    if opened or calls != expected_calls:
        raise MiscountedError(f"the MCP server took {calls} calls of {expected_calls} and {opened} new connections instead of none")


async def _run(lanes: tuple[_Lane, ...], repeats: int) -> Found:
    found: Found = {str(calls): {lane.name: [] for lane in lanes} for calls in CALLS}
    for _ in range(repeats):
        for calls in CALLS:
            for lane in lanes:
                seconds, cpu = await with_cpu(lane.target, _timed(lane.turn(calls)))
                found[str(calls)][lane.name].append({"ms": seconds * 1000, "cpu_ms": cpu * 1000})
    return found


async def _timed(turn: Awaitable[object]) -> float:
    started = time.perf_counter()
    await turn
    return time.perf_counter() - started


async def _counts(server: Connection) -> Counts:
    return msgspec.json.decode((await server.ask(_COUNTS_REQUEST, expected=b"connections")).body, type=Counts)


def _request(server: Target, calls: int) -> bytes:
    tool = {"type": "mcp", "server_label": "bench", "server_url": server.url + PATH, "require_approval": "never"}
    return asked(f"calls-{calls}", store=True, input=[_QUESTION], tools=[tool])


async def _direct_turn(engine: Connection, server: Connection, calls: int) -> None:
    """Asks the engine until it calls nothing more."""
    items = [_QUESTION]
    while True:
        answer = await engine.ask(asked(f"calls-{calls}", store=False, input=items, tools=[_FUNCTION]))
        last = msgspec.json.decode(answer.body.rpartition(_LAST_EVENT)[2])
        (item,) = last["response"]["output"]
        if item["type"] != "function_call":
            return
        items += [item, {"type": "function_call_output", "call_id": item["call_id"], "output": await _called(server, item)}]


async def _called(server: Connection, call: dict[str, str]) -> str:
    parameters = {"name": call["name"], "arguments": msgspec.json.decode(call["arguments"])}
    message: dict[str, object] = {"jsonrpc": "2.0", "id": call["call_id"], "method": "tools/call", "params": parameters}
    answer = await server.ask(request_of(message, PATH), expected=RESULT.encode())
    return str(msgspec.json.decode(answer.body)["result"]["content"][0]["text"])
