"""Notices a client that has left without saying so: it takes no byte for too long although bytes wait for it.

The connection is then cut, and that is what cancels the request. A client that hangs up is aiohttp's business.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

_LOOKS_PER_PATIENCE = 6


class ClientWatch:
    """Looks at the connection of one request a few times within `patience` seconds, for as long as its context is open.

    `written` says how many bytes have been written so far, where that is not aiohttp's count.
    """

    def __init__(self, request: web.BaseRequest, patience: float, written: Callable[[], int] | None = None) -> None:
        self._request = request
        self._patience = patience
        self._written = written
        self._loop = asyncio.get_running_loop()
        self._taken = 0
        self._looks_in_vain = 0

    def __enter__(self) -> Self:
        self._look_again()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(self._patience / _LOOKS_PER_PATIENCE, self._look)

    def _look(self) -> None:
        transport = self._request.transport
        if transport is None:
            return
        waiting = transport.get_write_buffer_size()
        taken = (self._written() if self._written else self._request.writer.output_size) - waiting
        # Looks are counted, not seconds: a process that was held up itself must not blame its clients.
        self._looks_in_vain = self._looks_in_vain + 1 if waiting and taken <= self._taken else 0
        self._taken = taken
        if self._looks_in_vain > _LOOKS_PER_PATIENCE:
            transport.abort()
        else:
            self._look_again()
