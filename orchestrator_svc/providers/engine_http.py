"""HTTP to one engine: its address, its key, its connections. Knows no wire; what the bytes mean is its callers' business.

Token streams are read in chunks as they arrive. A request is sent a second time only when a connection that had been used before broke
before any byte of an answer: then the engine had closed it and never saw the request.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace

from orchestrator_svc.errors import EngineStreamInterrupted, EngineTimeout, EngineUnavailable
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings, refuse_no_address
from svckit.patience import Patience
from svckit.telemetry import current_trace

_READ_BYTES = 256 * 1024
_LARGE_BYTES = 64 * 1024
_PROBE_SECONDS = 2.0
_LAST_BYTES_SECONDS = 0.05


@dataclass(slots=True)
class _Sending:
    """What is known of the connection that one request went out on."""

    reused: bool = False


_sending: ContextVar[_Sending | None] = ContextVar("sending", default=None)


class EngineHttp:
    """A connection pool to one engine."""

    def __init__(
        self, engine: EngineSettings, key: str, waits: OrchestratorSettings, pooled: aiohttp.ClientSession, fresh: aiohttp.ClientSession
    ):
        self._base = base_url(engine.url)
        self._key = key
        self._waits = waits
        self._pooled = pooled
        self._fresh = fresh

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no client may see: the key, the address."""
        return (self._key, self._base, self._base.partition("//")[2], urlsplit(self._base).hostname or "")

    @asynccontextmanager
    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: tuple[bytes, ...]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's answer to a body in pieces, its head read and its own body not. Raises EngineUnavailable and EngineTimeout."""
        response = await self._answered(method, path, self._headers(headers), body)
        try:
            yield response
        finally:
            response.close()

    async def chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises EngineTimeout when it pauses too long, EngineStreamInterrupted when it breaks off."""
        content, clock, gap = response.content, asyncio.get_running_loop().time, self._waits.gap_timeout_seconds
        with closing(Patience(self._waits.first_event_timeout_seconds, partial(content.set_exception, TimeoutError()))) as patience:
            while True:
                patience.since = clock()
                try:
                    chunk = await content.readany()
                except TimeoutError as exc:
                    raise EngineTimeout from exc
                except (aiohttp.ClientError, OSError) as exc:
                    if came_before := _left_in(content):
                        yield came_before
                    raise EngineStreamInterrupted from exc
                patience.since = None
                if not chunk:
                    return
                yield chunk
                if patience.seconds != gap:
                    patience.allow(gap)

    async def settle(self, response: aiohttp.ClientResponse) -> None:
        """Reads the last bytes of an answer that is over, so that its connection can be used again; waits for them only shortly."""
        if response.content.at_eof():
            return
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(_LAST_BYTES_SECONDS):
                while await response.content.readany():
                    pass

    async def answers(self) -> bool:
        """Whether the engine can be reached and is not failing."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS), self.send("GET", "/v1/models", {}, ()) as response:
                return response.status < 500
        except (EngineUnavailable, EngineTimeout, TimeoutError):
            return False

    async def _answered(self, method: str, path: str, headers: dict[str, str], body: tuple[bytes, ...]) -> aiohttp.ClientResponse:
        sending = _Sending()
        try:
            return await self._requested(self._pooled, sending, method, path, headers, body)
        except (aiohttp.ClientConnectionError, OSError) as exc:
            if not sending.reused or isinstance(exc, aiohttp.ServerTimeoutError) or _has_begun_to_answer(exc):
                raise EngineUnavailable from exc
        try:
            return await self._requested(self._fresh, sending, method, path, headers, body)
        except (aiohttp.ClientConnectionError, OSError) as exc:
            raise EngineUnavailable from exc

    async def _requested(
        self, session: aiohttp.ClientSession, sending: _Sending, method: str, path: str, headers: dict[str, str], body: tuple[bytes, ...]
    ) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(self._waits.first_event_timeout_seconds):
                _sending.set(sending)
                return await session.request(method, self._base + path, headers=headers, data=_data(body), allow_redirects=False)
        except TimeoutError as exc:
            if isinstance(exc, aiohttp.ClientError):
                raise
            raise EngineTimeout from exc
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as exc:
            raise EngineUnavailable from exc

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = dict(given)
        trace = current_trace()
        headers |= trace.metadata()
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return headers


@asynccontextmanager
async def open_engine_http(engine: EngineSettings, key: str, waits: OrchestratorSettings) -> AsyncIterator[EngineHttp]:
    """The pool to one engine; closed with all its connections at the end. Raises SettingsError."""
    refuse_no_address(engine)
    async with _session(waits, keep=True) as pooled, _session(waits, keep=False) as fresh:
        yield EngineHttp(engine, key, waits, pooled, fresh)


def _left_in(content: aiohttp.StreamReader) -> bytes:
    """What had arrived when the connection broke; aiohttp's public methods raise first and never give it out."""
    return content._read_nowait(-1)


def _has_begun_to_answer(error: Exception) -> bool:
    """Whether the connection broke within the head of an answer; aiohttp then says what there was of it."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def base_url(url: str) -> str:
    """An engine's address without a `/v1` at its end: people give it either way."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _data(body: tuple[bytes, ...]) -> aiohttp.Payload | bytes | None:
    if sum(map(len, body)) > _LARGE_BYTES:
        return _Pieces(body)
    return b"".join(body) or None


class _Pieces(aiohttp.Payload):
    """A large body that leaves in parts of about 64 KiB.

    Joined as a whole it would be one more copy of megabytes; piece by piece, each comma would be a send of its own.
    """

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        super().__init__(pieces)
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        part: list[bytes] = []
        size = 0
        for piece in self._pieces:
            part.append(piece)
            size += len(piece)
            if size >= _LARGE_BYTES:
                await writer.write(b"".join(part))
                part, size = [], 0
        if part:
            await writer.write(b"".join(part))


class _Connection(ResponseHandler):
    """aiohttp's connection to a server, which would parse nothing anew after each read, although reading had not been held up."""

    was_used = False

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:
            super().resume_reading(resume_parser)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, *, force_close: bool) -> None:
        super().__init__(limit=0, force_close=force_close)
        self._factory = cast("partial[ResponseHandler]", partial(_Connection, loop=self._loop))

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """A connection, noted as reused for whoever sends on one that had been used before."""
        connection = await super().connect(req, traces, timeout)
        sending, protocol = _sending.get(), connection.protocol
        if sending is not None and isinstance(protocol, _Connection):
            sending.reused, protocol.was_used = protocol.was_used, True
        return connection


def _session(waits: OrchestratorSettings, *, keep: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(force_close=not keep),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=waits.connect_timeout_seconds),
        auto_decompress=False,
        read_bufsize=_READ_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )
