"""HTTP to one engine: its address, its key, its connections. Knows no wire; what the bytes mean is its callers' business.

A request is sent a second time only when a connection that had been used before breaks at once and before any byte of an answer: then the
engine had closed it meanwhile and never saw the request.
"""

import asyncio
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import cache, lru_cache
from urllib.parse import quote, unquote, urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from orchestrator_svc.errors import EngineTimeout, EngineUnavailable, InvalidRequest
from orchestrator_svc.providers.http_answer import Answer
from orchestrator_svc.providers.http_connection import Connection
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings, refuse_no_address
from svckit.patience import Patience
from svckit.settings import SettingsError
from svckit.telemetry import current_trace

_KEPT_SECONDS = 15.0
_PROBE_SECONDS = 2.0
_NEXT_ADDRESS_SECONDS = 0.25
_STALE_SECONDS = 1.0
_LOOPS_TO_CLOSE = 100
_PORTS = {"http": 80, "https": 443}
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")


class EngineHttp:
    """The connections to one engine. `tls` is given where its address is https."""

    def __init__(self, engine: EngineSettings, key: str, waits: OrchestratorSettings, tls: ssl.SSLContext | None) -> None:
        self._base = base_url(engine.url)
        url = urlsplit(self._base)
        self._host = _ascii(url.hostname or "")
        self._port = url.port or _PORTS[url.scheme]
        self._prefix = url.path
        self._tls = tls
        scheme, credential = ("Bearer", key) if key else ("Basic", _pair(url.username, url.password))
        self._credential = credential
        self._own_headers = {"host": _named(self._host, url.port)} | ({"authorization": f"{scheme} {credential}"} if credential else {})
        self._waits = waits
        self._open: set[Connection] = set()
        self._kept: list[tuple[Connection, float]] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._clock = asyncio.get_running_loop().time
        self._is_closed = False

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no client may see: the key, the address."""
        return (self._credential, self._base, self._base.partition("//")[2], urlsplit(self._base).hostname or "")

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: tuple[bytes, ...]) -> Answer:
        """The engine's answer to a body in pieces, its head read and its own body not; to be closed.

        Raises EngineUnavailable and EngineTimeout, and InvalidRequest for a header that cannot be sent.
        """
        head = self._head(method, path, headers, sum(map(len, body)))
        if kept := self._kept_one():
            started = self._clock()
            try:
                return await self._asked(kept, head, body)
            except OSError as exc:
                if not self._was_stale(kept, started):
                    raise EngineUnavailable from exc
        try:
            return await self._asked(await self._connected(), head, body)
        except OSError as exc:
            raise EngineUnavailable from exc

    async def answers(self) -> bool:
        """Whether the engine can be reached and is not failing."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                with await self.send("GET", "/v1/models", {}, ()) as answer:
                    return answer.status < 500
        except (EngineUnavailable, EngineTimeout, TimeoutError):
            return False

    async def aclose(self) -> None:
        """Closes all connections; there will be no others."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in self._open:
            connection.abort()
        for _ in range(_LOOPS_TO_CLOSE):
            if all(connection.is_lost for connection in self._open):
                return
            await asyncio.sleep(0)

    async def _asked(self, connection: Connection, head: bytes, body: tuple[bytes, ...]) -> Answer:
        answer = Answer(connection, self._ended)
        try:
            await connection.send(head, body, answer)
            await answer.head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def _connected(self) -> Connection:
        """A new connection. Raises OSError. Its callbacks run in a context of their own, for it outlives the request that opens it."""
        if self._is_closed:
            raise ConnectionAbortedError("the connections to the engine are closed")
        opening = asyncio.create_task(self._opened(), context=Context())
        try:
            return await opening
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    async def _opened(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._waits.connect_timeout_seconds):
            addresses = await self._addresses()
            opened = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS, interleave=1)
            try:
                name = self._host if self._tls else None
                _, connection = await loop.create_connection(self._connection, sock=opened, ssl=self._tls, server_hostname=name)
            except BaseException:
                opened.close()
                raise
        self._open = {connection, *(other for other in self._open if not other.is_lost)}
        if self._is_closed:
            connection.abort()
        return connection

    def _connection(self) -> Connection:
        return Connection(Patience(self._waits.first_event_timeout_seconds, self._waits.gap_timeout_seconds))

    async def _addresses(self) -> Sequence[AddrInfoType]:
        return await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)

    def _kept_one(self) -> Connection | None:
        """A connection that was used before and is still open, the last used first."""
        while self._kept:
            connection, _ = self._kept.pop()
            if connection.is_free:
                return connection
        return None

    def _was_stale(self, kept: Connection, started: float) -> bool:
        """Had the engine closed it before a request was begun on it at `started`? Then that can be sent again on another."""
        return not (kept.has_heard or self._is_closed or self._clock() > started + _STALE_SECONDS)

    def _ended(self, connection: Connection) -> None:
        """Keeps a connection whose answer is whole, if it can carry another."""
        if not connection.is_free or self._is_closed:
            return connection.close()
        self._kept.append((connection, self._clock() + _KEPT_SECONDS))
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._sweep)
        return None

    def _sweep(self) -> None:
        """Closes what nobody has used for long; engines do so too, and a request sent meanwhile would have to be sent again."""
        now = self._clock()
        for connection, until in self._kept:
            if until <= now:
                connection.close()
        self._kept = [(connection, until) for connection, until in self._kept if until > now and connection.is_free]
        self._sweeping = asyncio.get_running_loop().call_at(self._kept[0][1], self._sweep) if self._kept else None

    def _head(self, method: str, path: str, given: Mapping[str, str], size: int) -> bytes:
        headers = {**given, **dict(current_trace().metadata()), **self._own_headers}
        if size or method == "POST":
            headers["content-length"] = str(size)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        is_in_lines = lines.count("\n") == lines.count("\r") == len(headers) and "\0" not in lines
        if not is_in_lines or not all(map(_is_name, given)):
            raise InvalidRequest("There is a header that cannot be sent.", param="headers")
        return f"{method} {_quoted(self._prefix + path)} HTTP/1.1\r\n{lines}\r\n".encode()


@asynccontextmanager
async def open_engine_http(engine: EngineSettings, key: str, waits: OrchestratorSettings) -> AsyncIterator[EngineHttp]:
    """The pool to one engine; closed with all its connections at the end. Raises SettingsError."""
    refuse_no_address(engine)
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("environment", engine.api_key_env, "holds a key that cannot be sent in a header")
    http = EngineHttp(engine, key, waits, _tls() if urlsplit(engine.url).scheme == "https" else None)
    try:
        yield http
    finally:
        await http.aclose()


def base_url(url: str) -> str:
    """An engine's address without a `/v1` at its end: people give it either way."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _close_opened(opening: asyncio.Task[Connection]) -> None:
    """Nobody waits any more for the connection that this opens."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@lru_cache(maxsize=1024)
def _is_name(header: str) -> bool:
    return bool(_NAME.match(header))


@lru_cache(maxsize=64)
def _quoted(path: str) -> str:
    """A path and query without what may not stand in a request line."""
    return quote(path, safe=_PRINTABLE)


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode()


def _named(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _pair(user: str | None, password: str | None) -> str:
    """The credential of a user and a password that stand in the address, with escapes there."""
    return "" if user is None else b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
