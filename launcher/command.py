"""The `turnkeep` command: its arguments, and the exit status of whatever ends it.

0 after a stop that was asked for, 1 when something on this machine is in the way, 2 for arguments and settings that do not fit.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import psycopg

from history_svc.migrations import MigrationChanged, migrate
from launcher.doctor import run_doctor
from launcher.errors import LaunchError
from launcher.port import require_free
from launcher.rooms import ROOMS, Source, load_settings
from launcher.serve import run_serve
from launcher.up import Plan, run_up
from svckit.settings import Sections, SettingsError, environment

# flags by the setting that they stand for
SETTINGS = {
    "engine": ("engine", "url"),
    "engine_api_key_env": ("engine", "api_key_env"),
    "host": ("edge", "host"),
    "port": ("edge", "port"),
    "insecure": ("edge", "insecure"),
    "database_url": ("history", "database_url"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; gives the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except SettingsError as exc:
        return _refused(exc, 2)
    except (LaunchError, MigrationChanged, psycopg.Error) as exc:
        return _refused(exc, 1)
    except KeyboardInterrupt:
        return 130


def _refused(reason: Exception, status: int) -> int:
    print(f"turnkeep: {' '.join(str(reason).split())}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="turnkeep", description="The OpenAI Responses API with memory, in front of any inference engine.")
    parser.add_argument("--version", action="version", version=f"turnkeep {version('turnkeep')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_up, _add_serve, _add_migrate, _add_doctor):
        add(commands)
    return parser


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_up(commands: Commands) -> None:
    up = commands.add_parser("up", help="run everything on this machine")
    _add_config(up)
    up.add_argument("--engine", metavar="URL", help="the inference engine, with or without /v1 (default: a small bundled one)")
    up.add_argument("--engine-api-key-env", metavar="NAME", help="the environment variable that holds the engine's key")
    up.add_argument("--host", help="where to listen (default: 127.0.0.1)")
    up.add_argument("--port", type=int, help="the HTTP port (default: 8080)")
    _add_data(up)
    up.add_argument("--database-url", metavar="DSN", help="a Postgres of your own instead of the embedded one")
    up.add_argument("--workers", type=_count, default=1, metavar="N", help="how many processes share the port (default: 1)")
    up.add_argument("--insecure", action="store_true", default=None, help="listen beyond this machine although no API key is set")
    up.set_defaults(run=_up)


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="run one or several of the services in this process")
    serve.add_argument("rooms", nargs="+", choices=ROOMS, metavar="ROOM", help=", ".join(ROOMS))
    _add_config(serve)
    serve.add_argument("--insecure", action="store_true", default=None, help="listen beyond this machine although no API key is set")
    serve.set_defaults(run=_serve)


def _add_migrate(commands: Commands) -> None:
    bring_up_to_date = commands.add_parser("migrate", help="bring the database's schema up to date")
    _add_config(bring_up_to_date)
    bring_up_to_date.add_argument("--database-url", metavar="DSN", help="the database, reached directly")
    bring_up_to_date.set_defaults(run=_migrate)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser("doctor", help="look at engine, database, port and versions")
    _add_config(doctor)
    doctor.add_argument("--engine", metavar="URL", help="the inference engine")
    doctor.add_argument("--engine-api-key-env", metavar="NAME", help="the environment variable that holds the engine's key")
    doctor.add_argument("--host", help="where the edge listens")
    doctor.add_argument("--port", type=int, help="the HTTP port")
    _add_data(doctor)
    doctor.add_argument("--database-url", metavar="DSN", help="the database")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="the settings file, turnkeep.toml")


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the embedded Postgres keeps its data")


def _count(text: str) -> int:
    if not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError("must be between 1 and 256")
    return int(text)


def _up(arguments: argparse.Namespace) -> None:
    environ = environment()
    run_up(Plan(_source(arguments), arguments.data or _data_folder(environ), arguments.workers, _runtime_folder(environ)))


def _serve(arguments: argparse.Namespace) -> None:
    settings = load_settings(_source(arguments))
    edge = settings.edge.edge
    if "edge" in arguments.rooms and not edge.reuse_port:
        require_free(edge.host, edge.port)
    run_serve(frozenset(arguments.rooms), settings)


def _migrate(arguments: argparse.Namespace) -> None:
    history = load_settings(_source(arguments)).history.history
    # a flag beats the file, so it also beats the file's other way to the database
    dsn = arguments.database_url or history.listen_url or history.database_url
    if not dsn:
        raise SettingsError("settings", "history.database_url", "is not set; name the database with --database-url")
    applied = asyncio.run(migrate(dsn))
    print("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")


def _doctor(arguments: argparse.Namespace) -> int:
    return run_doctor(_source(arguments), arguments.data or _data_folder(environment()), as_json=arguments.json)


def _source(arguments: argparse.Namespace) -> Source:
    flags: Sections = {}
    for flag, (section, key) in SETTINGS.items():
        value = getattr(arguments, flag, None)
        if value is not None:
            flags.setdefault(section, {})[key] = value
    return Source(arguments.config, environment(), flags)


def _data_folder(environ: Mapping[str, str]) -> Path:
    shared = Path(environ.get("XDG_DATA_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".local" / "share") / "turnkeep"


def _runtime_folder(environ: Mapping[str, str]) -> Path:
    folder = Path(environ.get("XDG_RUNTIME_DIR", ""))
    return folder if folder.is_absolute() else Path("/tmp")


if __name__ == "__main__":
    sys.exit(main())
