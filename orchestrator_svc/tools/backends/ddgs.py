"""The `ddgs` library: a metasearch over public search engines, without a key. It blocks, so it runs in a few threads of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from orchestrator_svc.items import JsonObject
from orchestrator_svc.settings import WebSearchSettings
from orchestrator_svc.tools.backends.base import Hit, Query, hit
from orchestrator_svc.tools.base import ToolFailed
from svckit.logs import get_logger

Search = Callable[[Query, float], list[JsonObject]]

_log = get_logger(__name__)

# The regions that the library's engines know, by country: the language in which a country is searched is part of them.
_REGIONS = (
    "ar-es at-de au-en be-fr bg-bg br-pt ca-en ch-de cl-es cn-zh co-es cz-cs de-de dk-da ee-et es-es fi-fi fr-fr gr-el hk-tzh hr-hr hu-hu "
    "id-id ie-en il-he in-en it-it jp-jp kr-kr lt-lt lv-lv mx-es my-ms nl-nl no-no nz-en pe-es ph-en pl-pl pt-pt ro-ro ru-ru se-sv sg-en "
    "sk-sk sl-sl th-th tr-tr tw-tzh ua-uk uk-en us-en ve-es vn-vi za-en"
)
_REGION_OF = {region[:2].upper(): region for region in _REGIONS.split()} | {"GB": "uk-en"}
_ANYWHERE = "us-en"


def build(settings: WebSearchSettings) -> "Ddgs":
    """The backend; it needs nothing."""
    return Ddgs(_search, settings.threads, settings.timeout_seconds)


class Ddgs:
    """Runs `search` in at most `threads` threads; a search that waits for a thread has the same deadline as one that runs."""

    def __init__(self, search: Search, threads: int, timeout: float) -> None:
        self._search = search
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ddgs")

    async def search(self, query: Query) -> tuple[Hit, ...]:
        """See Backend."""
        try:
            async with asyncio.timeout(self._timeout):
                results = await asyncio.get_running_loop().run_in_executor(self._threads, self._search, query, self._timeout)
        except TimeoutError as exc:
            _log.warning("search_failed", service="ddgs", reason="timeout")
            raise ToolFailed("The search engines did not answer in time.") from exc
        return tuple(hit(one.get("href"), one.get("title"), one.get("body")) for one in results)

    async def aclose(self) -> None:
        """Leaves threads that still search to their own time limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _search(query: Query, timeout: float) -> list[JsonObject]:
    """One search with the library, in a thread. Raises ToolFailed."""
    # Loaded here because it costs tens of megabytes and most processes never search.
    from ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    region = _REGION_OF.get(query.location.country, _ANYWHERE)
    try:
        return DDGS(timeout=max(1, int(timeout / 2))).text(query.narrowed_text, region=region, max_results=query.fetched)
    except RatelimitException as exc:
        raise ToolFailed("The search engines take no further searches at the moment (rate limit). Try later or go on without.") from exc
    except TimeoutException as exc:
        raise ToolFailed("The search engines did not answer in time.") from exc
    except DDGSException as exc:
        if "No results found" in str(exc):
            return []
        _log.warning("search_failed", service="ddgs", reason=type(exc).__name__)
        raise ToolFailed("The search engines cannot be reached or gave no valid answer.") from exc
