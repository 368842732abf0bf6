"""A SearXNG instance (`GET /search?format=json`, which its `settings.yml` must allow); no key."""

from orchestrator_svc.settings import WebSearchSettings
from orchestrator_svc.tools.backends.base import Hit, Query, hit, objects
from orchestrator_svc.tools.backends.http import SearchHttp
from orchestrator_svc.tools.base import ToolFailed
from svckit.settings import SettingsError


def build(settings: WebSearchSettings) -> "SearXng":
    """The backend at the configured address. Raises SettingsError where there is none: every instance is somebody's own."""
    if not settings.url:
        raise SettingsError("settings", "web_search.url", "the web search backend 'searxng' needs the address of an instance")
    return SearXng(SearchHttp("searxng", settings.url, {"accept": "application/json"}, settings.timeout_seconds))


class SearXng:
    """Passes `site:` operators on to its engines, of which not all know them. It takes no place and no number of results."""

    def __init__(self, http: SearchHttp) -> None:
        self._http = http

    async def search(self, query: Query) -> tuple[Hit, ...]:
        """See Backend."""
        answer = await self._http.get("/search", {"q": query.narrowed_text, "format": "json", "categories": "general"})
        results = objects(answer.get("results"))
        if not results and answer.get("unresponsive_engines"):
            raise ToolFailed("None of the search engines answered. Try later or go on without.")
        return tuple(hit(one.get("url"), one.get("title"), one.get("content")) for one in results)

    async def aclose(self) -> None:
        """See Backend."""
        await self._http.aclose()
