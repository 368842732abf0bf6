"""What the outbound guard lets through, by its rules alone; the DNS is a dictionary here."""

import pytest

from orchestrator_svc.outbound import Guard, OutboundRefused, host_is_within
from orchestrator_svc.settings import OutboundSettings
from svckit.settings import SettingsError

PUBLIC, PUBLIC_V6 = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"


def guard(names: dict[str, tuple[str, ...]] | None = None, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> Guard:
    async def resolve(host: str, port: int) -> tuple[str, ...]:
        try:
            return (names or {})[host]
        except KeyError:
            raise OSError(f"no such host {host}") from None

    return Guard(OutboundSettings(allow_hosts=allow, deny_hosts=deny), resolve)


async def reached(guard: Guard, url: str) -> tuple[str, ...]:
    """The addresses at which a URL may be reached."""
    origin = guard.admit(url)
    return await guard.addresses(origin.host, origin.port)


async def refusal(guard: Guard, url: str) -> str:
    with pytest.raises(OutboundRefused) as refused:
        await reached(guard, url)
    return refused.value.message


async def test_a_public_host_is_reached_at_its_own_addresses() -> None:
    origin = guard().admit("https://Example.com./a?b#c")
    assert (origin.scheme, origin.host, origin.port) == ("https", "example.com", 443)
    assert await reached(guard({"example.com": (PUBLIC, PUBLIC_V6)}), "https://Example.com./a?b#c") == (PUBLIC, PUBLIC_V6)


@pytest.mark.parametrize(
    "url", [f"http://{PUBLIC}/", f"https://[{PUBLIC_V6}]:8443/", f"http://[::ffff:{PUBLIC}]/", "http://[64:ff9b::5db8:d822]/"]
)
async def test_a_public_address_is_reached_as_it_is(url: str) -> None:
    assert len(await reached(guard(), url)) == 1


INSIDE = [
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    *(
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "192.88.99.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
    ),
    *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1", "3fff::1", "5f00::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:1:2:3:4:80ff:fffe", "fe80::1%eth0"),
]


@pytest.mark.parametrize("address", INSIDE)
async def test_an_address_that_is_not_of_the_public_internet_is_refused(address: str) -> None:
    """B155"""
    host = f"[{address}]" if ":" in address else address
    messages = {await refusal(guard(), f"http://{host}/"), await refusal(guard({"inside.test": (address,)}), "http://inside.test/")}
    assert all(address not in message for message in messages)


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "0", "127.0.0.1.", "１２７.0.0.1", "0x"]
)
async def test_an_address_in_another_notation_is_refused(host: str) -> None:
    async def as_the_c_library_would(host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    await refusal(Guard(OutboundSettings(), as_the_c_library_would), f"http://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "file:///etc/passwd", "gopher://example.com", "javascript:alert(1)", "//example.com/", "example.com", ""),
        *(
            "http://",
            "http:///x",
            "http://user@example.com/",
            "http://user:pw@example.com/",
            "http://127.0.0.1@example.com/",
            "http://@example.com",
        ),
        *(
            "http://example.com:99999/",
            "http://exam ple.com/",
            "http://example.com\\@inside.test/",
            "http://example.com/\r\nHost: x",
            "http://[::1/",
        ),
        *("http://exa%6dple.com/", f"http://{'a' * 64}.com/", "http://-/\x00", "http://a..b/"),
    ],
)
async def test_what_is_not_a_plain_http_url_is_refused(url: str) -> None:
    await refusal(guard({"example.com": (PUBLIC,), "inside.test": (PUBLIC,)}), url)


async def test_a_name_in_another_script_is_resolved_in_ascii() -> None:
    assert guard().admit("http://Bücher.example/").host == "xn--bcher-kva.example"
    assert await reached(guard({"xn--bcher-kva.example": (PUBLIC,)}), "http://Bücher.example/") == (PUBLIC,)


async def test_only_the_public_ones_among_several_addresses_are_connected_to() -> None:
    mixed = guard({"mixed.test": ("10.0.0.1", PUBLIC, "::1")})
    assert await reached(mixed, "http://mixed.test/") == (PUBLIC,)


async def test_a_host_that_is_inside_and_one_that_does_not_exist_look_the_same() -> None:
    """B156"""
    one = guard({"secret.internal": ("10.0.0.7",)})
    assert await refusal(one, "http://secret.internal/") == await refusal(one, "http://nowhere.internal/")


ALLOWING = [
    (("inside.test",), "http://inside.test/"),
    (("Inside.Test",), "http://inside.test:8080/"),
    (("inside.test:8080",), "http://inside.test:8080/"),
    (("*.test",), "http://inside.test/"),
    (("10.0.0.7",), "http://inside.test/"),
    (("10.0.0.7",), "http://10.0.0.7:1/"),
    (("10.0.0.7:81",), "http://10.0.0.7:81/"),
    (("10.0.0.0/8",), "http://inside.test/"),
    (("10.0.0.0/8",), "http://[::ffff:10.0.0.7]/"),
    (("::1",), "http://[::1]:9/"),
    (("[::1]:9",), "http://[::1]:9/"),
    (("fd00::/8",), "http://[fd00::5]/"),
]


@pytest.mark.parametrize(("allow", "url"), ALLOWING)
async def test_a_private_host_that_is_allowed_is_reached(allow: tuple[str, ...], url: str) -> None:
    assert await reached(guard({"inside.test": ("10.0.0.7",)}, allow=allow), url)


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        (("inside.test:8080",), "http://inside.test/"),
        (("*.inside.test",), "http://inside.test/"),
        (("inside.test",), "http://other.test/"),
        (("inside.test",), "http://10.0.0.7/"),
        (("de.test",), "http://inside.test/"),
        (("10.0.0.8",), "http://inside.test/"),
        (("[::1]:9",), "http://[::1]:8/"),
    ],
)
async def test_what_is_allowed_is_only_what_is_named(allow: tuple[str, ...], url: str) -> None:
    await refusal(guard({"inside.test": ("10.0.0.7",), "other.test": ("10.0.0.7",)}, allow=allow), url)


async def test_allow_hosts_never_narrows() -> None:
    assert await reached(guard({"example.com": (PUBLIC,)}, allow=("other.test",)), "http://example.com/") == (PUBLIC,)


@pytest.mark.parametrize("deny", ["example.com", "*.com", "example.com:80", PUBLIC, f"{PUBLIC}:80", "93.184.0.0/16"])
async def test_what_is_denied_is_refused_though_it_is_public_and_allowed(deny: str) -> None:
    denying = guard({"example.com": (PUBLIC,)}, allow=("example.com", PUBLIC), deny=(deny,))
    await refusal(denying, "http://example.com/")


async def test_what_is_denied_on_one_port_is_reached_on_another() -> None:
    assert await reached(guard({"example.com": (PUBLIC,)}, deny=("example.com:80",)), "https://example.com/") == (PUBLIC,)


@pytest.mark.parametrize(
    "entry", ["", "*", "*example.com", "http://example.com", "10.0.0.0/99", "10.0.0.0/8:80", "exa mple.com", "a@b", ".com", "127.1"]
)
def test_an_entry_that_means_nothing_is_a_settings_error(entry: str) -> None:
    with pytest.raises(SettingsError):
        guard(allow=(entry,))
    with pytest.raises(SettingsError):
        guard(deny=(entry,))


def test_a_domain_contains_itself_and_what_is_below() -> None:
    assert host_is_within("A.Example.com.", ["example.com"])
    assert host_is_within("example.com", ["other.org", "example.com"])
    assert not host_is_within("badexample.com", ["example.com"])
