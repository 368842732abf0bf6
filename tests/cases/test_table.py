"""The table of cases is true: every case has its row, and every test that a row names is collected and names the case.

What the table says about later work, nobody checks but its reader.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "README.md"
CASES = 116
LATER = ("tools", "surface", "providers", "memory")
ROW = re.compile(r"\| (B\d{3}) \| ([^|]+) \| ([^|]+) \|")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
THEME = re.compile(r"later: (\w+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One case: the tests that hold it, or the theme of the work that will bring it."""

    case: str
    tests: tuple[tuple[str, str], ...]
    later: str | None


def _rows() -> Iterator[Row]:
    for case, _, where in ROW.findall(TABLE.read_text("utf-8")):
        theme = THEME.search(where)
        yield Row(case, tuple(TEST.findall(where)), theme[1] if theme else None)


ROWS = tuple(_rows())


def test_every_case_has_one_row() -> None:
    assert len(ROWS) == len({row.case for row in ROWS}) == CASES


def test_every_row_names_a_test_or_what_will_bring_one() -> None:
    assert [row.case for row in ROWS if not row.tests and row.later not in LATER] == []


def test_every_test_of_the_table_is_collected() -> None:
    named = {test for row in ROWS for test in row.tests}
    assert sorted(named - _collected(tuple(sorted({path for path, _ in named})))) == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.tests], ids=lambda row: row.case)
def test_every_test_of_a_row_names_the_case(row: Row) -> None:
    assert [name for path, name in row.tests if not re.search(rf"(?<![A-Za-z0-9]){row.case}(?!\d)", _source(path).get(name, ""))] == []


def _collected(paths: tuple[str, ...]) -> set[tuple[str, str]]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {(path, name) for path, name in re.findall(r"^(tests/[\w/]+\.py)::(\w+)", listed, re.MULTILINE)}


@cache
def _source(path: str) -> dict[str, str]:
    """The source of each test of a file, decorators included, by name."""
    text = (ROOT / path).read_text("utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: "\n".join(text.splitlines()[_start(node) - 1 : node.end_lineno]) for node in found}


def _start(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
