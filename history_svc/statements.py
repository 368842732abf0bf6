"""The statements of `sql/queries.sql` by name. The SQL itself stands there."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def _statements() -> dict[str, str]:
    text = files("history_svc").joinpath("sql/queries.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    return {name: _without_comments(sql) for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def _without_comments(sql: str) -> str:
    """Without leading comments and indentation: psycopg keeps the parsed form of short statements only."""
    lines = (line.strip() for line in sql.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


STATEMENTS = _statements()
