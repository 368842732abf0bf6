"""How columns are written: as the binary form of a Postgres array, in one go.

psycopg's own way with lists looks at each of their elements to find out what it is, for every statement anew.
"""

import struct
from collections.abc import Callable
from typing import ClassVar

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

from history_svc.columns import Blobs, Flags, Ints, Texts

_EMPTY = struct.Struct("!iiI").pack
_HEAD = struct.Struct("!iiIii").pack
_SIZE = struct.Struct("!i").pack
_NULL = _SIZE(-1)


class _ArrayDumper(Dumper):
    """The binary form of an array: its dimensions, whether it may hold nulls, its elements' type, their number and where they begin."""

    format = Format.BINARY
    element_oid: ClassVar[int]
    write: ClassVar[Callable[..., bytes]]

    def dump(self, obj: list[object]) -> Buffer | None:
        if not obj:
            return _EMPTY(0, 0, self.element_oid)
        write, parts = type(self).write, [_HEAD(1, 1, self.element_oid, len(obj), 1)]
        for element in obj:
            if element is None:
                parts.append(_NULL)
            else:
                data = write(element)
                parts += (_SIZE(len(data)), data)
        return b"".join(parts)


class _TextsDumper(_ArrayDumper):
    oid, element_oid, write = 1009, 25, staticmethod(str.encode)


class _BlobsDumper(_ArrayDumper):
    oid, element_oid, write = 1001, 17, staticmethod(bytes)


class _IntsDumper(_ArrayDumper):
    oid, element_oid, write = 1007, 23, staticmethod(_SIZE)


class _FlagsDumper(_ArrayDumper):
    oid, element_oid, write = 1000, 16, staticmethod(struct.Struct("!?").pack)


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    for kind, dumper in ((Texts, _TextsDumper), (Blobs, _BlobsDumper), (Ints, _IntsDumper), (Flags, _FlagsDumper)):
        adapters.register_dumper(kind, dumper)
    return adapters


# What connections are opened with.
ADAPTERS = _adapters()
