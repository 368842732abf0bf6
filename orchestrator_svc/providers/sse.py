"""Server-sent events, from bytes however they are cut to whole events. Pure: bytes go in, events come out."""

import re

# An event larger than this is no event of ours; it bounds what is kept of a line that never ends.
MAX_EVENT_BYTES = 32 * 1024 * 1024

Event = tuple[bytes, bytes]

_MARK = b"\xef\xbb\xbf"
# An event as nearly all are written, and a read that holds one of them and nothing else: each taken apart at once.
_USUAL = re.compile(rb"(?:event: ([^\n]*)\n)?data: ([^\n]*)\Z")
_USUAL_READ = re.compile(rb"(?:event: ([^\r\n]*)\n)?data: ([^\r\n]+)\n\n\Z")


class EventTooLarge(Exception):
    """An event has grown past the bound."""


class Parser:
    """Cuts one stream into (event name, data); comments, other fields and events without data are dropped."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_start = True

    def usual(self, chunk: bytes) -> Event | None:
        """The event, if the chunk is one whole event and no other awaits its end; the parser stays as it is."""
        if self._size or self._is_start or not (usual := _USUAL_READ.match(chunk)):
            return None
        return usual[1] or b"", usual[2]

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are whole now. Raises EventTooLarge."""
        if usual := self.usual(chunk):
            return [usual]
        may_end_here = self._is_start or b"\n" in chunk or b"\r" in chunk or (bool(self._pieces) and self._pieces[-1].endswith(b"\r"))
        self._keep(chunk)
        # pieces of a long line are put together once, at its end: each time anew would cost the square of their number
        events = self._cut() if may_end_here else []
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLarge
        return events

    def end(self) -> list[Event]:
        """The last event of a stream that ends without a blank line."""
        return _events([self._taken().rstrip(b"\r")])

    def _cut(self) -> list[Event]:
        text = self._taken()
        if self._is_start:
            text, self._is_start = text.removeprefix(_MARK), len(text) < len(_MARK) and _MARK.startswith(text)
        held = b"\r" if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = text.split(b"\n\n")
        self._keep(rest + held)
        return _events(blocks)

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)

    def _taken(self) -> bytes:
        text = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return text


def _events(blocks: list[bytes]) -> list[Event]:
    return [event for event in map(_event, blocks) if event[1]]


def _event(block: bytes) -> Event:
    if usual := _USUAL.match(block):
        return usual[1] or b"", usual[2]
    name, data = b"", []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(_value(line, 5))
        elif line.startswith(b"event:"):
            name = _value(line, 6)
    return name, data[0] if len(data) == 1 else b"\n".join(data)


def _value(line: bytes, start: int) -> bytes:
    return line[start + 1 :] if line[start : start + 1] == b" " else line[start:]
