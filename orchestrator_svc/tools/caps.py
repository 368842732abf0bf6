"""The cap on what a tool may say: a text, to at most so many bytes of UTF-8, with a mark where it was cut. Pure."""


def capped(text: str, max_bytes: int) -> str:
    """`text`, or its start and a note that says how much was left out; never more than `max_bytes` bytes, the note included.

    The cut falls between characters. Where not even the note fits, it is left out.
    """
    if len(text) * 4 <= max_bytes:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= max_bytes:
        return text
    room = max_bytes - len(_note(len(encoded), len(encoded)))
    if room < 0:
        return _start(encoded, max_bytes)
    start = _start(encoded, room)
    return start + _note(len(start.encode()), len(encoded)).decode()


def _start(encoded: bytes, size: int) -> str:
    return encoded[: max(size, 0)].decode("utf-8", "ignore")


def _note(shown: int, whole: int) -> bytes:
    return f"\n[cut: {shown} of {whole} bytes shown]".encode()
