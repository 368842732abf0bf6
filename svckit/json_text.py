"""Reading JSON that is valid in all but its surrogates; for everything else this is msgspec.

Engines and clients escape half of a surrogate pair now and then. Such text has no UTF-8 form, so it can be neither stored nor sent: the
half becomes U+FFFD here, unless its other half comes later (`halves_joined`).
"""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

JsonObject = dict[str, object]

T = TypeVar("T")

encode = msgspec.json.Encoder().encode
_decoder: Callable[..., msgspec.json.Decoder[Any]] = cache(msgspec.json.Decoder)  # making one costs as much as using it

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_LONE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}\Z")


def decode(data: bytes, kind: type[T]) -> T:
    """Decodes like `msgspec.json.decode`, with lone surrogates as U+FFFD. Raises msgspec.MsgspecError."""
    decoder: msgspec.json.Decoder[T] = _decoder(kind)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        repaired = without_lone_surrogates(data)
        if repaired == data:
            raise
        return decoder.decode(repaired)


def without_lone_surrogates(data: bytes) -> bytes:
    """The same JSON text with every escape of half a surrogate pair written as `\\ufffd`."""
    return _ESCAPE.sub(lambda match: rb"\ufffd" if _LONE.match(match[0]) else match[0], data)


def decode_with_halves(data: bytes) -> object:
    """Decodes JSON text and keeps lone surrogates in the strings, for a caller that may hold the other half."""
    return json.loads(data)


def halves_joined(text: str) -> str:
    """`text` with surrogate pairs made whole and lone halves as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def has_halves(text: str) -> bool:
    """Whether a lone surrogate stands in `text`, which then cannot be written as UTF-8: a byte that was none, or half a character."""
    return not text.isascii() and bool(_HALF.search(text))


def ends_in_half(text: str) -> bool:
    """Whether `text` ends in the first half of a surrogate pair."""
    return "\ud800" <= text[-1:] <= "\udbff"
