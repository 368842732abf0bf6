"""Brave's web search API (`GET /res/v1/web/search`, key in `X-Subscription-Token`)."""

import os

from orchestrator_svc.settings import WebSearchSettings
from orchestrator_svc.tools.backends.base import Hit, Location, Query, hit, objects
from orchestrator_svc.tools.backends.http import SearchHttp
from svckit.settings import SettingsError

_URL = "https://api.search.brave.com"


def build(settings: WebSearchSettings) -> "Brave":
    """The backend with its key from the environment. Raises SettingsError where there is none."""
    name = settings.api_key_env or "BRAVE_API_KEY"
    key = os.environ.get(name, "")
    if not key:
        raise SettingsError("environment", name, "the web search backend 'brave' needs a key here")
    headers = {"x-subscription-token": key, "accept": "application/json"}
    return Brave(SearchHttp("brave", settings.url or _URL, headers, settings.timeout_seconds))


class Brave:
    """Takes no list of domains, but the `site:` operator; takes the user's place as headers."""

    def __init__(self, http: SearchHttp) -> None:
        self._http = http

    async def search(self, query: Query) -> tuple[Hit, ...]:
        """See Backend."""
        params: dict[str, str | int] = {
            "q": query.narrowed_text,
            "count": query.fetched,
            "result_filter": "web",
            "text_decorations": "false",
        }
        answer = await self._http.get("/res/v1/web/search", params, _place(query.location))
        web = answer.get("web")
        results = objects(web.get("results")) if isinstance(web, dict) else []
        return tuple(hit(one.get("url"), one.get("title"), one.get("description")) for one in results)

    async def aclose(self) -> None:
        """See Backend."""
        await self._http.aclose()


def _place(location: Location) -> dict[str, str]:
    headers = {
        "x-loc-country": location.country,
        "x-loc-city": location.city,
        "x-loc-state-name": location.region,
        "x-loc-timezone": location.timezone,
    }
    return {name: value for name, value in headers.items() if value}
