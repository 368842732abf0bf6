"""How backends that are JSON over HTTP are asked, and what their failures mean to a model.

The address is the configuration's, not a request's, and so is not guarded. What a service says of an error is never passed on: it may
repeat the key.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import ToolFailed
from svckit import json_text
from svckit.logs import get_logger

if TYPE_CHECKING:
    import httpx2

_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_RATE_LIMITED = (429, 432, 433)

_log = get_logger(__name__)


class SearchHttp:
    """One search service: its address, its headers (the key is among them), a deadline for each question."""

    def __init__(self, service: str, url: str, headers: Mapping[str, str], timeout: float) -> None:
        self._service = service
        self._url = url.rstrip("/")
        self._headers = dict(headers)
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None

    async def get(self, path: str, params: Mapping[str, str | int], headers: Mapping[str, str] | None = None) -> JsonObject:
        """The JSON object that answers a GET. Raises ToolFailed."""
        encoded = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        return await self._answer(self._opened().build_request("GET", self._url + path, params=dict(params), headers=encoded))

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        """The JSON object that answers a POST of a JSON object. Raises ToolFailed."""
        return await self._answer(self._opened().build_request("POST", self._url + path, json=body))

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> "httpx2.AsyncClient":
        # Loaded here because it costs a tenth of a second and most processes never search.
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(headers=self._headers, timeout=self._timeout, trust_env=False, follow_redirects=False)
        return self._client

    async def _answer(self, request: "httpx2.Request") -> JsonObject:
        status, body = await self._sent(request)
        if status != 200:
            raise self._failure(f"http_{status}", _meaning(status))
        try:
            return json_text.decode(body, JsonObject)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise self._failure("not_json", _NO_ANSWER) from exc

    async def _sent(self, request: "httpx2.Request") -> tuple[int, bytes]:
        import httpx2

        try:
            async with asyncio.timeout(self._timeout):
                response = await self._opened().send(request, stream=True)
                try:
                    return response.status_code, await self._read(response)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx2.TimeoutException) as exc:
            raise self._failure("timeout", "The search service did not answer in time.") from exc
        except (httpx2.TransportError, httpx2.DecodingError) as exc:
            raise self._failure(type(exc).__name__, "The search service cannot be reached.") from exc

    async def _read(self, response: "httpx2.Response") -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise self._failure("too_large", _NO_ANSWER)
        return bytes(body)

    def _failure(self, reason: str, text: str) -> ToolFailed:
        _log.warning("search_failed", service=self._service, reason=reason)
        return ToolFailed(text)


_NO_ANSWER = "The search service gave no valid answer."


def _meaning(status: int) -> str:
    if status in _RATE_LIMITED:
        return "The search service takes no further searches at the moment (rate limit). Try later or go on without."
    if status in (401, 402, 403):
        return f"The search service refused its credentials or this use of it (HTTP {status})."
    return f"The search service failed (HTTP {status})."
