"""The relay: one HTTP request to the engine and its answer back, byte for byte. Reads neither."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from orchestrator_svc.providers.base import RelayedHead
from orchestrator_svc.providers.engine_http import EngineHttp

# What belongs to one connection and not to the message (RFC 9110 section 7.6.1), and what would give the engine's host state to clients.
_NOT_PASSED = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade", "set-cookie", "server", "date"}
)


@asynccontextmanager
async def relayed(
    http: EngineHttp, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> AsyncIterator[tuple[RelayedHead, AsyncIterator[bytes]]]:
    """The engine's head, and its body in chunks as they arrive."""
    async with http.send(method, path, headers, (body,)) as response:
        passed = tuple((name.lower(), value) for name, value in response.headers.items() if name.lower() not in _NOT_PASSED)
        yield RelayedHead(response.status, passed), http.chunks(response)
