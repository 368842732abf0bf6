"""The outbound guard: whether a URL that a request can influence may be reached, and at which addresses.

A host is judged by the addresses that it resolves to, and only addresses that were judged are connected to: the transport in
`outbound_transport` asks the guard at the moment it connects, for each connection, and so a redirect or a changed DNS answer is judged like
the first. Addresses outside the public internet are refused unless the configuration allows them. Nothing here sends a byte over HTTP.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from orchestrator_svc.settings import OutboundSettings
from orchestrator_svc.tools.base import ToolFailed
from svckit.settings import SettingsError

if TYPE_CHECKING:
    import httpx2

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[tuple[str, ...]]]

_PORTS = {"http": 80, "https": 443}


class OutboundRefused(ToolFailed):
    """A URL may not be reached. The text says why in general and names no address: it must not tell what is inside."""


# One text for a host that is not there and for one that is inside: the difference would map the network behind the gateway.
_NOT_PUBLIC = "The host of the URL cannot be found, or may not be reached from here."


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a URL points: its scheme, its host in ASCII, its port."""

    scheme: str
    host: str
    port: int


async def system_resolver(host: str, port: int) -> tuple[str, ...]:
    """All addresses of a host, in the order in which the system would try them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


class Guard:
    """Judges URLs and hosts by `[outbound]`."""

    def __init__(self, settings: OutboundSettings, resolve: Resolver = system_resolver) -> None:
        """Raises SettingsError for an entry that is neither a host, an address nor a network."""
        self.settings = settings
        self._resolve = resolve
        self._allowed = tuple(read_rule(entry, "allow_hosts") for entry in settings.allow_hosts)
        self._denied = tuple(read_rule(entry, "deny_hosts") for entry in settings.deny_hosts)

    def admit(self, url: str) -> Origin:
        """What can be said without a resolver: the form of the URL, and hosts denied by name. Raises OutboundRefused."""
        origin = read_origin(url)
        if any(rule.names(origin.host, origin.port) for rule in self._denied):
            raise OutboundRefused(_NOT_PUBLIC)
        return origin

    async def addresses(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses of a host that may be connected to, at least one. Raises OutboundRefused."""
        host = host.rstrip(".").lower()
        permitted = tuple(address for address in await self._resolved(host, port) if self._permits(host, port, address))
        if not permitted:
            raise OutboundRefused(_NOT_PUBLIC)
        return permitted

    async def _resolved(self, host: str, port: int) -> tuple[str, ...]:
        if _address(host) is not None:
            return (host,)
        try:
            async with asyncio.timeout(self.settings.connect_timeout_seconds):
                return await self._resolve(host, port)
        except (OSError, UnicodeError) as exc:
            raise OutboundRefused(_NOT_PUBLIC) from exc

    def _permits(self, host: str, port: int, text: str) -> bool:
        address = _address(text)
        if address is None or any(rule.matches(host, port, address) for rule in self._denied):
            return False
        return is_public(address) or any(rule.matches(host, port, address) for rule in self._allowed)


def guarded_client(guard: Guard, headers: Mapping[str, str], timeout: "httpx2.Timeout | float | None") -> "httpx2.AsyncClient":
    """An HTTP client that reaches only what the guard permits. It keeps no cookies, follows no redirects and reads no proxy settings."""
    # Loaded here because it costs a tenth of a second and most processes never fetch anything.
    import httpx2

    from orchestrator_svc.outbound_transport import GuardedTransport

    return httpx2.AsyncClient(headers=headers, timeout=timeout, transport=GuardedTransport(guard), trust_env=False, follow_redirects=False)


# Reading URLs.


def read_origin(url: str) -> Origin:
    """Takes a URL apart. Raises OutboundRefused for what is not a plain http or https URL."""
    if not url.isprintable() or " " in url or "\\" in url:
        raise OutboundRefused("The URL is not valid.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise OutboundRefused("The URL is not valid.") from exc
    if parts.scheme not in _PORTS:
        raise OutboundRefused("Only http and https URLs can be fetched.")
    if "@" in parts.netloc:
        raise OutboundRefused("A URL with a user name or password in it is not fetched.")
    return Origin(parts.scheme, _host(parts.hostname or ""), _PORTS[parts.scheme] if port is None else port)


def _host(host: str) -> str:
    """The host in ASCII. Numbers in other notations (`127.1`, `0x7f000001`, `0177.0.0.1`) are addresses to some, names to others."""
    try:
        ascii_host = (host if host.isascii() else host.encode("idna").decode()).rstrip(".").lower()
    except UnicodeError as exc:
        raise OutboundRefused("The URL is not valid.") from exc
    if _address(ascii_host) is None and not _is_name(ascii_host):
        raise OutboundRefused("The URL is not valid.")
    return ascii_host


def _is_name(host: str) -> bool:
    last = host.rpartition(".")[2]
    return bool(_NAME.fullmatch(host)) and not _NUMBER.fullmatch(last)


_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def _address(text: str) -> Address | None:
    """The address that a literal stands for; a zone is part of no address that may be reached."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


# Judging addresses.


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet: unicast, globally routed, and no cloud's own service."""
    embedded = _embedded(address)
    if embedded is not None:
        return is_public(embedded)
    if isinstance(address, ipaddress.IPv6Address) and (address.scope_id is not None or address not in _GLOBAL_UNICAST):
        return False
    return not any(address in network for network in _SPECIAL)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv4-mapped or NAT64 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

# The IANA special-purpose registries, written out: what the standard library calls private changes with its version.
_SPECIAL = _networks(
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",  # Azure's host service: a public number that only a virtual machine's own host answers to
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
)


# Reading the entries of allow_hosts and deny_hosts.


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry: a name, a suffix (`.example.com`) or a network, on one port or on all."""

    name: str = ""
    network: Network | None = None
    port: int | None = None

    def names(self, host: str, port: int) -> bool:
        """Whether the entry means a host by its name."""
        if self.network is not None or self.port not in (None, port):
            return False
        return host.endswith(self.name) and len(host) > len(self.name) if self.name.startswith(".") else host == self.name

    def matches(self, host: str, port: int, address: Address) -> bool:
        """Whether the entry means a host at this address, by its name or by the address."""
        if self.network is None:
            return self.names(host, port)
        return self.port in (None, port) and any(form in self.network for form in (address, _embedded(address)) if form is not None)


def read_rule(entry: str, key: str) -> Rule:
    """The rule that an entry of `[outbound]` `key` stands for. Raises SettingsError."""
    text = entry.strip().lower()
    host, port = _split_port(text)
    if "/" in text:
        host, port = text, None
    network = _network(host.strip("[]"))
    if network is not None:
        return Rule(network=network, port=port)
    name = host.removeprefix("*").rstrip(".")
    if not _is_name(name.removeprefix(".")) or (host.startswith("*") and not host.startswith("*.")) or host.startswith("."):
        raise SettingsError("settings", f"outbound.{key}", f"'{entry}' is no host name, *.domain, IP address or network")
    return Rule(name=name, port=port)


def _split_port(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*):(\d{1,5})", text)
    return (match[1], int(match[2])) if match else (text, None)


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def host_is_within(host: str, domains: Iterable[str]) -> bool:
    """Whether a host is one of the domains or below one of them."""
    host = host.rstrip(".").lower()
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
