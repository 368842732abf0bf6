"""The relay: one HTTP request to the engine and its answer back, byte for byte. Reads neither."""

from collections.abc import Mapping

from orchestrator_svc.providers.engine_http import EngineHttp
from orchestrator_svc.providers.http_answer import Answer
from svckit.json_text import has_halves

# What belongs to one connection and not to the message (RFC 9110 section 7.6.1), and what would give the engine's host state to clients.
_NOT_PASSED = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade", "set-cookie", "server", "date"}
)
_NOT_SENT = _NOT_PASSED | {"host", "content-length"}


async def relayed(http: EngineHttp, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """The engine's answer, with the headers that are meant for the client."""
    passed = {name: value for name, value in headers.items() if name not in _NOT_SENT}
    answer = await http.send(method, path, passed, (body,))
    answer.headers = tuple((name, value) for name, value in answer.headers if name not in _NOT_PASSED and not has_halves(value))
    return answer
