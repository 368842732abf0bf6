"""`turnkeep up`: all rooms on this machine, with an embedded Postgres and the bundled engine where nothing else is named.

Leaving stops everything in the reverse order of the start: the edge first, Postgres last.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from http_edge.auth import read_keys
from http_edge.settings import EdgeSettings, refuse_open_door
from launcher.engine_check import EngineCheckError, engine_key, engine_models
from launcher.first_conversation import first_conversation
from launcher.living import live
from launcher.local_engine import open_local_engine, require_installed
from launcher.port import require_free, shared_port, url_of
from launcher.postgres import Postgres, open_postgres
from launcher.rooms import ROOMS, RoomSettings, Source, load_settings, open_rooms
from launcher.sealing import kept_secret
from launcher.workers import as_environment, open_workers
from orchestrator_svc.settings import EngineSettings, refuse_no_address
from svckit import lifecycle, logs
from svckit.settings import LogSettings

# what history's pools of one process take, and some for whoever looks at the database
CONNECTIONS_PER_PROCESS = 16
SPARE_CONNECTIONS = 30
UNKNOWN_MODEL = "YOUR-MODEL"


class LogForPeople(LogSettings, frozen=True, forbid_unknown_fields=True):
    """`[log]` with the defaults of somebody who watches a terminal."""

    level: Literal["debug", "info", "warning", "error"] = "warning"
    format: Literal["json", "console"] = "console"


class TerminalSettings(msgspec.Struct, frozen=True):
    """The section that has other defaults here than in a room."""

    log: LogForPeople = LogForPeople()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to bring up, and where."""

    source: Source
    data: Path
    workers: int = 1
    sockets_in: Path = Path("/tmp")

    def telling(self, section: str, **values: object) -> "Plan":
        """The same plan with settings that win over all others."""
        flags = {**self.source.flags, section: {**self.source.flags.get(section, {}), **values}}
        return replace(self, source=replace(self.source, flags=flags))


@dataclass(frozen=True, slots=True)
class House:
    """What is up: its address, a model to talk to, and whether it asks for a key."""

    url: str
    model: str
    with_key: bool


def run_up(plan: Plan) -> None:
    """Brings everything up, and down again after a signal. Raises SettingsError and LaunchError, and what the rooms raise."""
    log = plan.source.load(TerminalSettings).log
    logs.configure(log.level, log.format)
    plan = plan.telling("log", level=log.level, format=log.format)
    plan = plan.telling("history", listen="").telling("orchestrator", listen="")
    lifecycle.run(lambda stop: live(stop, open_house(plan), _announce))


@asynccontextmanager
async def open_house(plan: Plan) -> AsyncIterator[House]:
    """Opens everything, the HTTP port last."""
    settings = load_settings(plan.source)
    _check(settings, plan)
    async with AsyncExitStack() as stack:
        plan = _with_port(stack, plan, settings.edge.edge)
        plan, postgres = await _with_database(stack, plan, settings)
        plan = await _with_engine(stack, plan, settings)
        plan = _with_secret(plan, settings)
        settings = load_settings(plan.source)
        model = await _model(settings.orchestrator.engine, plan)
        url = await _open_rooms(stack, plan, settings)
        if postgres:
            stack.callback(postgres.announce_stop)
        yield House(url, model, bool(settings.edge.api_keys or settings.edge.edge.keys_file))


def _check(settings: RoomSettings, plan: Plan) -> None:
    """Finds what can be found to be wrong before anything is started."""
    refuse_open_door(settings.edge.edge, has_keys=bool(read_keys(settings.edge).owners))
    if settings.orchestrator.engine.url:
        refuse_no_address(settings.orchestrator.engine)
        engine_key(settings.orchestrator.engine, plan.source.environ)
    else:
        require_installed()


def _with_port(stack: AsyncExitStack, plan: Plan, edge: EdgeSettings) -> Plan:
    if plan.workers == 1:
        require_free(edge.host, edge.port)
        return plan
    return plan.telling("edge", port=stack.enter_context(shared_port(edge.host, edge.port)), reuse_port=True)


async def _with_database(stack: AsyncExitStack, plan: Plan, settings: RoomSettings) -> tuple[Plan, Postgres | None]:
    if settings.history.history.database_url:
        return plan, None
    _say(f"Starting Postgres in {plan.data} ...")
    connections = str(SPARE_CONNECTIONS + CONNECTIONS_PER_PROCESS * plan.workers)
    opening = open_postgres(plan.data, sockets_in=plan.sockets_in, options={"max_connections": connections})
    postgres = await stack.enter_async_context(opening)
    return plan.telling("history", database_url=postgres.dsn, listen_url=""), postgres


def _with_secret(plan: Plan, settings: RoomSettings) -> Plan:
    if settings.orchestrator.sealing.secrets:
        return plan
    plan.data.mkdir(parents=True, exist_ok=True)
    return plan.telling("sealing", secrets=[kept_secret(plan.data)])


async def _with_engine(stack: AsyncExitStack, plan: Plan, settings: RoomSettings) -> Plan:
    if settings.orchestrator.engine.url:
        return plan
    _say("Starting the bundled engine (SmolLM2-135M on llama.cpp; name your own with --engine URL) ...")
    return plan.telling("engine", url=await stack.enter_async_context(open_local_engine()), api_key_env="")


async def _model(engine: EngineSettings, plan: Plan) -> str:
    """A model of the engine, to be named in the first conversation. A dead engine is no reason not to start."""
    try:
        models = await engine_models(engine, engine_key(engine, plan.source.environ))
    except EngineCheckError as exc:
        _say(f"The engine does not answer yet: {exc}")
        return UNKNOWN_MODEL
    return models[0] if models else UNKNOWN_MODEL


async def _open_rooms(stack: AsyncExitStack, plan: Plan, settings: RoomSettings) -> str:
    if plan.workers == 1:
        _say("Opening history, orchestrator and edge ...")
        opened = await stack.enter_async_context(open_rooms(frozenset(ROOMS), settings))
        return opened.addresses["edge"]
    _say(f"Starting {plan.workers} workers ...")
    environ = {**plan.source.environ, **as_environment(plan.source.flags)}
    drain = settings.edge.edge.drain_seconds + settings.orchestrator.orchestrator.drain_seconds + settings.history.history.drain_seconds
    await stack.enter_async_context(open_workers(plan.workers, plan.source.file, environ, drain))
    return url_of(settings.edge.edge.host, settings.edge.edge.port)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _announce(house: House) -> None:
    print(f"Turnkeep is ready at {house.url}", flush=True)
    print("\nA first conversation, to copy and paste:\n", flush=True)
    for line in first_conversation(house.url, house.model, with_key=house.with_key):
        print(line, flush=True)
    _say("\nCtrl-C stops everything.")
