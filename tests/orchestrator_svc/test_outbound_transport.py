"""The guarded client over real sockets: the address that was checked is the one connected to, and a refusal opens no connection."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from orchestrator_svc.outbound import Guard, OutboundRefused, guarded_client
from orchestrator_svc.outbound_transport import GuardedTransport
from orchestrator_svc.settings import OutboundSettings
from tests.fakes.certificates import certificate_for
from tests.fakes.web import Answer, FakeWeb, html, redirect


def guard(*answers: tuple[str, ...], allow: tuple[str, ...] = ("127.0.0.1",), deny: tuple[str, ...] = ()) -> Guard:
    """A guard whose DNS gives these answers one after the other, and the last one for ever."""
    following: Iterator[tuple[str, ...]] = iter(answers)
    last: list[tuple[str, ...]] = [("127.0.0.1",)]

    async def resolve(host: str, port: int) -> tuple[str, ...]:
        last[0] = next(following, last[0])
        return last[0]

    return Guard(OutboundSettings(allow_hosts=allow, deny_hosts=deny, connect_timeout_seconds=2), resolve)


async def test_a_host_is_reached_by_its_name_at_the_address_that_was_checked() -> None:
    async with FakeWeb() as web, guarded_client(guard(), {"x-own": "1"}, 5) as client:
        web.answers["/a"] = html("hello")
        response = await client.get(f"http://site.test:{web.port}/a?b=c")
        assert (response.status_code, response.text) == (200, "hello")
        assert web.requests[0].target == "/a?b=c"
        assert web.requests[0].headers["host"] == f"site.test:{web.port}"
        assert web.requests[0].headers["x-own"] == "1"


async def test_a_dns_answer_that_changes_between_check_and_connection_is_judged_again() -> None:
    """B155"""
    async with FakeWeb() as web:
        rebinding = guard(("93.184.216.34",), ("127.0.0.1",), allow=())
        async with guarded_client(rebinding, {}, 5) as client:
            await rebinding.addresses("site.test", web.port)
            with pytest.raises(OutboundRefused):
                await client.get(f"http://site.test:{web.port}/")
        assert web.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "site.test", "[::ffff:127.0.0.1]", "2130706433", "127.1", "me@127.0.0.1"])
async def test_no_connection_is_opened_to_a_host_that_is_inside(host: str) -> None:
    """B155"""
    async with FakeWeb() as web, guarded_client(guard(allow=()), {}, 5) as client:
        with pytest.raises((OutboundRefused, httpx2.InvalidURL)):
            await client.get(f"http://{host}:{web.port}/")
        assert web.connections == 0


async def test_a_redirect_is_not_followed_by_the_client_itself() -> None:
    """B155"""
    async with (
        FakeWeb() as inside,
        FakeWeb() as web,
        guarded_client(guard(allow=(f"site.test:{web.port}",)), {"authorization": "x"}, 5) as client,
    ):
        web.answers["/"] = redirect(f"{inside.url}/")
        assert (await client.get(f"http://site.test:{web.port}/")).status_code == 302
        with pytest.raises(OutboundRefused):
            await client.get(f"http://site.test:{web.port}/", follow_redirects=True)
        assert inside.connections == 0


async def test_a_credential_does_not_travel_to_another_origin() -> None:
    """B155"""
    async with FakeWeb() as other, FakeWeb() as web, guarded_client(guard(), {"authorization": "Bearer mine"}, 5) as client:
        web.answers["/"] = redirect(f"{other.url}/there")
        other.answers["/there"] = html("there")
        assert (await client.get(f"{web.url}/", follow_redirects=True)).text == "there"
        assert "authorization" in web.requests[0].headers
        assert "authorization" not in other.requests[0].headers


async def test_a_cookie_of_a_server_is_not_kept() -> None:
    async with FakeWeb() as web, guarded_client(guard(), {}, 5) as client:
        web.answers["/"] = Answer(headers=(("Set-Cookie", "id=1; Path=/"),))
        assert "set-cookie" not in (await client.get(f"{web.url}/")).headers
        await client.get(f"{web.url}/")
        assert "cookie" not in web.requests[1].headers


async def test_proxy_settings_of_the_environment_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeWeb() as web, FakeWeb() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        web.answers["/"] = html("direct")
        async with guarded_client(guard(), {}, 5) as client:
            assert (await client.get(f"{web.url}/")).text == "direct"
        assert proxy.connections == 0


async def test_a_connection_is_used_again_without_asking_the_dns_again() -> None:
    async with FakeWeb() as web, guarded_client(guard(("127.0.0.1",), ("10.0.0.1",)), {}, 5) as client:
        web.answers["/"] = html("hello")
        for _ in range(3):
            assert (await client.get(f"http://site.test:{web.port}/")).status_code == 200
        assert web.connections == 1


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with FakeWeb() as web, guarded_client(guard(("127.0.0.2", "127.0.0.1"), allow=("127.0.0.0/8",)), {}, 5) as client:
        web.answers["/"] = html("hello")
        assert (await client.get(f"http://site.test:{web.port}/")).text == "hello"


async def test_a_failure_names_no_address() -> None:
    """B156"""
    async with FakeWeb() as web, guarded_client(guard(("127.0.0.3",), allow=("127.0.0.0/8",)), {}, 5) as client:
        with pytest.raises(httpx2.ConnectError) as failed:
            await client.get(f"http://site.test:{web.port}/")
        assert "127" not in str(failed.value)


async def test_a_body_that_breaks_off_is_an_error_of_the_client() -> None:
    async with FakeWeb() as web, guarded_client(guard(), {}, 5) as client:
        web.answers["/"] = Answer(body=b"half", ending="cut")
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(f"{web.url}/")


async def test_a_host_denied_by_name_is_refused_on_any_request() -> None:
    async with FakeWeb() as web, guarded_client(guard(deny=("site.test",)), {}, 5) as client:
        with pytest.raises(OutboundRefused):
            await client.get(f"http://site.test:{web.port}/")
        assert web.connections == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for `site.test` only, and its key."""
    return certificate_for(tmp_path_factory.mktemp("tls"), "site.test")


async def test_a_certificate_is_checked_against_the_name_and_not_the_address(certificate: tuple[Path, Path]) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=certificate[0])
    async with FakeWeb(tls=serving) as web, httpx2.AsyncClient(transport=GuardedTransport(guard(), trusting)) as client:
        web.answers["/"] = html("private talk")
        assert (await client.get(f"https://site.test:{web.port}/")).text == "private talk"
        for other in ("other.test", "127.0.0.1"):
            with pytest.raises(httpx2.ConnectError):
                await client.get(f"https://{other}:{web.port}/")
        assert [asked.headers["host"] for asked in web.requests] == [f"site.test:{web.port}"]
