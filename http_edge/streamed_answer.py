"""An answer that is streamed, and whose head leaves in one piece with its first bytes where these are there at once.

A send costs more than all else that is done for a few bytes.
"""

import asyncio
from contextlib import suppress

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

HEAD_WAITS_SECONDS = 0.01


class StreamedAnswer(web.StreamResponse):
    """A StreamResponse whose `prepare` makes the head without sending it: it leaves with the first bytes, or when it is told to."""

    _send_headers_immediately = False  # aiohttp's own switch, which its Response has turned off too
    _writer: StreamWriter | None = None
    _transport: asyncio.Transport | None = None

    def send_head_soon(self) -> None:
        """For when the first bytes are still to come: the head waits for them only shortly, for some clients wait for the head alone."""
        writer = self._payload_writer
        assert writer is not None
        asyncio.get_running_loop().call_later(HEAD_WAITS_SECONDS, _send_head, writer)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await super().write(data)
        writer = self._payload_writer
        if self._writer is None and isinstance(writer, StreamWriter) and writer.chunked:
            self._writer, self._transport = writer, writer.transport  # the head has left

    async def write_eof(self, data: bytes = b"") -> None:
        self._transport = None
        await super().write_eof(data)

    @property
    def flows(self) -> bool:
        """Has the client taken all that was written so far? Then `write_now` may be used."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()

    def write_now(self, data: bytes) -> None:
        """Writes bytes of which nothing is to be waited for."""
        if not data:
            return  # an empty chunk is the end
        writer, transport = self._writer, self._transport
        assert writer is not None
        assert transport is not None
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        writer.output_size += len(chunk)
        transport.write(chunk)


def _send_head(writer: AbstractStreamWriter) -> None:
    """Sends the head if it has not left with the first bytes."""
    with suppress(ConnectionError):
        writer.send_headers()
