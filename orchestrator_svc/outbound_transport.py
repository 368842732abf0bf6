"""How guarded requests travel: an HTTP transport whose connections go to addresses that the guard has permitted, and nowhere else.

The guard is asked where the socket is opened, so there is no moment between the check and the connection. Everything above the socket still
goes by the host's name: the Host header, TLS server name and certificate check, and which connection may be used again.
This file is loaded when the first guarded client is made; it decides nothing about URLs, see `outbound`.
"""

import ssl
from collections.abc import AsyncIterator, Iterable
from functools import cache

import httpcore2
import httpx2

from orchestrator_svc.outbound import Guard, OutboundRefused

# A name may have hundreds of addresses; trying them all would make a port scanner of us.
_MAX_ATTEMPTS = 4


class GuardedTransport(httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`. Raises OutboundRefused where the client would connect; a server's cookies do not get through."""

    def __init__(self, guard: Guard, tls: ssl.SSLContext | None = None, max_connections: int = 100) -> None:
        self._guard = guard
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls or _tls(),
            network_backend=_GuardedNetwork(guard),
            max_connections=max_connections,
            max_keepalive_connections=10,
            keepalive_expiry=60.0,
        )

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._pool.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request. A host that is denied by name is refused here too: a connection to it may be open from elsewhere."""
        self._guard.admit(str(request.url))
        try:
            response = await self._pool.handle_async_request(_core_request(request))
        except _CORE_ERRORS as exc:
            raise _translated(exc) from exc
        headers = [(name, value) for name, value in response.headers if name.lower() != b"set-cookie"]
        return httpx2.Response(response.status, headers=headers, stream=_Body(response), extensions=response.extensions)


class _GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Opens sockets to permitted addresses only, one after the other until one answers."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError()
        bound = self._guard.settings.connect_timeout_seconds
        for address in (await self._guard.addresses(host, port))[:_MAX_ATTEMPTS]:
            try:
                return await self._network.connect_tcp(address, port, min(bound, timeout or bound), local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                failure = exc
        try:
            raise failure
        finally:
            del failure  # it holds this frame now

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise OutboundRefused("Only http and https URLs can be fetched.")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class _Body(httpx2.AsyncByteStream):
    """The body as it arrives."""

    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_stream():
                yield chunk
        except _CORE_ERRORS as exc:
            raise _translated(exc) from exc

    async def aclose(self) -> None:
        await self._response.aclose()


@cache
def _tls() -> ssl.SSLContext:
    """One for all transports: reading the certificates of the system takes tens of milliseconds."""
    return httpx2.create_ssl_context()


def _core_request(request: httpx2.Request) -> httpcore2.Request:
    url = httpcore2.URL(scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path)
    assert isinstance(request.stream, httpx2.AsyncByteStream)
    return httpcore2.Request(request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions)


_CORE_ERRORS = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol)


def _translated(error: Exception) -> httpx2.TransportError:
    """The client's class of the same name. The text stays behind: it may hold an address."""
    kind = getattr(httpx2, type(error).__name__, httpx2.TransportError)
    return kind(type(error).__name__) if issubclass(kind, httpx2.TransportError) else httpx2.TransportError(type(error).__name__)
