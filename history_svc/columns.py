"""Columns: lists of one kind, as statements are given them. How they are written is in `arrays`."""


class Texts(list[str]):
    """text[]"""


class Blobs(list[bytes | None]):
    """bytea[]"""


class Ints(list[int]):
    """int[]"""


class Flags(list[bool]):
    """boolean[]"""
