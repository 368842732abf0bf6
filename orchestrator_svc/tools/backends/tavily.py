"""Tavily's search API (`POST /search`, bearer key)."""

import os

from orchestrator_svc.settings import WebSearchSettings
from orchestrator_svc.tools.backends.base import Hit, Query, hit, objects
from orchestrator_svc.tools.backends.http import SearchHttp
from svckit.settings import SettingsError

_URL = "https://api.tavily.com"


def build(settings: WebSearchSettings) -> "Tavily":
    """The backend with its key from the environment. Raises SettingsError where there is none."""
    name = settings.api_key_env or "TAVILY_API_KEY"
    key = os.environ.get(name, "")
    if not key:
        raise SettingsError("environment", name, "the web search backend 'tavily' needs a key here")
    headers = {"authorization": f"Bearer {key}", "accept": "application/json"}
    return Tavily(SearchHttp("tavily", settings.url or _URL, headers, settings.timeout_seconds))


class Tavily:
    """Takes the allowed domains as a list. It knows countries by their English names only, so the user's place is left out."""

    def __init__(self, http: SearchHttp) -> None:
        self._http = http

    async def search(self, query: Query) -> tuple[Hit, ...]:
        """See Backend."""
        body: dict[str, object] = {"query": query.text, "max_results": query.count, "search_depth": "basic"}
        if query.allowed_domains:
            body["include_domains"] = list(query.allowed_domains)
        answer = await self._http.post("/search", body)
        return tuple(hit(one.get("url"), one.get("title"), one.get("content")) for one in objects(answer.get("results")))

    async def aclose(self) -> None:
        """See Backend."""
        await self._http.aclose()
