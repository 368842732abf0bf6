"""The search backends against their providers' documented answers and faults, over real HTTP."""

import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from orchestrator_svc.settings import WebSearchSettings
from orchestrator_svc.tools.backends import BACKENDS, open_backend
from orchestrator_svc.tools.backends.base import Hit, Location, Query, kept
from orchestrator_svc.tools.backends.ddgs import Ddgs
from orchestrator_svc.tools.base import ToolFailed
from svckit.settings import SettingsError
from tests.fakes.secrets import found, marker
from tests.fakes.web import Answer, FakeWeb, as_json, redirect
from tests.orchestrator_svc.tools.provider_answers import (
    BRAVE,
    BRAVE_WITHOUT_RESULTS,
    SEARXNG,
    SEARXNG_WITHOUT_ENGINES,
    SEARXNG_WITHOUT_RESULTS,
    TAVILY,
    brave_refuses,
    tavily_refuses,
)

KEY = marker("search-key")
PATHS = {"brave": "/res/v1/web/search", "tavily": "/search", "searxng": "/search"}
GOOD = {"brave": BRAVE, "tavily": TAVILY, "searxng": SEARXNG}
OVER_HTTP = list(PATHS)
BERLIN = Location("DE", "Köln", "Nordrhein-Westfalen", "Europe/Berlin")


@pytest.fixture
async def web(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeWeb]:
    monkeypatch.setenv("TEST_SEARCH_KEY", KEY)
    async with FakeWeb() as web:
        yield web


def settings(backend: str, web: FakeWeb, timeout: float = 10.0) -> WebSearchSettings:
    return WebSearchSettings(backend=backend, url=web.url, api_key_env="TEST_SEARCH_KEY", timeout_seconds=timeout)


async def search(backend: str, web: FakeWeb, answer: Answer, query: Query, timeout: float = 10.0) -> tuple[Hit, ...]:
    web.answers[PATHS[backend]] = answer
    async with open_backend(settings(backend, web, timeout)) as opened:
        return await opened.search(query)


@pytest.mark.parametrize("backend", OVER_HTTP)
async def test_hits_come_as_plain_text_in_the_order_of_the_provider(backend: str, web: FakeWeb) -> None:
    first, second = await search(backend, web, GOOD[backend], Query("postgres ranges", 5))
    snippet = "Range types are data types that represent a range of values."
    assert first == Hit("https://www.postgresql.org/docs/rangetypes.html", "Range Types & Multiranges", snippet)
    assert (second.url, second.title) == ("https://blog.example.com/ranges", "A blog")


async def test_brave_is_asked_as_it_documents(web: FakeWeb) -> None:
    await search("brave", web, BRAVE, Query("postgres ranges", 5, location=BERLIN))
    asked = web.requests[0]
    assert asked.method == "GET"
    assert asked.query == {"q": "postgres ranges", "count": "5", "result_filter": "web", "text_decorations": "false"}
    assert asked.headers["x-subscription-token"] == KEY
    assert asked.headers["x-loc-country"] == "DE"
    assert asked.headers["x-loc-timezone"] == "Europe/Berlin"
    assert asked.headers["x-loc-city"].encode("latin-1").decode() == "Köln"


async def test_tavily_is_asked_as_it_documents(web: FakeWeb) -> None:
    await search("tavily", web, TAVILY, Query("postgres ranges", 5, ("postgresql.org",)))
    asked = web.requests[0]
    assert (asked.method, asked.headers["authorization"]) == ("POST", f"Bearer {KEY}")
    expected = {"query": "postgres ranges", "max_results": 5, "search_depth": "basic", "include_domains": ["postgresql.org"]}
    assert asked.json == expected


async def test_searxng_is_asked_as_it_documents(web: FakeWeb) -> None:
    await search("searxng", web, SEARXNG, Query("postgres ranges", 5, ("a.org", "b.org")))
    assert web.requests[0].query == {"q": "postgres ranges (site:a.org OR site:b.org)", "format": "json", "categories": "general"}


def test_a_list_of_domains_that_is_too_long_for_a_query_stays_out_of_it() -> None:
    assert Query("words", 5, ("a.org",)).narrowed_text == "words site:a.org"
    assert Query("words", 5, tuple(f"domain-{n}.example.org" for n in range(100))).narrowed_text == "words"


@pytest.mark.parametrize(("backend", "answer"), [("brave", BRAVE_WITHOUT_RESULTS), ("searxng", SEARXNG_WITHOUT_RESULTS)])
async def test_a_search_that_finds_nothing_is_no_failure(backend: str, answer: Answer, web: FakeWeb) -> None:
    assert await search(backend, web, answer, Query("x", 5)) == ()


FAULTS = [
    *((backend, Answer(status, body=KEY.encode())) for backend in OVER_HTTP for status in (400, 401, 403, 404, 429, 500, 502, 503)),
    *((backend, Answer(200, body=body)) for backend in OVER_HTTP for body in (b"", b"<html>" + KEY.encode(), b"[]", b'{"a":', b"\xff\xfe")),
    *((backend, Answer(body=b'{"results": [', ending="cut")) for backend in OVER_HTTP),
    *((backend, Answer(headers=(("Content-Encoding", "gzip"),), body=b"not gzip")) for backend in OVER_HTTP),
    ("brave", brave_refuses(429, "RATE_LIMITED", KEY)),
    ("brave", brave_refuses(422, "SUBSCRIPTION_TOKEN_INVALID", KEY)),
    *(("tavily", tavily_refuses(status, KEY)) for status in (401, 429, 432, 433)),
    ("searxng", SEARXNG_WITHOUT_ENGINES),
]


@pytest.mark.parametrize(("backend", "answer"), FAULTS)
async def test_a_failure_is_told_as_one_and_holds_no_key(
    backend: str, answer: Answer, web: FakeWeb, capsys: pytest.CaptureFixture[str]
) -> None:
    """B062, B156"""
    with pytest.raises(ToolFailed) as failed:
        await search(backend, web, answer, Query("x", 5))
    logged = capsys.readouterr()
    assert failed.value.message
    assert found([KEY], {"message": failed.value.message, "stdout": logged.out, "stderr": logged.err}) == []
    assert str(web.port) not in failed.value.message


@pytest.mark.parametrize(("backend", "status"), [("brave", 429), ("tavily", 429), ("tavily", 432), ("searxng", 429)])
async def test_a_rate_limit_is_named(backend: str, status: int, web: FakeWeb) -> None:
    with pytest.raises(ToolFailed, match="rate limit"):
        await search(backend, web, Answer(status), Query("x", 5))


@pytest.mark.parametrize("backend", OVER_HTTP)
async def test_a_service_that_does_not_answer_is_left_at_the_deadline(backend: str, web: FakeWeb) -> None:
    with pytest.raises(ToolFailed, match="in time"):
        await search(backend, web, Answer(body=b"{", ending="hang"), Query("x", 5), timeout=0.2)
    await web.hung.wait()


@pytest.mark.parametrize("backend", OVER_HTTP)
async def test_a_service_that_is_not_there_is_a_failure(backend: str, web: FakeWeb) -> None:
    gone = replace(web)
    async with gone:
        pointed = settings(backend, gone)
    async with open_backend(pointed) as opened:
        with pytest.raises(ToolFailed, match="cannot be reached"):
            await opened.search(Query("x", 5))


@pytest.mark.parametrize("backend", OVER_HTTP)
async def test_a_redirect_does_not_take_the_key_elsewhere(backend: str, web: FakeWeb) -> None:
    """B155"""
    async with FakeWeb() as other:
        with pytest.raises(ToolFailed):
            await search(backend, web, redirect(f"{other.url}/"), Query("x", 5))
        assert other.connections == 0


async def test_an_answer_without_end_is_not_read_to_its_end(web: FakeWeb) -> None:
    with pytest.raises(ToolFailed, match="no valid answer"):
        await search("tavily", web, as_json({"results": ["x" * 5_000_000]}), Query("x", 5))


@pytest.mark.parametrize("results", [None, "text", [1, None], {"a": 1}])
async def test_results_that_are_none_are_left_out(results: object, web: FakeWeb) -> None:
    assert await search("tavily", web, as_json({"results": results}), Query("x", 5)) == ()


# What is kept of the hits of any backend.


def hits(*urls: str) -> tuple[Hit, ...]:
    return tuple(Hit(url, "title", "") for url in urls)


def test_only_hits_on_allowed_domains_are_kept_whatever_the_backend_gives() -> None:
    given = hits("https://a.org/1", "https://evil.org/?a.org", "https://sub.A.org:8443/2", "https://nota.org/", "https://a.org@evil.org/")
    assert [hit.url for hit in kept(given, Query("x", 9, ("a.org",)))] == ["https://a.org/1", "https://sub.A.org:8443/2"]


def test_hits_are_kept_once_and_as_many_as_wanted() -> None:
    given = hits("https://a.org/1", "https://a.org/1", "https://a.org/2", "https://a.org/3")
    assert [hit.url for hit in kept(given, Query("x", 2))] == ["https://a.org/1", "https://a.org/2"]


@pytest.mark.parametrize(
    "url", ["", "javascript:alert(1)", "ftp://a.org/", "/relative", "https://", "https://a.org/a b", "https://a.org\n"]
)
def test_a_hit_that_is_no_web_page_is_not_kept(url: str) -> None:
    assert kept(hits(url), Query("x", 5)) == ()


# ddgs.


async def test_ddgs_searches_in_a_thread_of_its_own() -> None:
    def search(query: Query, timeout: float) -> list[dict[str, object]]:
        return [{"title": threading.current_thread().name, "href": "https://a.org/", "body": query.text}]

    backend = Ddgs(search, threads=1, timeout=10)
    (hit,) = await backend.search(Query("words", 5))
    await backend.aclose()
    assert hit.title.startswith("ddgs")
    assert (hit.url, hit.snippet) == ("https://a.org/", "words")


async def test_a_ddgs_search_has_a_deadline_though_its_thread_goes_on() -> None:
    """B062"""
    release = threading.Event()

    def search(query: Query, timeout: float) -> list[dict[str, object]]:
        release.wait(30)
        return []

    backend = Ddgs(search, threads=1, timeout=0.1)
    with pytest.raises(ToolFailed, match="in time"):
        await backend.search(Query("x", 5))
    with pytest.raises(ToolFailed, match="in time"):
        await backend.search(Query("waits for the thread", 5))
    release.set()
    await backend.aclose()


async def test_the_library_is_called_as_it_wants_and_its_failures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """B062"""
    monkeypatch.setenv("DDGS_PROXY", "http://127.0.0.1:1")
    async with open_backend(WebSearchSettings(timeout_seconds=20)) as backend:
        with pytest.raises(ToolFailed, match="search engines"):
            await backend.search(Query("x", 3, location=Location("GB")))


# Choosing one.


async def test_a_backend_that_is_not_known_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="ddgs, brave, tavily, searxng"):
        async with open_backend(WebSearchSettings(backend="altavista")):
            pass


@pytest.mark.parametrize(("backend", "names"), [("brave", "BRAVE_API_KEY"), ("tavily", "TAVILY_API_KEY"), ("searxng", "web_search.url")])
async def test_a_backend_without_its_key_or_address_is_a_settings_error(backend: str, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(names, raising=False)
    with pytest.raises(SettingsError, match=names):
        async with open_backend(WebSearchSettings(backend=backend)):
            pass


def test_every_backend_is_covered_here() -> None:
    assert {name for name, _ in BACKENDS} == {"ddgs", *OVER_HTTP}
