"""One HTTP/1.1 connection to a server, which carries one exchange after the other: a request out, the bytes of its answer in.

llhttp parses (by httptools), and what it finds goes to the exchange's receiver in the callback that read it: between a network read and
what is done with it stands no wake-up of a task. How long a receiver waits, addresses and what the bytes mean are others' business.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from svckit.patience import Patience

# More than this without a byte of a body is no head, no trailer and no size of a chunk that anybody needs.
MAX_HEAD_BYTES = 64 * 1024
_PART_BYTES = 256 * 1024
_REDIRECTED = 300

Headers = tuple[tuple[str, str], ...]


class BrokenOff(ConnectionError):
    """The answer will not become whole: the server has closed the connection, or does not speak HTTP."""


class Receiver(Protocol):
    """Whose an answer is. Called from the event loop's callbacks, so none of these may wait or raise."""

    def begin(self, status: int, headers: Headers) -> None:
        """The head has come; names are in lower case, and a name may come twice."""

    def take(self, data: bytes) -> None:
        """A piece of the body has come."""

    def end(self) -> None:
        """The answer is whole, and the connection free."""

    def break_off(self, error: Exception) -> None:
        """The answer will not become whole."""


class Connection(asyncio.Protocol):
    """Made by an event loop's `create_connection`. Its patience is for its receivers, one after the other."""

    _transport: asyncio.Transport
    _is_tls = False

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._loop = asyncio.get_running_loop()
        self._parser = HttpResponseParser(self)
        # what engines have been seen to do, and no more: aiohttp's client takes the same
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        self._receiver: Receiver | None = None
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._bytes_without_body = 0
        self._has_head = self._is_interim = self._is_whole = False
        self._is_paused = self._is_sending = self._wants_no_more = self._keeps = False
        self._writable: asyncio.Future[None] | None = None
        self.has_heard = False
        self.is_lost = self._is_aborted = False

    @property
    def is_free(self) -> bool:
        """May another request be sent? Not behind one of which the server has not been sent all: it would read this one as the rest."""
        is_idle = self._receiver is None and self._keeps and not self._is_sending
        return is_idle and not self._transport.is_closing() and not self._transport.get_write_buffer_size()

    async def send(self, head: bytes, body: tuple[bytes, ...], receiver: Receiver) -> None:
        """Sends a request. An answer that refuses it, or is whole, before all of it is out leaves the rest unsent. Raises OSError."""
        if self.is_lost:
            raise BrokenOff("the server closed the connection")
        self._receiver = receiver
        self._has_head = self._is_interim = self._is_whole = self._keeps = self.has_heard = False
        self._is_sending, self._wants_no_more = True, False
        for part in _parts(head, body):
            if self._wants_no_more or self._transport.is_closing():
                return
            if self._is_tls:
                self._transport.write(b"".join(part))  # else each piece would be a record of its own
            else:
                self._transport.writelines(part)
            if self._writable is not None:
                await self._writable
        self._is_sending = False

    def hold(self) -> None:
        """Reads no more until `go_on`."""
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Reads again, if it was held."""
        if self._is_paused:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self) -> None:
        """Breaks the connection; the receiver hears no more."""
        self.patience.close()  # also of one that was lost before its receiver came
        self._receiver = None
        self._transport.abort()

    def abort(self) -> None:
        """Breaks the connection, and with it the answer."""
        self._is_aborted = True
        self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._is_tls = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            return self.close()  # nobody has asked
        self.has_heard = True
        broken: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as exc:
            broken, self._keeps = BrokenOff(f"this is no HTTP/1.1: {exc}"), False
        if self._body:
            body, self._body = self._body, []
            self._bytes_without_body = 0
            receiver.take(body[0] if len(body) == 1 else b"".join(body))
        elif not self._is_whole:
            self._bytes_without_body += len(data)
            if self._bytes_without_body > MAX_HEAD_BYTES:
                broken = BrokenOff(f"a head of more than {MAX_HEAD_BYTES} bytes")
        if self._is_whole and self._receiver is receiver:
            self._receiver, self._bytes_without_body = None, 0
            receiver.end()
        elif broken is not None:
            self.close()
            receiver.break_off(broken)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.patience.close()
        del self._parser  # which holds this in turn
        self._let_write()
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if exc is None and not self._is_aborted and self._has_head and not _has_length(self._headers):
            receiver.end()  # such a body ends with the connection
        else:
            receiver.break_off(exc if isinstance(exc, OSError) else BrokenOff("the server closed the connection"))

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        self._let_write()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._headers = []
        if self._is_whole:
            self._keeps = False  # an answer that nobody asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self._headers.append((name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_interim = status < 200
        if not self._is_interim and not self._has_head and self._receiver is not None:
            self._has_head = True
            self._receiver.begin(status, tuple(self._headers))
            if status >= _REDIRECTED:
                self._want_no_more()

    def on_body(self, data: bytes) -> None:
        if not self._is_whole:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if not self._is_interim and not self._is_whole:
            self._is_whole, self._keeps = True, self._parser.should_keep_alive()
            self._want_no_more()

    def _want_no_more(self) -> None:
        """Whatever of the request is not out need not go out."""
        self._wants_no_more = True
        self._let_write()

    def _let_write(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)


def _has_length(headers: Iterable[tuple[str, str]]) -> bool:
    return any(name in ("content-length", "transfer-encoding") for name, _ in headers)


def _parts(head: bytes, body: tuple[bytes, ...]) -> Iterator[list[bytes]]:
    """The request in parts of about 256 KiB, each to be sent at once: one send for each comma would be too many."""
    part, size = [head], len(head)
    for piece in body:
        part.append(piece)
        size += len(piece)
        if size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
