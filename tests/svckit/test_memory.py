"""What a process is made of is collected no more and lies in huge pages, and memory that was used once is there for the next turn."""

import ctypes
import mmap
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from svckit import memory
from svckit.memory import HUGE_PAGE_BYTES, collapsible, use_huge_pages

OPEN = """
import gc
from svckit.memory import COLLECT_EVERY, keep_what_is_here

keep_what_is_here()
print(gc.get_freeze_count() > 1_000, gc.get_threshold()[0] == COLLECT_EVERY, len(gc.get_objects()) < 1_000)
"""


def test_what_an_open_process_is_made_of_is_collected_no_more() -> None:
    told = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, check=True)
    assert told.stdout == "True True True\n"


MEMORY = """
import resource
from svckit.lifecycle import run

def faults(pieces):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [bytes(32_000) for _ in range(pieces)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

async def main(stop):
    print(faults(500) > 1_000, faults(500) < 200)

run(main)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told to keep memory")
def test_memory_that_was_used_once_is_there_for_the_next_turn() -> None:
    told = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert told.stdout == "True True\n"


def kernel_collapses() -> bool:
    """Can this system move memory to huge pages when it is asked to, and may it?"""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    wanted = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if madvise is None or not wanted.exists() or "[never]" in wanted.read_text():
        return False
    with mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as piece:
        piece.write(bytes(len(piece)))
        view = ctypes.c_char.from_buffer(piece)
        start = -(-ctypes.addressof(view) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        try:
            return bool(madvise(ctypes.c_void_p(start), ctypes.c_size_t(HUGE_PAGE_BYTES), 25) == 0)
        finally:
            del view


HUGE = """
import re
from pathlib import Path
from svckit.memory import keep_what_is_here

def held():
    told = Path("/proc/self/smaps_rollup").read_text()
    return [int(re.search(rf"{name}:\\s+(\\d+) kB", told)[1]) for name in ("AnonHugePages", "Rss")]

kept = [str(number) for number in range(400_000)]
(small, before), _ = held(), keep_what_is_here()
huge, after = held()
print(huge - small >= 8 * 1024, after - before < 4 * 1024)
"""


@pytest.mark.skipif(not kernel_collapses(), reason="this machine does not move memory to huge pages on demand")
def test_what_an_open_process_is_made_of_moves_to_huge_pages_without_becoming_larger() -> None:
    told = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, check=True)
    assert told.stdout == "True True\n"


def mapping(bounds: str, rights: str, inode: str, held_kb: int) -> bytes:
    return f"{bounds} {rights} 00000000 00:00 {inode}  caf\xe9\nSize:  8192 kB\nRss:  {held_kb} kB\nPss:  1 kB\n".encode("latin-1")


def test_only_memory_that_belongs_to_no_file_and_is_in_use_moves_and_in_whole_huge_pages() -> None:
    smaps = b"".join(
        [
            mapping("00500000-00d00000", "rw-p", "0", 8192),
            mapping("01000000-01800000", "rw-p", "0", 132),  # a thread's stack
            mapping("02000000-02800000", "rw-p", "4711", 8192),  # of a file
            mapping("03000000-03800000", "r--p", "0", 8192),
            mapping("04000000-04800000", "rw-s", "0", 8192),
            mapping("05100000-053fffff", "rw-p", "0", 3072),  # holds no whole huge page
        ]
    )
    assert list(collapsible(smaps)) == [(0x600000, 0x600000)]


SMAPS = mapping("00400000-00c00000", "rw-p", "0", 8192)


@pytest.mark.parametrize(
    ("smaps", "wanted", "moved"),
    [
        (SMAPS, b"always [madvise] never", 1),
        (SMAPS, b"always madvise [never]", 0),
        (SMAPS, None, 0),
        (None, b"[always] madvise never", 0),
    ],
)
def test_where_huge_pages_are_not_wanted_or_not_to_be_seen_nothing_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smaps: bytes | None, wanted: bytes | None, moved: int
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(madvise=lambda *given: calls.append(given)))
    for name, content in (("_SMAPS", smaps), ("_WANTED", wanted)):
        place = tmp_path / name
        place.write_bytes(content) if content is not None else place.mkdir()  # which nobody can read
        monkeypatch.setattr(memory, name, place)
    use_huge_pages()
    assert len(calls) == moved
