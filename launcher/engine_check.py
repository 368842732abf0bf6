"""A look at the engine from outside a turn: which models it names."""

import asyncio
from collections.abc import Mapping

import msgspec

from launcher.errors import LaunchError
from orchestrator_svc.providers.engine_http import open_engine_http
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings
from svckit.errors import ServiceError
from svckit.settings import SettingsError

PATIENCE_SECONDS = 3.0


class EngineCheckError(LaunchError):
    """The engine does not name its models; the message says why."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def engine_key(engine: EngineSettings, environ: Mapping[str, str]) -> str:
    """The engine's key from the environment variable that is named for it. Raises SettingsError when that is not set."""
    if engine.api_key_env and engine.api_key_env not in environ:
        raise SettingsError("environment", "engine.api_key_env", f"names the variable {engine.api_key_env}, which is not set")
    return environ.get(engine.api_key_env, "") if engine.api_key_env else ""


async def engine_models(engine: EngineSettings, key: str) -> list[str]:
    """The ids of the engine's models. Raises EngineCheckError."""
    try:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            open_engine_http(engine, key, OrchestratorSettings()) as http,
        ):
            with await http.send("GET", "/v1/models", {}, ()) as answer:
                status, body = answer.status, await answer.whole()
    except (ServiceError, TimeoutError, ValueError) as exc:
        raise EngineCheckError(str(exc) or f"no answer within {PATIENCE_SECONDS:.0f} seconds") from exc
    if status != 200:
        raise EngineCheckError(f"GET /v1/models was answered with status {status}")
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except msgspec.DecodeError as exc:
        raise EngineCheckError(f"GET /v1/models was answered with something else than a list of models: {exc}") from exc
