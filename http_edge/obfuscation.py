"""`stream_options.include_obfuscation`: random padding in deltas, so that the size of what is sent does not tell how long a token was."""

import secrets

from http_edge.render import extended

_BLOCK = 64
_FRAME = len(b',"obfuscation":""')
_ENOUGH_BYTES = _BLOCK  # a byte gives more than one character


def obfuscated(data: bytes) -> bytes:
    """A delta with random text in it that makes it a whole number of blocks long."""
    missing = -(len(data) + _FRAME) % _BLOCK
    return extended(data, b'"obfuscation":"' + secrets.token_urlsafe(_ENOUGH_BYTES)[:missing].encode() + b'"')
