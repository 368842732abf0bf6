"""Server-sent events, from bytes however they are cut to whole events. Pure: bytes go in, events come out."""

# An event larger than this is no event of ours; it bounds what is kept of a line that never ends.
MAX_EVENT_BYTES = 32 * 1024 * 1024

Event = tuple[bytes, bytes]

_MARK = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event has grown past the bound."""


class Parser:
    """Cuts one stream into (event name, data); comments, other fields and events without data are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_start = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are whole now. Raises EventTooLarge."""
        text = self._rest + chunk
        if self._is_start:
            text, self._is_start = text.removeprefix(_MARK), len(text) < len(_MARK) and _MARK.startswith(text)
        held = b"\r" if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = text.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge
        return _events(blocks)

    def end(self) -> list[Event]:
        """The last event of a stream that ends without a blank line."""
        rest, self._rest = self._rest, b""
        return _events([rest.rstrip(b"\r")])


def _events(blocks: list[bytes]) -> list[Event]:
    return [event for event in map(_event, blocks) if event[1]]


def _event(block: bytes) -> Event:
    name, data = b"", []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(_value(line, 5))
        elif line.startswith(b"event:"):
            name = _value(line, 6)
    return name, data[0] if len(data) == 1 else b"\n".join(data)


def _value(line: bytes, start: int) -> bytes:
    return line[start + 1 :] if line[start : start + 1] == b" " else line[start:]
