"""An answer that is streamed, and whose head leaves in one piece with its first bytes where these are there at once.

A send costs more than all else that is done for a few bytes. A head without bytes waits only shortly: some clients wait for the head alone.
"""

import asyncio
from contextlib import suppress

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

HEAD_WAITS_SECONDS = 0.01


class StreamedAnswer(web.StreamResponse):
    """A StreamResponse whose `prepare` makes the head without sending it yet."""

    _send_headers_immediately = False  # aiohttp's own switch, which its Response has turned off too

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        writer = await super().prepare(request)
        if writer is not None:
            asyncio.get_running_loop().call_later(HEAD_WAITS_SECONDS, _send_head, writer)
        return writer


def _send_head(writer: AbstractStreamWriter) -> None:
    """Sends the head if it has not left with the first bytes."""
    with suppress(ConnectionError):
        writer.send_headers()
