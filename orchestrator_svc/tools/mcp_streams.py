"""The SDK's streams to and from an MCP server: they note on the exchange that something was sent, and when the server has ended."""

import asyncio
import contextvars
import os
from types import TracebackType
from typing import Self, TextIO

from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from orchestrator_svc.tools.mcp_http import EXCHANGE


class Reads:
    """The SDK's stream of what a server says; knows when it has ended."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], closed: asyncio.Future[None]) -> None:
        self._inner = inner
        self._closed = closed

    @property
    def last_context(self) -> contextvars.Context | None:
        """The context in which the last message was sent, where the stream knows."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return await self._inner.__anext__()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        settle(self._closed)
        return await self._inner.__aexit__(kind, error, trace)


class Writes:
    """The SDK's stream of what is said to a server; notes on the exchange that something was."""

    def __init__(self, inner: WriteStream[SessionMessage]) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        exchange = EXCHANGE.get()
        if exchange is not None:
            exchange.sent = True
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


def nowhere() -> TextIO:
    """Where a command's own log goes: it may hold anything."""
    return open(os.devnull, "w")


def settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
