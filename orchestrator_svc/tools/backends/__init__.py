"""The search backends, by the name that `[web_search] backend` gives."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from orchestrator_svc.settings import WebSearchSettings
from orchestrator_svc.tools.backends import brave, ddgs, searxng, tavily
from orchestrator_svc.tools.backends.base import Backend
from svckit.settings import SettingsError

BACKENDS: tuple[tuple[str, Callable[[WebSearchSettings], Backend]], ...] = (
    ("ddgs", ddgs.build),
    ("brave", brave.build),
    ("tavily", tavily.build),
    ("searxng", searxng.build),
)


@asynccontextmanager
async def open_backend(settings: WebSearchSettings) -> AsyncIterator[Backend]:
    """The configured backend; closed at the end. Raises SettingsError for a name that is not known, or a key or address that is missing."""
    builders = dict(BACKENDS)
    if settings.backend not in builders:
        raise SettingsError("settings", "web_search.backend", f"no backend '{settings.backend}'; known are {', '.join(builders)}")
    backend = builders[settings.backend](settings)
    try:
        yield backend
    finally:
        await backend.aclose()
