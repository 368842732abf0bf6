"""The `turnkeep` command as a process, and a Postgres server for the session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.process import Turnkeep
from tests.postgres import postgres_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a Postgres server of this session's own."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as dsn:
        yield dsn


@pytest.fixture
def turnkeep(tmp_path: Path) -> Iterator[Turnkeep]:
    """Runs the command; whatever still runs at the end of the test is ended."""
    with Turnkeep(tmp_path) as command:
        yield command
