"""The providers, and which wire each of them speaks."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from orchestrator_svc.providers.base import Provider
from orchestrator_svc.providers.responses import open_responses
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings

Opener = Callable[[EngineSettings, OrchestratorSettings], AbstractAsyncContextManager[Provider]]

WIRES: tuple[tuple[str, Opener], ...] = (("responses", open_responses),)


def open_provider(engine: EngineSettings, waits: OrchestratorSettings) -> AbstractAsyncContextManager[Provider]:
    """The one engine, over its wire."""
    return dict(WIRES)["responses"](engine, waits)
