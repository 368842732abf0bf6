"""The documents against the code: links, tables, commands and names are compared, and what the README shows to be typed is run."""

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import msgspec
import prometheus_client
import pytest

from history_svc import errors as history_errors
from history_svc.settings import Settings as HistorySettings
from http_edge import errors as edge_errors
from http_edge.settings import Settings as EdgeSettings
from launcher.command import main
from launcher.rooms import ROOMS, Source, load_settings, open_rooms
from orchestrator_svc import errors as orchestrator_errors
from orchestrator_svc.settings import Settings as OrchestratorSettings
from svckit import errors as shared_errors
from svckit.errors import ServiceError
from svckit.settings import ENV_PREFIX
from tests.fakes.engine import FakeEngine
from tests.postgres import postgres_server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for pattern in ("*.md", "docs/**/*.md", "tests/**/*.md", "bench/*.md") for path in ROOT.glob(pattern)
)
ADDRESS = "http://127.0.0.1:8080"
FILE_ONLY = "in the file only"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")


# Links.


def prose_of(document: str) -> str:
    return _FENCE.sub("", (ROOT / document).read_text("utf-8"))


def anchors_of(document: str) -> set[str]:
    """The anchors of a document's headings, as they are made for Markdown on the usual hosts."""
    headings = re.findall(r"^#+ (.+)$", prose_of(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_relative_link_leads_somewhere(document: str) -> None:
    for link in _LINK.findall(prose_of(document)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(str(target.resolve().relative_to(ROOT))), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    rooms = ("svckit", "history_svc", "orchestrator_svc", "http_edge", "launcher", "protos", "turnkeep", "tests", "docs", "bench")
    for name in _CODE.findall(prose_of(document)):
        if name.startswith(tuple(f"{room}/" for room in rooms)) and not set(name) & set(" *<{…"):
            assert (ROOT / name.partition("::")[0]).exists(), name


def test_the_records_of_decisions_are_numbered_and_say_the_same_three_things() -> None:
    records = sorted((ROOT / "docs/adr").glob("*.md"))
    assert [path.name[:4] for path in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for path in records:
        assert re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE) == ["Context", "Decision", "Consequences"], path.name


# Tables.


def rows_under(heading: str, cells: int) -> Iterator[tuple[str, ...]]:
    """The rows of all tables with so many columns between a heading and the next of its kind."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        row = tuple(cell.strip() for cell in line.strip("|").split(" | "))
        if line.startswith("|") and not line.startswith("|---") and len(row) == cells:
            yield row


def documented_settings() -> list[tuple[str, str, str, str]]:
    """Section, key, default and environment name of each row."""
    found, section = [], ""
    for line in README.partition("\n## Settings\n")[2].partition("\n## ")[0].splitlines():
        if named := re.match(r"`\[(\w+)\]`", line):
            section = named[1]
        cells = [cell.strip().strip("`") for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            found.append((section, cells[0], cells[1], cells[2]))
    return found


def settings_of_the_code() -> list[tuple[str, str, str, str]]:
    sections = {
        section.encode_name: section.type
        for kind in (HistorySettings, OrchestratorSettings, EdgeSettings)
        for section in msgspec.structs.fields(kind)
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct)
    }
    return [
        (name, key.encode_name, in_toml(default_of(key)), environment_name(name, key))
        for name, section in sections.items()
        for key in msgspec.structs.fields(section)
    ]


def default_of(key: msgspec.structs.FieldInfo) -> object:
    return key.default_factory() if key.default is msgspec.NODEFAULT and callable(key.default_factory) else key.default


def in_toml(value: object) -> str:
    return msgspec.json.encode(value).decode().replace('","', '", "')


def environment_name(section: str, key: msgspec.structs.FieldInfo) -> str:
    return FILE_ONLY if isinstance(default_of(key), dict) else f"{ENV_PREFIX}{section}_{key.encode_name}".upper()


def test_the_settings_tables_have_every_key_with_its_default_and_its_environment_name() -> None:
    assert sorted(documented_settings()) == sorted(settings_of_the_code())


def test_the_code_has_no_section_that_the_settings_tables_leave_out() -> None:
    documented = set(re.findall(r"^`\[(\w+)\]`, read by", README, re.MULTILINE))
    kinds = (HistorySettings, OrchestratorSettings, EdgeSettings)
    assert documented == {section.encode_name for kind in kinds for section in msgspec.structs.fields(kind)}


def test_every_environment_name_in_the_documents_is_one_that_is_read() -> None:
    read = {name for _, _, _, name in settings_of_the_code()} | {"TURNKEEP_SECTION_KEY"}
    read |= set(re.findall(r"\$\{(TURNKEEP_\w+)", (ROOT / "compose.yaml").read_text("utf-8")))
    for document in DOCUMENTS:
        for name in re.findall(r"TURNKEEP_\w+", (ROOT / document).read_text("utf-8")):
            assert name in read or name.startswith("TURNKEEP_API_KEYS_"), f"{document}: {name}"


def test_every_setting_that_the_readme_speaks_of_exists() -> None:
    known = {f"{section}.{key}" for section, key, _, _ in documented_settings()}
    sections = {section for section, _, _, _ in documented_settings()}
    for name in _CODE.findall(_FENCE.sub("", README)):
        if re.fullmatch(r"[a-z]+\.[a-z_]+", name) and name.partition(".")[0] in sections:
            assert name.partition(" ")[0] in known, name


def statuses_by_code() -> dict[str, set[int]]:
    """The HTTP statuses of each error code that the rooms declare, and of what gRPC itself says of a service that does not answer."""
    silent = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    found = {code.name.lower(): {int(edge_errors.http_status(shared_errors.error_of(code, None, ())))} for code in silent}
    for module in (edge_errors, orchestrator_errors, history_errors, shared_errors):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, ServiceError) and kind not in (ServiceError, shared_errors.RemoteError):
                found.setdefault(kind.reason, set()).add(int(edge_errors.http_status(kind("in words"))))
    return found


def test_the_table_of_errors_has_the_status_of_each_code() -> None:
    known = statuses_by_code()
    rows = [
        (status, code) for status, codes, _ in rows_under("Errors and policies", 3) if status.isdecimal() for code in _CODE.findall(codes)
    ]
    assert len(rows) > 20
    assert [(status, code) for status, code in rows if int(status) not in known.get(code, ())] == []


def test_the_table_of_metrics_has_every_metric() -> None:
    counted = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in prometheus_client.REGISTRY.collect()
        if metric.name.startswith("turnkeep_")
    }
    assert {name.strip("`") for name, _, _ in rows_under("Metrics and health", 3) if name != "metric"} == counted


# Commands.


def commands(document: str) -> Iterator[str]:
    """What is to be typed: lines of code, and code between backquotes."""
    text = (ROOT / document).read_text("utf-8")
    yield from (line.strip() for _, block in _FENCE.findall(text) for line in block.splitlines())
    yield from re.findall(r"^    (.+)$", text, re.MULTILINE)
    yield from _CODE.findall(_FENCE.sub("", text))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_a_document_names_exists(document: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {command.split()[1] for command in commands(document) if re.match(r"make [a-z]+", command)}
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_turnkeep_command_in_a_document_exists_with_its_flags(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(document):
        words = command.split()
        if words[:1] != ["turnkeep"] or len(words) == 1:
            continue
        with pytest.raises(SystemExit) as ended:
            main([words[1], "--help"])
        shown = capsys.readouterr().out
        assert ended.value.code == 0, command
        assert all(word in shown for word in words[2:] if word.startswith("--")), command
        if words[1] == "serve":
            assert {word for word in words[2:] if word.isalpha() and word.islower()} <= set(ROOMS), command


def test_the_settings_file_of_the_readme_is_accepted(tmp_path: Path) -> None:
    (block,) = blocks("toml", README)
    file = tmp_path / "turnkeep.toml"
    file.write_text(block, "utf-8")
    settings = load_settings(Source(file, {}, {}))
    assert settings.edge.edge.orchestrator == tomllib.loads(block)["edge"]["orchestrator"]


# The first conversation, as it stands.


def blocks(language: str, text: str) -> list[str]:
    return [block for name, block in _FENCE.findall(text) if name == language]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as dsn:
        yield dsn


@asynccontextmanager
async def stack(database: str) -> AsyncIterator[tuple[str, FakeEngine]]:
    async with FakeEngine(strict=True) as engine:
        flags = {
            "history": {"database_url": database, "listen": ""},
            "orchestrator": {"listen": ""},
            "engine": {"url": engine.url},
            "edge": {"port": 0},
        }
        async with open_rooms(frozenset(ROOMS), load_settings(Source(None, {}, flags))) as opened:
            yield opened.addresses["edge"], engine


async def run(*command: str, cwd: Path) -> str:
    """What a command prints; it must succeed."""
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and not name.startswith("OPENAI_")}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(45):
            printed, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    return printed.decode()


def first_conversation(language: str, url: str) -> str:
    section = README.partition("\n## A first conversation\n")[2].partition("\n## ")[0]
    return "\n".join(blocks(language, section)).replace(ADDRESS, url)


def texts_of(input: list[dict[str, object]]) -> list[str]:
    return [str(part["text"]) for item in input for part in item.get("content", ()) if isinstance(part, dict)]


async def test_the_curl_lines_of_the_readme_work(database: str, tmp_path: Path) -> None:
    async with stack(database) as (url, engine):
        printed = await run("bash", "-euo", "pipefail", "-c", first_conversation("sh", url), cwd=tmp_path)
    assert '"error":{' not in printed
    assert "event: response.completed" in printed
    assert '"object":"list"' in printed
    assert '"deleted":true' in printed
    first, second, third = engine.posts
    assert texts_of(second.input)[: len(first.input)] == texts_of(first.input)
    assert texts_of(third.input)[: len(first.input)] == texts_of(first.input)


async def test_the_python_lines_of_the_readme_work(database: str, tmp_path: Path) -> None:
    async with stack(database) as (url, engine):
        printed = await run(sys.executable, "-c", first_conversation("python", url), cwd=tmp_path)
    assert printed.startswith("You said: What is the secret word?")
    assert [item["type"] for item in engine.posts[-1].input] == ["message", "function_call", "function_call_output"]
    assert [len(post.input) for post in engine.posts] == [1, 3, 5, 1, 3]
