"""How a process holds its memory: what glibc keeps, what the collector looks at, and how large the pages are. All of it is for speed alone.

What this system's C library or kernel does not offer is left as it is.
"""

import ctypes
import gc
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Values of a turn are trees, which die with their last reference: looking for cycles is worth it only now and then, and not after each 700
# new objects, which is the interpreter's way.
COLLECT_EVERY = 10_000
HUGE_PAGE_BYTES = 2 * 1024 * 1024

# glibc's mallopt(3): M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, in bytes.
_MALLOC = ((-1, 32 * 1024 * 1024), (-2, 1024 * 1024), (-3, 4 * 1024 * 1024))
# Linux's madvise(2), since 6.1.
_MADV_COLLAPSE = 25
_SMAPS = Path("/proc/self/smaps")
_WANTED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\b")
_HELD = re.compile(rb"Rss:\s+(\d+) kB")


def keep_freed_memory() -> None:
    """Has glibc keep up to 32 MB of free memory at the end of the heap, where it keeps 128 kB.

    Otherwise a turn with a long history gives its memory back at its end, and the next one takes it again, page by page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, size in _MALLOC:
            mallopt(parameter, size)


def keep_what_is_here() -> None:
    """To be called once a process is open: what it is made of stays to its end.

    So no collection needs to look at it again, which would stop everything for tens of milliseconds. And it moves to huge pages: a turn
    touches a little of nearly everything, and finding where a page is costs more than reading what is there.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
    use_huge_pages()


def use_huge_pages() -> None:
    """Moves what is in memory to huge pages, where the kernel can and the machine's operator has not forbidden them."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    with suppress(OSError):  # no Linux, or one that does not let us look
        if madvise is not None and b"[never]" not in _WANTED.read_bytes():
            for start, size in collapsible(_SMAPS.read_bytes()):
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_COLLAPSE)


def collapsible(smaps: bytes) -> Iterator[tuple[int, int]]:
    """Start and size of the memory, in whole huge pages, that could be in them without growing much, from what proc(5) tells of it.

    That is what belongs to no file and is in use for three quarters; a thread's stack is not, and would fill what it never needs.
    """
    bounds = None
    for line in smaps.splitlines():
        if mapping := _MAPPING.match(line):
            bounds = int(mapping[1], 16), int(mapping[2], 16)
        elif bounds and (held := _HELD.match(line)):
            (start, end), bounds = bounds, None
            first, last = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
            if last > first and int(held[1]) * 1024 >= 0.75 * (end - start):
                yield first, last - first
