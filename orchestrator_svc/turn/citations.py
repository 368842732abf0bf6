"""Citations: where an answer names a source that a search found. Pure."""

from collections.abc import Iterable

from orchestrator_svc.items import JsonObject
from orchestrator_svc.tools.base import Citation

MAX_CITATIONS = 100


def citations_in(text: str, sources: Iterable[Citation]) -> list[JsonObject]:
    """A `url_citation` for the first place where `text` names each source, in the order of the text; indexes count characters."""
    found = {source.url: (start, source) for source in sources if (start := _place(text, source.url)) >= 0}
    places = sorted(found.values(), key=lambda pair: pair[0])[:MAX_CITATIONS]
    return [_annotation(start, source) for start, source in places]


def _place(text: str, url: str) -> int:
    """Where the URL stands as a whole, not as the start of a longer one; -1 for nowhere."""
    start = text.find(url)
    while start >= 0:
        after = text[start + len(url) : start + len(url) + 1]
        if not after or not (after.isalnum() or after in "/?#&=%-_~"):
            return start
        start = text.find(url, start + 1)
    return -1


def _annotation(start: int, source: Citation) -> JsonObject:
    return {
        "type": "url_citation",
        "url": source.url,
        "title": source.title,
        "start_index": start,
        "end_index": start + len(source.url),
    }
