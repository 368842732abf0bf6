"""The answer to one request to an engine: its head, its body in chunks as they arrive, and how long each is waited for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from orchestrator_svc.errors import EngineError, EngineStreamInterrupted, EngineTimeout
from orchestrator_svc.providers.http_connection import Connection, Headers

_UNREAD_BYTES = 256 * 1024
_MAX_WHOLE_BYTES = 32 * 1024 * 1024
_LAST_BYTES_SECONDS = 0.05


class Answer(AsyncIterator[bytes]):
    """An engine's answer: its head, and its body in chunks as they arrive, for one task. As a context it is left with its connection.

    Reading raises EngineTimeout when the body pauses too long, EngineStreamInterrupted when it breaks off.
    """

    def __init__(self, connection: Connection, ended: Callable[[Connection], None]) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.is_over = False
        self._connection = connection
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._taker: Callable[[bytes], bool] | None = None
        self._news: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._patience = connection.patience
        self._patience.begin(self._expire)
        self._patience.since = self._loop.time()  # until the head is waited for, the request is on its way out

    def header(self, name: str) -> str:
        """A header's value, or nothing."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def content_type(self) -> str:
        """The media type, without its parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def is_good(self) -> bool:
        """Does the status say that it went well?"""
        return 200 <= self.status < 300

    async def head(self) -> None:
        """Waits for the head. Raises EngineTimeout, and OSError where there will be none."""
        while not self.status and not self.is_over:
            await self._wait()
        if not self.status:
            raise self._told_error()
        if not self.is_over:
            self._patience.since = None

    def hand_to(self, taker: Callable[[bytes], bool]) -> None:
        """From now on each chunk that arrives while its reader waits is given to `taker` at once, in the callback that read it.

        It comes to the reader only if that says False. What `taker` raises ends the answer, and is raised to the reader.
        """
        self._taker = taker

    async def __anext__(self) -> bytes:
        while not self._unread and not self.is_over:
            await self._wait()
        if self._unread:
            unread, self._unread, self._unread_bytes = self._unread, [], 0
            if not self.is_over:  # else the connection is another answer's by now
                self._connection.go_on()
            return unread[0] if len(unread) == 1 else b"".join(unread)
        if self._error is None:
            raise StopAsyncIteration
        raise self._told_error()

    async def whole(self) -> bytes:
        """All of the body. Raises EngineError where it is too large."""
        chunks, size = [], 0
        async for chunk in self:
            chunks.append(chunk)
            size += len(chunk)
            if size > _MAX_WHOLE_BYTES:
                raise EngineError
        return b"".join(chunks)

    async def settle(self) -> None:
        """Reads the last bytes of an answer that is over, so that its connection can be used again; waits for them only shortly."""
        self._taker = None
        if self.is_over:
            return
        with suppress(TimeoutError, EngineTimeout, EngineStreamInterrupted):
            async with asyncio.timeout(_LAST_BYTES_SECONDS):
                async for _ in self:
                    pass

    def close(self) -> None:
        """Wants no more of it."""
        if not self.is_over:
            self._over()
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # What the connection calls.

    def begin(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._wake()

    def take(self, data: bytes) -> None:
        self._patience.go_on()
        if self._taker is not None and self._news is not None and not self._unread and not self._news.done():
            try:
                if self._taker(data):
                    self._patience.since = self._loop.time()
                    return
            except Exception as exc:
                self._error = exc
                self.close()
                self._wake()
                return
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes >= _UNREAD_BYTES:
            self._connection.hold()
        self._wake()

    def end(self) -> None:
        self._over()
        self._connection.go_on()
        self._ended(self._connection)
        self._wake()

    def break_off(self, error: Exception) -> None:
        self._over()
        self._error = self._error or (_interrupted(error) if self.status else error)
        self._wake()

    async def _wait(self) -> None:
        """Until something of the answer has come."""
        self._news = self._loop.create_future()
        self._patience.since = self._loop.time()
        try:
            await self._news
        finally:
            self._news = None
            if not self.is_over:
                self._patience.since = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._patience.since = None  # should the timer be due in this very moment, it is too late
            self._news.set_result(None)

    def _over(self) -> None:
        """From here on the connection, and its patience, may be another answer's."""
        self.is_over = True
        self._patience.end()

    def _told_error(self) -> Exception:
        """The error, to be raised. It is held no longer: it will hold the frames that it passes, and those hold this."""
        assert self._error is not None
        error, self._error = self._error, EngineStreamInterrupted()
        return error

    def _expire(self) -> None:
        self._error = self._error or EngineTimeout()
        self.close()
        self._wake()


def _interrupted(cause: Exception) -> EngineStreamInterrupted:
    error = EngineStreamInterrupted()
    error.__cause__ = cause
    return error
