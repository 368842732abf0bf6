"""The tool `web_search`: the model searches the web or opens a page, and the gateway does it.

What is found is the tool's output: data, of which nothing is followed. How a search is done stands in `backends`, how a page is read in
`pages`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.items import JsonObject
from orchestrator_svc.outbound import Guard, OutboundRefused, read_origin
from orchestrator_svc.settings import Settings
from orchestrator_svc.tools.backends import open_backend
from orchestrator_svc.tools.backends.base import MAX_QUERY_CHARS, Backend, Hit, Location, Query, kept
from orchestrator_svc.tools.base import Citation, Handler, Spec, ToolCall, ToolFailed, ToolResult
from orchestrator_svc.tools.caps import capped
from orchestrator_svc.tools.pages import Page, Pages, open_pages

_SIZES = {"low": (3, 300), "medium": (5, 600), "high": (10, 1200)}
_MAX_DOMAINS = 100
_MAX_TITLE_CHARS = 200
_MAX_URL_CHARS = 2048


@dataclass(frozen=True, slots=True)
class Options:
    """What a request says of its `web_search` tool."""

    allowed_domains: tuple[str, ...]
    max_hits: int
    max_snippet_chars: int
    location: Location
    may_open_pages: bool


@dataclass(frozen=True, slots=True)
class Action:
    """What the model asked for: `search` with a query, or `open_page` with a URL."""

    kind: str
    value: str

    @property
    def public(self) -> JsonObject:
        """The action as the item shows it, without what came of it."""
        if self.kind == "open_page":
            return {"type": "open_page", "url": self.value[:_MAX_URL_CHARS]}
        return {"type": "search", "query": self.value, "queries": [self.value] if self.value else []}


def declare(tool: JsonObject, path: str) -> JsonObject:
    """The engine's function. Raises InvalidRequest and Unsupported with a `param` below `path`."""
    options = read_options(tool, path)
    actions = ["search", "open_page"] if options.may_open_pages else ["search"]
    properties: JsonObject = {
        "action": {"type": "string", "enum": actions, "description": "search: look for pages. open_page: read the text of one page."},
        "query": {"type": "string", "description": f"For search: what to look for, at most {MAX_QUERY_CHARS} characters."},
        "url": {"type": "string", "description": "For open_page: the page's http or https URL."},
    }
    if not options.may_open_pages:
        properties = {"action": {"type": "string", "enum": actions}, "query": properties["query"]}
    description = (
        "Searches the web, and reads pages. Use it for what is recent or what you do not know for sure, and name the sources you use."
    )
    if options.allowed_domains:
        description += f" Only pages on these domains can be found: {', '.join(options.allowed_domains)}."
    parameters = {"type": "object", "properties": properties, "required": ["action"], "additionalProperties": False}
    return {"type": "function", "name": "web_search", "description": description, "parameters": parameters}


SPEC = Spec(
    kinds=("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"), declare=declare, repeatable=True
)


@asynccontextmanager
async def open_web_search(settings: Settings, guard: Guard) -> AsyncIterator[Handler]:
    """The handler with the configured backend. Raises SettingsError where that lacks its key or address."""
    async with open_backend(settings.web_search) as backend, open_pages(guard) as pages:
        yield WebSearch(backend, pages, settings.web_search.max_page_bytes)


class WebSearch:
    """Runs the calls of `web_search`. Every outcome, a failure too, carries an action for the item."""

    def __init__(self, backend: Backend, pages: Pages, max_page_bytes: int) -> None:
        self._backend = backend
        self._pages = pages
        self._max_page_bytes = max_page_bytes

    async def run(self, call: ToolCall) -> ToolResult:
        """See Handler."""
        action = read_action(call.arguments)
        try:
            return await self._performed(action, read_options(call.tool.settings, "tools"))
        except ToolFailed as exc:
            raise ToolFailed(exc.message, {"action": action.public}) from exc

    async def _performed(self, action: Action, options: Options) -> ToolResult:
        problem = problem_of(action, options)
        if problem:
            raise ToolFailed(problem)
        if action.kind == "open_page":
            return opened(action, await self._pages.read(action.value, options.allowed_domains), self._max_page_bytes)
        query = Query(action.value, options.max_hits, options.allowed_domains, options.location)
        return found(action, kept(await self._backend.search(query), query), options.max_snippet_chars)


# What the model asked for.


def read_action(arguments: JsonObject) -> Action:
    """The action that a call means. A model that names none means the one whose argument it gives."""
    kind = arguments.get("action") or ("open_page" if arguments.get("url") and not arguments.get("query") else "search")
    value = arguments.get("url" if kind == "open_page" else "query")
    return Action(str(kind), value.strip() if isinstance(value, str) else "")


def problem_of(action: Action, options: Options) -> str:
    """Why an action cannot be performed, for the model; empty when it can."""
    if action.kind not in ("search", "open_page"):
        return "There is no such action. Use 'search' with a query, or 'open_page' with a url."
    if action.kind == "open_page" and not options.may_open_pages:
        return "Pages cannot be opened here. Use 'search' with a query."
    if not action.value:
        return "A search needs a query." if action.kind == "search" else "To open a page, give its url."
    if action.kind == "search" and len(action.value) > MAX_QUERY_CHARS:
        return f"The query is too long. Use at most {MAX_QUERY_CHARS} characters."
    if action.kind == "open_page" and len(action.value) > _MAX_URL_CHARS:
        return "The url is too long."
    return ""


# What came of it.


def found(action: Action, hits: Sequence[Hit], max_snippet_chars: int) -> ToolResult:
    """The result of a search: numbered hits for the model, sources for the client."""
    entries = [_entry(number, hit, max_snippet_chars) for number, hit in enumerate(hits, 1)]
    heading = f"Results of a web search for: {action.value}"
    sources = [{"type": "url", "url": hit.url} for hit in hits]
    return ToolResult(
        output="\n\n".join([heading, *(entries or ["Nothing was found."])]),
        public={"action": action.public | {"sources": sources}},
        citations=tuple(Citation(hit.url, hit.title or hit.url) for hit in hits),
    )


def opened(action: Action, page: Page, max_bytes: int) -> ToolResult:
    """The result of opening a page: its text, as much of it as a model is given."""
    heading = [f"Title: {page.title}"] if page.title else []
    heading += [f"URL: {page.url}"] + (["Only the beginning of the page was read."] if page.is_cut else [])
    return ToolResult(
        output=capped("\n".join(heading) + "\n\n" + page.text, max_bytes),
        public={"action": action.public},
        citations=(Citation(page.url, page.title or page.url),),
    )


def _entry(number: int, hit: Hit, max_snippet_chars: int) -> str:
    lines = (f"[{number}] {_short(hit.title, _MAX_TITLE_CHARS)}", hit.url, _short(hit.snippet, max_snippet_chars))
    return "\n".join(filter(None, lines))


def _short(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "…"


# What the request says of the tool. Keys that nobody here knows are let pass; a filter that nobody here knows is not: it would not filter.


def read_options(tool: JsonObject, path: str) -> Options:
    """The options of a request's tool. Raises InvalidRequest and Unsupported with a `param` below `path`."""
    size = tool.get("search_context_size") or "medium"
    if not isinstance(size, str) or size not in _SIZES:
        raise InvalidRequest(f"Supported values are: {', '.join(map(repr, _SIZES))}.", param=f"{path}.search_context_size")
    max_hits, max_snippet_chars = _SIZES[size]
    return Options(
        _allowed_domains(_object(tool, "filters", path), f"{path}.filters"),
        max_hits,
        max_snippet_chars,
        _location(_object(tool, "user_location", path), f"{path}.user_location"),
        tool.get("external_web_access") is not False,
    )


def _allowed_domains(filters: JsonObject, path: str) -> tuple[str, ...]:
    for key, value in filters.items():
        if key != "allowed_domains" and value is not None:
            raise Unsupported(what=f"The filter '{key[:64]}'", param=f"{path}.{key[:64]}")
    given = filters.get("allowed_domains") or []
    if not isinstance(given, list) or len(given) > _MAX_DOMAINS:
        raise InvalidRequest(f"allowed_domains is a list of at most {_MAX_DOMAINS} domains.", param=f"{path}.allowed_domains")
    return tuple(dict.fromkeys(_domain(domain, f"{path}.allowed_domains[{n}]") for n, domain in enumerate(given)))


def _domain(given: object, path: str) -> str:
    try:
        if isinstance(given, str) and not set(given) & set("/:?#@[]"):
            return read_origin(f"https://{given}/").host
    except OutboundRefused:
        pass
    raise InvalidRequest("A domain is a host name such as 'example.com', without scheme and path.", param=path)


def _location(given: JsonObject, path: str) -> Location:
    if given.get("type") not in (None, "approximate"):
        raise InvalidRequest("Supported values are: 'approximate'.", param=f"{path}.type")
    country, city, region, timezone = (_word(given, key, path) for key in ("country", "city", "region", "timezone"))
    if country and not (len(country) == 2 and country.isascii() and country.isalpha()):
        raise InvalidRequest("A country is an ISO code of two letters.", param=f"{path}.country")
    return Location(country.upper(), city, region, timezone)


def _word(given: JsonObject, key: str, path: str) -> str:
    value = given.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 128 or not value.isprintable():
        raise InvalidRequest(f"{key} is a string of at most 128 printable characters.", param=f"{path}.{key}")
    return value.strip()


def _object(tool: JsonObject, key: str, path: str) -> JsonObject:
    value = tool.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{key} must be an object.", param=f"{path}.{key}")
    return value
