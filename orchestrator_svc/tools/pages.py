"""Web pages as text: fetched through the outbound guard, bounded in bytes, time and redirects, and reduced to what a person would read.

What a page says is data. It is returned as text and never interpreted beyond its markup.
"""

import asyncio
import codecs
import re
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING

from orchestrator_svc.outbound import Guard, guarded_client, host_is_within, read_origin
from orchestrator_svc.tools.base import ToolFailed

if TYPE_CHECKING:
    import httpx2

_HEADERS = {
    "user-agent": "Mozilla/5.0 (compatible; Turnkeep)",
    "accept": "text/html,application/xhtml+xml,text/plain,application/json;q=0.9,*/*;q=0.1",
    # A compressed body may be a thousand times as long as what was sent; those that come all the same are inflated up to the bound.
    "accept-encoding": "identity",
}
_THREADS = 2
_MAX_MARKUP_CHARS = 2_000_000
_MAX_TITLE_CHARS = 300
_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class Page:
    """A page as text. `url` is where it was found in the end; `is_cut` says that it was longer than what was read."""

    url: str
    title: str
    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class _Fetched:
    url: str
    content_type: str
    body: bytes
    is_cut: bool


class Pages:
    """Reads pages for all turns of the process."""

    def __init__(self, guard: Guard, threads: ThreadPoolExecutor) -> None:
        self._guard = guard
        self._threads = threads
        self._client: httpx2.AsyncClient | None = None

    async def read(self, url: str, allowed_domains: tuple[str, ...] = ()) -> Page:
        """The page at a URL; with domains given, neither it nor any redirect may lie outside. Raises ToolFailed."""
        try:
            async with asyncio.timeout(self._guard.settings.timeout_seconds):
                fetched = await self._fetched(url, allowed_domains)
                return await asyncio.get_running_loop().run_in_executor(self._threads, _page, fetched)
        except TimeoutError as exc:
            raise ToolFailed("The page did not answer in time.") from exc

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _fetched(self, url: str, allowed_domains: tuple[str, ...]) -> _Fetched:
        import httpx2

        try:
            return await self._followed(url, allowed_domains)
        except httpx2.TimeoutException as exc:
            raise ToolFailed("The page did not answer in time.") from exc
        except httpx2.InvalidURL as exc:
            raise ToolFailed("The URL is not valid.") from exc
        except httpx2.TransportError as exc:
            raise ToolFailed("The page cannot be reached.") from exc

    async def _followed(self, url: str, allowed_domains: tuple[str, ...]) -> _Fetched:
        for _ in range(self._guard.settings.max_redirects + 1):
            if allowed_domains and not host_is_within(read_origin(url).host, allowed_domains):
                raise ToolFailed("The page is not on one of the allowed domains.")
            self._guard.admit(url)
            async with self._opened().stream("GET", url) as response:
                if not response.has_redirect_location:
                    return await self._received(response)
                url = str(response.url.join(response.headers["location"]))
        raise ToolFailed("The page redirects too often.")

    async def _received(self, response: "httpx2.Response") -> _Fetched:
        if response.status_code >= 400:
            raise ToolFailed(f"The page answered with HTTP {response.status_code}.")
        limit = self._guard.settings.max_bytes
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limit:
                break
        inflated = _inflated(bytes(body), response.headers.get("content-encoding", ""), limit + 1)
        content_type = response.headers.get("content-type", "")
        return _Fetched(str(response.url), content_type, inflated[:limit], max(len(body), len(inflated)) > limit)

    def _opened(self) -> "httpx2.AsyncClient":
        if self._client is None:
            self._client = guarded_client(self._guard, _HEADERS, self._guard.settings.timeout_seconds)
        return self._client


@asynccontextmanager
async def open_pages(guard: Guard) -> AsyncIterator[Pages]:
    """Nothing is loaded and no thread runs before the first page is read."""
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pages")
    pages = Pages(guard, threads)
    try:
        yield pages
    finally:
        await pages.aclose()
        threads.shutdown(wait=False, cancel_futures=True)


def _inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its content encoding, at most `limit` bytes of it."""
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        raise ToolFailed("The page is compressed in a way that is not understood.")
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(body, limit)
    except zlib.error as exc:
        raise ToolFailed("The page is not compressed as it says.") from exc


# From bytes to text; runs in a thread.


def _page(fetched: _Fetched) -> Page:
    kind = _kind(fetched)
    if kind is None:
        raise ToolFailed("The page is no text: only HTML, plain text and JSON can be read.")
    text = decoded(fetched.body, fetched.content_type)
    title, text = _readable(text) if kind == "html" else ("", text)
    if not text.strip():
        raise ToolFailed("The page has no readable text.")
    return Page(fetched.url, title, text.replace("\x00", ""), fetched.is_cut)


def _kind(fetched: _Fetched) -> str | None:
    """`html`, `text`, or None for what cannot be read; where the server says nothing, the first bytes do."""
    declared = fetched.content_type.partition(";")[0].strip().lower()
    start = fetched.body[:1024].lstrip().lower()
    if start.startswith(b"%pdf-") or declared == "application/pdf":
        return None
    if declared in ("text/html", "application/xhtml+xml") or (not declared and re.match(rb"<(!doctype|html|head|body)", start)):
        return "html"
    if declared.startswith("text/") or _STRUCTURED.fullmatch(declared) or (not declared and b"\x00" not in start):
        return "text"
    return None


_STRUCTURED = re.compile(r"application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-ndjson|javascript)")


def decoded(body: bytes, content_type: str) -> str:
    """A body as text, by its byte order mark, its declared character set, that of its markup, or UTF-8; what does not fit is U+FFFD."""
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    declared = _IN_HEADER.search(content_type) or _IN_MARKUP.search(body[:2048].decode("latin-1"))
    return _decoded_as(body, declared[1] if declared else "utf-8")


_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_IN_HEADER = re.compile(r"""charset\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE)
_IN_MARKUP = re.compile(r"""<(?:meta\s[^>]{0,200}?charset|\?xml\s[^>]{0,100}?encoding)\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE)

# Codecs of Python that are no character sets of the web; some take quadratic time.
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "utf_7", "mbcs", "oem"})


def _decoded_as(body: bytes, charset: str) -> str:
    try:
        codec = codecs.lookup(charset).name.replace("-", "_")
        return body.decode("utf-8" if codec in _NO_CHARSETS else codec, "replace")
    except (LookupError, UnicodeError):
        return body.decode("utf-8", "replace")


def _readable(markup: str) -> tuple[str, str]:
    """The title of an HTML document and the text that it is about, else all of its text."""
    # Loaded here because it costs a second and tens of megabytes.
    import trafilatura

    tree = trafilatura.load_html(markup[:_MAX_MARKUP_CHARS])
    if tree is None:
        # No document by its looks: a fragment, or plain text that calls itself HTML.
        return "", unescape(_TAG.sub("", markup[:_MAX_MARKUP_CHARS]))
    title = " ".join((tree.findtext(".//title") or "").split())[:_MAX_TITLE_CHARS]
    text = trafilatura.extract(tree, output_format="markdown", include_comments=False)
    return title, text or trafilatura.html2txt(tree)
