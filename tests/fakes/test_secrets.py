"""The search for planted secrets finds them in every spelling, and finds nothing where nothing is."""

import base64
import json
import urllib.parse
from pathlib import Path

import pytest

from tests.fakes.secrets import found, marker

SECRET = 'sk-"quoted"/ünïcode+7'


@pytest.mark.parametrize(
    "hidden",
    [
        SECRET.encode(),
        json.dumps({"key": SECRET}).encode(),
        json.dumps({"key": SECRET}, ensure_ascii=False).encode(),
        urllib.parse.quote(SECRET, safe="").encode(),
        base64.b64encode(SECRET.encode()),
        base64.b64encode(b"a" + SECRET.encode() + b"b"),
        base64.b64encode(b"ab" + SECRET.encode()),
        SECRET.encode().hex().encode(),
        SECRET.encode("utf-16-le"),
    ],
)
def test_a_secret_is_found_in_each_spelling(hidden: bytes) -> None:
    assert found([SECRET], {"log": b"before " + hidden + b" after"})


def test_nothing_is_found_where_nothing_was_planted(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("all quiet")
    assert found([SECRET, marker()], {"bytes": b"x", "text": "y", "parts": [b"z"], "tree": tmp_path}) == []


def test_every_kind_of_place_is_searched_and_named(tmp_path: Path) -> None:
    planted = marker("token")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "dump.sql").write_text(f"insert {planted}")
    hits = found([planted], {"bytes": planted.encode(), "text": planted, "parts": [b"", planted.encode()], "tree": tmp_path})
    assert [hit.split(" stands in ")[1].split(": ")[0] for hit in hits] == ["bytes", "text", "parts[1]", "tree (dump.sql)"]


def test_two_markers_are_never_the_same() -> None:
    assert marker() != marker()
