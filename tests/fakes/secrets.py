"""Looks for planted secrets in bytes that must not hold them: logs, bodies, dumps, files.

A test plants a `marker()` where a secret would stand, runs, and gives every collection it can reach to `found`.
"""

import base64
import json
import secrets
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path


def marker(name: str = "secret") -> str:
    """A value that occurs nowhere else, and that says in a log what it was planted as."""
    return f"planted-{name}-{secrets.token_hex(8)}"


def spellings(planted: str) -> tuple[bytes, ...]:
    """The forms in which a value travels: plain, JSON-escaped, URL-quoted, base64 (at each of the three alignments), hex, UTF-16."""
    raw = planted.encode()
    escaped = [json.dumps(planted, ensure_ascii=ascii)[1:-1].encode() for ascii in (True, False)]
    forms = [raw, *escaped, urllib.parse.quote(planted, safe="").encode(), raw.hex().encode()]
    return tuple(dict.fromkeys([*forms, planted.encode("utf-16-le"), *_base64_cores(raw)]))


def _base64_cores(raw: bytes) -> list[bytes]:
    """The part of the base64 text that does not depend on the bytes around the value."""
    cores: list[bytes] = []
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + raw).rstrip(b"=")
        cores.append(whole[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6])
    return cores


def found(planted: Iterable[str], places: Mapping[str, bytes | str | Path | Iterable[bytes]]) -> list[str]:
    """Every place that holds a planted value in any spelling, as sentences; empty when all is clean.

    A path is searched with all files below it.
    """
    values = {value: spellings(value) for value in planted}
    return [
        f"{value} stands in {where}: ...{_around(data, form)!r}..."
        for where, data in _flat(places)
        for value, forms in values.items()
        for form in forms
        if form in data
    ]


def _flat(places: Mapping[str, bytes | str | Path | Iterable[bytes]]) -> Iterable[tuple[str, bytes]]:
    for name, content in places.items():
        if isinstance(content, bytes | bytearray):
            yield name, bytes(content)
        elif isinstance(content, str):
            yield name, content.encode("utf-8", "surrogatepass")
        elif isinstance(content, Path):
            for file in [content] if content.is_file() else sorted(content.rglob("*")):
                if file.is_file():
                    yield f"{name} ({file.name})", file.read_bytes()
        else:
            yield from ((f"{name}[{number}]", bytes(entry)) for number, entry in enumerate(content))


def _around(data: bytes, form: bytes) -> bytes:
    start = data.index(form)
    return data[max(0, start - 40) : start + len(form) + 40]
