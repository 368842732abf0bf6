"""A fake MCP server that costs next to nothing: streamable HTTP without state, one tool, answers of constant bytes. Run as a process.

It counts the connections that it has accepted and the calls of its tool; COUNTS, asked with GET, tells both.
"""

import argparse
import asyncio
import gc
import re

import msgspec

from bench.serving import Requests, failure, json_answer, serve

PATH = "/mcp"
COUNTS = "/counts"
VERSION = "2026-07-28"
TOOL = "look"
TOOL_SCHEMA: dict[str, object] = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
RESULT = "seen"

_ID = re.compile(rb'"id":\s?(\d+|"[^"]*")')
_METHOD = re.compile(rb'"method":\s?"([^"]*)"')


def _result(**fields: object) -> bytes:
    return msgspec.json.encode({"resultType": "complete", **fields})


_RESULTS = {
    b"server/discover": _result(
        supportedVersions=[VERSION],
        capabilities={"tools": {}},
        serverInfo={"name": "bench", "version": "1"},
        ttlMs=0,
        cacheScope="public",
    ),
    b"tools/list": _result(
        tools=[{"name": TOOL, "description": "Looks somewhere.", "inputSchema": TOOL_SCHEMA}], ttlMs=0, cacheScope="public"
    ),
    b"tools/call": _result(content=[{"type": "text", "text": RESULT}]),
}


class Counts(msgspec.Struct, frozen=True):
    """What a server has seen so far."""

    connections: int
    calls: int


class Connection(Requests):
    """One client's connection."""

    connections = 0
    calls = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts it."""
        super().connection_made(transport)
        Connection.connections += 1

    def answer(self, request: bytes) -> None:
        """Answers what it knows; a stream of the server's own it does not offer."""
        if request.startswith(b"GET " + COUNTS.encode()):
            return self.write(json_answer(msgspec.json.encode(Counts(Connection.connections, Connection.calls))))
        method, number = _METHOD.search(request), _ID.search(request)
        if method is None or number is None or method[1] not in _RESULTS:
            return self.write(failure(b"405 Method Not Allowed"))
        Connection.calls += method[1] == b"tools/call"
        return self.write(json_answer(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (number[1], _RESULTS[method[1]])))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    gc.disable()
    asyncio.run(serve(Connection))
