"""Who may import whom, which files are pure, and where SQL, HTTP serving and environment reads may stand. Read from the source, not run."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "turnkeep": {"turnkeep"},
    "svckit": {"svckit", "turnkeep"},
    "history_svc": {"history_svc", "svckit", "turnkeep"},
    "orchestrator_svc": {"orchestrator_svc", "svckit", "turnkeep"},
    "http_edge": {"http_edge", "svckit", "turnkeep"},
    "launcher": {"launcher", "history_svc", "orchestrator_svc", "http_edge", "svckit", "turnkeep"},
}
OURS = {*MAY_IMPORT, "tests", "bench"}

PURE = (
    *(f"orchestrator_svc/turn/{name}.py" for name in ("events", "actions", "state", "machine", "output", "written", "parts", "shapes")),
    *(f"orchestrator_svc/turn/{name}.py" for name in ("response", "citations", "compacting", "claims", "snapshot", "takeover")),
    "orchestrator_svc/context/*.py",
    "orchestrator_svc/tools/table.py",
    "orchestrator_svc/providers/routing.py",
    "orchestrator_svc/providers/sse.py",
    "orchestrator_svc/items.py",
    "orchestrator_svc/input_items.py",
    "orchestrator_svc/request.py",
    "history_svc/model.py",
)
IMPURE = {
    *("asyncio", "concurrent", "contextvars", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "socket", "subprocess"),
    *("threading", "time", "uuid", "aiohttp", "grpc", "httpx", "prometheus_client", "psycopg", "psycopg_pool", "structlog"),
}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "types", "misc"}

HTTP_SERVERS = {"aiohttp.web", "http.server", "socketserver", "wsgiref"}
MAY_SERVE_HTTP = ("http_edge/", "svckit/telemetry.py")
MAY_READ_ENVIRONMENT = ("svckit/settings.py", "svckit/telemetry.py", "svckit/process.py", "launcher/command.py")
MAY_BUILD = ("orchestrator_svc/tools/", "orchestrator_svc/providers/")

STATEMENTS = ("select ", "insert into ", "update ", "delete from ", "create table ", "alter ", "drop ", "with ", "merge into ", "truncate ")
CLAUSES = (" from ", " into ", " set ", " values", " table ", " database ", " where ", " as (")


def files() -> list[str]:
    """All product modules that are written by hand, by their path from the root."""
    rooms = (room for room in MAY_IMPORT if room != "turnkeep")
    return sorted(str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py"))


def pure_files() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for pattern in PURE for path in ROOT.glob(pattern))


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text("utf-8"), file)


def imports(file: str) -> set[str]:
    """The dotted names that a module imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def packages(file: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(file)}


@pytest.mark.parametrize("file", files())
def test_imports_run_one_way(file: str) -> None:
    assert packages(file) & OURS <= MAY_IMPORT[file.partition("/")[0]]


def test_the_stubs_import_nothing_of_ours() -> None:
    for path in (ROOT / "turnkeep").rglob("*.py"):
        assert packages(str(path.relative_to(ROOT))) & OURS <= MAY_IMPORT["turnkeep"]


@pytest.mark.parametrize("file", pure_files())
def test_pure_files_import_values_only(file: str) -> None:
    assert not packages(file) & IMPURE


@pytest.mark.parametrize("file", files())
def test_http_is_served_at_the_edge_only(file: str) -> None:
    if not file.startswith(MAY_SERVE_HTTP):
        assert not imports(file) & HTTP_SERVERS


@pytest.mark.parametrize("file", files())
def test_the_environment_is_read_in_few_places_only(file: str) -> None:
    if file in MAY_READ_ENVIRONMENT or file.endswith("/__main__.py"):
        return
    allowed = set(build_function_lines(file)) if file.startswith(MAY_BUILD) else set()
    assert set(environment_lines(file)) <= allowed


def environment_lines(file: str) -> Iterator[int]:
    """Where the environment is touched: os.environ, os.getenv, or the call that hands it out."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.environb", "os.getenv"}:
            yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"environment", "getenv"}:
            yield node.lineno


def build_function_lines(file: str) -> Iterator[int]:
    """The lines of `build`, or of `open_NAME` in NAME.py: what makes the tool or provider of that file."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in {"build", f"open_{Path(file).stem}"}:
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


@pytest.mark.parametrize("file", files())
def test_sql_stands_in_sql_files_only(file: str) -> None:
    assert [text for text in strings(file) if is_sql(text)] == []


def strings(file: str) -> Iterator[str]:
    """All string literals that are no docstrings."""
    tree = parsed(file)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def is_sql(text: str) -> bool:
    words = f"{' '.join(text.lower().split())} "
    return words.startswith(STATEMENTS) and any(clause in words for clause in CLAUSES) and " " in words.strip()


def test_sql_files_belong_to_history() -> None:
    product = [path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.sql")]
    assert all(path.is_relative_to(ROOT / "history_svc" / "sql") for path in product)


@pytest.mark.parametrize("file", files())
def test_every_module_says_what_it_is(file: str) -> None:
    assert ast.get_docstring(parsed(file)), f"{file} has no docstring"


@pytest.mark.parametrize("file", files())
def test_every_file_is_named_after_something(file: str) -> None:
    assert not {part.removesuffix(".py") for part in file.split("/")} & NAMES_THAT_SAY_NOTHING
