"""A TCP proxy that can cut all connections that run through it. It knows nothing of what they carry."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CuttingProxy:
    """Listens at `address` and passes bytes on to `target`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""

    def cut(self) -> None:
        """Resets every connection that is open now; new ones are taken as before."""
        for writer in self._writers:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, far_writer}
        await asyncio.gather(_passed_on(reader, far_writer), _passed_on(far_reader, writer))
        self._writers -= {writer, far_writer}


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def open_proxy(target: str) -> AsyncIterator[CuttingProxy]:
    """A proxy in front of `host:port`."""
    proxy = CuttingProxy(target)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy
        proxy.cut()
