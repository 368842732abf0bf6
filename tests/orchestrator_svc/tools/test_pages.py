"""Pages over real HTTP: what is read, what is refused, and that every bound holds."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator_svc.outbound import Guard, OutboundRefused
from orchestrator_svc.settings import OutboundSettings
from orchestrator_svc.tools.base import ToolFailed
from orchestrator_svc.tools.pages import Page, Pages, decoded, open_pages
from tests.fakes.web import Answer, FakeWeb, html, redirect

PARAGRAPH = "A range holds every value between two bounds, and that is all there is to it, though people find more to say. "
ARTICLE = f"""<!doctype html><html><head><title> Of
 ranges </title><style>p {{}}</style></head><body><nav><a href="/">Home</a> <a href="/b">Menu</a></nav>
<article><h1>Ranges</h1><p>{PARAGRAPH * 3}</p><ul><li>one</li><li>two</li></ul></article>
<script>alert(1)</script><footer>Cookies</footer></body></html>"""


@asynccontextmanager
async def reading(**settings: object) -> AsyncIterator[tuple[Pages, FakeWeb]]:
    """Pages over a fake web; any name leads there."""

    async with FakeWeb() as web, open_pages(guarding(**{"allow_hosts": ("127.0.0.1",)} | settings)) as pages:
        yield pages, web


def guarding(**settings: object) -> Guard:
    async def resolve(host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    return Guard(OutboundSettings(**settings), resolve)  # type: ignore[arg-type]


async def read(answer: Answer, **settings: object) -> Page:
    async with reading(**settings) as (pages, web):
        web.answers["/page"] = answer
        return await pages.read(f"{web.url}/page")


async def refusal(answer: Answer, **settings: object) -> str:
    with pytest.raises(ToolFailed) as failed:
        await read(answer, **settings)
    return failed.value.message


def typed(content_type: str, body: bytes) -> Answer:
    return Answer(headers=(("Content-Type", content_type),), body=body)


async def test_an_article_is_reduced_to_its_title_and_text() -> None:
    page = await read(html(ARTICLE))
    assert page.title == "Of ranges"
    assert page.text == f"# Ranges\n\n{(PARAGRAPH * 3).strip()}\n\n- one\n- two"
    assert not page.is_cut


async def test_a_page_without_an_article_is_read_whole() -> None:
    assert (await read(html("<html><body><p>tiny</p><script>no()</script></body></html>"))).text == "tiny"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/json", "application/ld+json; charset=utf-8", "text/csv", "application/xml", ""]
)
async def test_text_that_is_no_page_is_read_as_it_is(kind: str) -> None:
    assert (await read(typed(kind, b'{"a": "b"}'))).text == '{"a": "b"}'


@pytest.mark.parametrize("body", ["<p>f&uuml;r &lt;you&gt;", "f&uuml;r &lt;you&gt;"])
async def test_what_calls_itself_a_page_and_is_a_fragment_is_read_all_the_same(body: str) -> None:
    assert (await read(html(body))).text == "für <you>"


async def test_many_stalled_pages_do_not_hold_up_another() -> None:
    async with reading() as (pages, web):
        web.answers |= {"/stalled": Answer(body=b"x", ending="hang"), "/page": html(ARTICLE)}
        stalled = [asyncio.create_task(pages.read(f"{web.url}/stalled")) for _ in range(30)]
        assert (await pages.read(f"{web.url}/page")).title == "Of ranges"
        for task in stalled:
            task.cancel()
        await asyncio.wait(stalled)


async def test_a_page_without_a_type_is_known_by_its_first_bytes() -> None:
    assert (await read(typed("", b"  <!DOCTYPE html><p>hello there"))).text == "hello there"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/pdf", b"%PDF-1.7"),
        ("text/html", b"%PDF-1.7 under a false name"),
        ("image/png", b"\x89PNG"),
        ("application/octet-stream", b"x"),
        ("video/mp4", b"x"),
        ("", b"\x00\x01"),
    ],
)
async def test_what_is_no_text_is_refused(kind: str, body: bytes) -> None:
    assert "no text" in await refusal(typed(kind, body))


@pytest.mark.parametrize("body", ["", "   ", "<html><body><script>x()</script></body></html>", "<html></html>"])
async def test_a_page_with_nothing_to_read_is_a_failure(body: str) -> None:
    """B062"""
    assert "no readable text" in await refusal(html(body))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 429, 500, 503])
async def test_an_error_of_the_site_is_told_by_its_number_only(status: int) -> None:
    """B062"""
    assert await refusal(Answer(status, body=b"<p>secret debug page</p>")) == f"The page answered with HTTP {status}."


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/html; charset=ISO-8859-1", "für".encode("latin-1"), "für"),
        ("text/html", '<meta charset="windows-1252">für'.encode("cp1252"), '<meta charset="windows-1252">für'),
        ("text/html", "ä".encode(), "ä"),
        ("text/plain; charset=latin-1", b"\xef\xbb\xbf\xc3\xa4", "ä"),
        ("text/plain", "ä".encode("utf-16"), "ä"),
        ("text/plain; charset=utf-16", "ä".encode("utf-16-be"), "\ue400"),
        ('text/plain; charset="shift_jis"', "日本".encode("shift_jis"), "日本"),
        ("application/xml", '<?xml version="1.0" encoding="koi8-r"?>да'.encode("koi8-r"), '<?xml version="1.0" encoding="koi8-r"?>да'),
        ("text/plain; charset=nonsense", "ä".encode(), "ä"),
        ("text/plain; charset=rot13", b"abc", "abc"),
        ("text/plain; charset=hex", b"abc", "abc"),
        ("text/plain; charset=punycode", b"abc", "abc"),
        ("text/plain; charset=unicode_escape", rb"\u0041", r"\u0041"),
        ("text/plain; charset=utf-7", b"+AEE-", "+AEE-"),
        ("text/plain", b"a\xffb", "a�b"),
    ],
)
def test_bytes_become_text_by_what_is_said_of_them(content_type: str, body: bytes, text: str) -> None:
    assert decoded(body, content_type) == text


async def test_a_redirect_is_followed_and_the_last_address_told() -> None:
    async with reading() as (pages, web):
        web.answers |= {"/a": redirect("/b", 301), "/b": redirect(f"http://other.test:{web.port}/c", 307), "/c": html(ARTICLE)}
        assert (await pages.read(f"{web.url}/a")).url == f"http://other.test:{web.port}/c"


async def test_redirects_without_end_are_not_followed_to_their_end() -> None:
    async with reading(max_redirects=3) as (pages, web):
        web.answers["/a"] = redirect("/a")
        with pytest.raises(ToolFailed, match="too often"):
            await pages.read(f"{web.url}/a")
        assert len(web.requests) == 4


@pytest.mark.parametrize(
    "to", ["http://127.0.0.1:{port}/", "http://localhost:{port}/", "//[::ffff:127.0.0.1]:{port}/", "http://2130706433:{port}/"]
)
async def test_a_redirect_inside_opens_no_connection(to: str) -> None:
    """B155"""
    async with FakeWeb() as inside, FakeWeb() as web, open_pages(guarding(allow_hosts=(f"public.test:{web.port}",))) as pages:
        web.answers["/"] = redirect(to.format(port=inside.port))
        with pytest.raises(OutboundRefused) as refused:
            await pages.read(f"http://public.test:{web.port}/")
        assert inside.connections == 0
        assert str(inside.port) not in refused.value.message


@pytest.mark.parametrize("to", ["file:///etc/passwd", "javascript:alert(1)", "http://", "http://user:pw@public.test/", "http://[bad/"])
async def test_a_redirect_to_what_is_no_page_is_refused(to: str) -> None:
    """B155"""
    await refusal(redirect(to))


async def test_neither_a_page_nor_a_redirect_may_leave_the_allowed_domains() -> None:
    async with reading() as (pages, web):
        web.answers |= {"/a": html(ARTICLE), "/b": redirect(f"http://other.test:{web.port}/a")}
        assert (await pages.read(f"http://www.good.test:{web.port}/a", ("good.test",))).title == "Of ranges"
        for url in (f"http://other.test:{web.port}/a", f"http://good.test:{web.port}/b"):
            with pytest.raises(ToolFailed, match="allowed domains"):
                await pages.read(url, ("good.test",))
        assert {asked.headers["host"].partition(":")[0] for asked in web.requests} == {"www.good.test", "good.test"}


async def test_a_page_is_asked_for_without_cookies_credentials_or_referrer() -> None:
    async with reading() as (pages, web):
        web.answers |= {"/a": Answer(302, (("Location", "/b"), ("Set-Cookie", "a=b"))), "/b": html(ARTICLE)}
        await pages.read(f"{web.url}/a#part")
        for asked in web.requests:
            assert set(asked.headers) == {"host", "user-agent", "accept", "accept-encoding", "connection"}


async def test_no_more_of_a_page_is_read_than_its_bound() -> None:
    page = await read(typed("text/plain", b"x" * 100_000), max_bytes=1000)
    assert (page.text, page.is_cut) == ("x" * 1000, True)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("X-GZIP", gzip.compress)])
async def test_a_compressed_page_is_inflated_up_to_the_bound(encoding: str, compress: object) -> None:
    assert callable(compress)
    headers = (("Content-Type", "text/plain"), ("Content-Encoding", encoding))
    small = await read(Answer(headers=headers, body=compress(b"hello")), max_bytes=50_000)
    bomb = await read(Answer(headers=headers, body=compress(b"x" * 10_000_000)), max_bytes=50_000)
    assert (small.text, small.is_cut) == ("hello", False)
    assert (len(bomb.text), bomb.is_cut) == (50_000, True)


@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_a_page_that_cannot_be_inflated_is_a_failure(encoding: str) -> None:
    assert "compressed" in await refusal(Answer(headers=(("Content-Encoding", encoding),), body=b"whatever"))


async def test_a_page_that_stalls_is_left_at_the_deadline() -> None:
    async with reading(timeout_seconds=0.2) as (pages, web):
        web.answers["/page"] = Answer(body=b"<p>beginning", ending="hang")
        with pytest.raises(ToolFailed, match="in time"):
            await pages.read(f"{web.url}/page")
        await web.hung.wait()


async def test_a_page_that_breaks_off_is_a_failure() -> None:
    """B062"""
    assert "cannot be reached" in await refusal(Answer(body=b"<p>beginning", ending="cut"))


async def test_a_site_that_is_not_there_is_a_failure() -> None:
    async with reading() as (pages, web):
        url, port = web.url, web.port
        await web.__aexit__(None, None, None)
        with pytest.raises(ToolFailed, match="cannot be reached") as failed:
            await pages.read(url)
        assert str(port) not in failed.value.message


@pytest.mark.parametrize("markup", ["<div>" * 50_000 + "deep", "<a" * 50_000, "<!--" * 50_000, "&" * 100_000, "<table>" * 5_000 + "x"])
async def test_hostile_markup_ends_in_a_text_or_a_failure(markup: str) -> None:
    try:
        outcome = (await read(html(f"<html><body>{markup}"))).text
    except ToolFailed as failed:
        outcome = failed.message
    assert outcome
