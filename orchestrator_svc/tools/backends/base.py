"""What a search backend is: a query goes in, hits come out. Values and protocols only."""

import re
from dataclasses import dataclass
from html import unescape
from typing import Protocol

from orchestrator_svc.items import JsonObject
from orchestrator_svc.outbound import host_is_within

MAX_HITS = 20
_TAG = re.compile(r"</?[a-zA-Z][^>]{0,200}>")
MAX_QUERY_CHARS = 400


@dataclass(frozen=True, slots=True)
class Location:
    """Roughly where the user is; whatever is unknown is empty. `country` is an ISO code of two letters in capitals."""

    country: str = ""
    city: str = ""
    region: str = ""
    timezone: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """One search: words, how many hits are wanted, the only domains that may appear (none: all), and where the user is."""

    text: str
    count: int
    allowed_domains: tuple[str, ...] = ()
    location: Location = Location()

    @property
    def narrowed_text(self) -> str:
        """The words with the allowed domains as `site:` operators, for backends that take no list; left out where they are too many."""
        sites = " OR ".join(f"site:{domain}" for domain in self.allowed_domains)
        narrowed = f"{self.text} ({sites})" if len(self.allowed_domains) > 1 else f"{self.text} {sites}"
        return narrowed if sites and len(narrowed) <= MAX_QUERY_CHARS else self.text

    @property
    def fetched(self) -> int:
        """How many hits to ask a backend for that may give some from other domains."""
        return MAX_HITS if self.allowed_domains else self.count


@dataclass(frozen=True, slots=True)
class Hit:
    """One result."""

    url: str
    title: str
    snippet: str


class Backend(Protocol):
    """Searches the web."""

    async def search(self, query: Query) -> tuple[Hit, ...]:
        """The hits, best first; there may be more than asked for, and from other domains. Raises ToolFailed."""

    async def aclose(self) -> None:
        """Lets go of connections and threads."""


def objects(value: object) -> list[JsonObject]:
    """The objects of a list that a backend wrote; what is none is left out."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def hit(url: object, title: object, snippet: object) -> Hit:
    """A hit of what a backend wrote: one line each, without markup."""
    return Hit(str(url or ""), plain(title), plain(snippet))


def plain(text: object) -> str:
    """A text without tags, entities and line breaks."""
    return " ".join(unescape(_TAG.sub("", str(text or ""))).split())


def kept(hits: tuple[Hit, ...], query: Query) -> tuple[Hit, ...]:
    """The hits that answer a query: web pages on allowed domains, each once, as many as wanted."""
    unique = {hit.url: hit for hit in reversed(hits) if _is_allowed(hit.url, query)}
    return tuple(reversed(unique.values()))[: query.count]


def _is_allowed(url: str, query: Query) -> bool:
    match = re.match(r"https?://([^/?#\s\\@]+)(?:[/?#]\S*)?\Z", url, re.IGNORECASE)
    if match is None:
        return False
    host = re.sub(r":\d+\Z", "", match[1])
    return not query.allowed_domains or host_is_within(host, query.allowed_domains)
