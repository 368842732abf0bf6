"""Server-sent events, however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator_svc.providers.sse import MAX_EVENT_BYTES, Event, EventTooLarge, Parser

STREAMS: dict[str, tuple[bytes, list[Event]]] = {
    "one event": (b"event: a\ndata: 1\n\n", [(b"a", b"1")]),
    "no name": (b"data: 1\n\n", [(b"", b"1")]),
    "several events": (b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n", [(b"a", b"1"), (b"b", b"2")]),
    "no space behind the colon": (b"event:a\ndata:1\n\n", [(b"a", b"1")]),
    "two spaces": (b"data:  1\n\n", [(b"", b" 1")]),
    "carriage returns and line feeds": (b"event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", [(b"a", b"1"), (b"", b"2")]),
    "carriage returns": (b"event: a\rdata: 1\r\rdata: 2\r\r", [(b"a", b"1"), (b"", b"2")]),
    "comments": (b": hi\n\n: hi\ndata: 1\n: hi\n\n:\n\n", [(b"", b"1")]),
    "other fields": (b"id: 5\nretry: 5\ndata: 1\nodd\n\n", [(b"", b"1")]),
    "several lines of data": (b"data: {\ndata: }\n\n", [(b"", b"{\n}")]),
    "an event without data": (b"event: a\n\ndata: 1\n\n", [(b"", b"1")]),
    "more blank lines": (b"\n\n\ndata: 1\n\n\n\n\ndata: 2\n\n", [(b"", b"1"), (b"", b"2")]),
    "a byte order mark": (b"\xef\xbb\xbfdata: 1\n\n", [(b"", b"1")]),
    "no blank line at the end": (b"data: 1\n\nevent: a\ndata: 2\n", [(b"", b"1"), (b"a", b"2")]),
    "no line end at the end": (b"data: 1\n\ndata: 2", [(b"", b"1"), (b"", b"2")]),
    "half a line end at the end": (b"data: 1\r\n\r\ndata: 2\r", [(b"", b"1"), (b"", b"2")]),
    "text of many bytes": ("data: 阴气渐重🍸é\n\n".encode(), [(b"", "阴气渐重🍸é".encode())]),
    "separators that are none": ("data: a\u2028b\x0bc\x85\n\n".encode(), [(b"", "a\u2028b\x0bc\x85".encode())]),
    "nothing": (b"", []),
}


def read(pieces: list[bytes]) -> list[Event]:
    parser = Parser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.end()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_read_whole_and_byte_by_byte_b119(name: str) -> None:
    stream, events = STREAMS[name]

    assert read([stream]) == events
    assert read([stream[n : n + 1] for n in range(len(stream))]) == events


@given(st.sampled_from(list(STREAMS.values())), st.lists(st.integers(0, 200), max_size=8))
def test_where_a_stream_is_cut_does_not_matter_b119_b120(case: tuple[bytes, list[Event]], edges: list[int]) -> None:
    stream, events = case
    cuts = sorted({0, len(stream), *(edge for edge in edges if edge < len(stream))})

    assert read([stream[start:end] for start, end in pairwise(cuts)]) == events


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    parser = Parser()

    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [(b"", b"1")]
    assert parser.feed(b"data: 2\r\n\r\ndata") == [(b"", b"2")]
    assert parser.end() == []


def test_an_event_in_many_pieces_is_put_together_once() -> None:
    class Counted(bytes):
        joined = 0

        def __radd__(self, other: bytes) -> bytes:
            Counted.joined += 1
            return other + bytes(self)

    parser = Parser()
    pieces = [b"data: ", *[Counted(b"x")] * 1000, b"\n\n"]

    events = [event for piece in pieces for event in parser.feed(piece)]

    assert (events, Counted.joined) == ([(b"", b"x" * 1000)], 0)


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    parser = Parser()
    parser.feed(b"data: ")

    with pytest.raises(EventTooLarge):
        parser.feed(b"x" * MAX_EVENT_BYTES)
