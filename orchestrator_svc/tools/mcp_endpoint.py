"""Where an MCP server is and with which credentials it is spoken to: the request's words joined with the configuration's.

What the configuration says of a server wins over what a request says. Only the configuration can name a command; a URL that a request names
is marked `guarded`. Nothing here opens a connection.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator_svc.settings import McpServerSettings
from orchestrator_svc.tools.base import McpServer, ToolFailed
from svckit.settings import SettingsError

REDACTED = "[redacted]"

# A client may repeat what the protocol sets anyway; what frames a message or names the connection it may not touch.
_SET_BY_THE_PROTOCOL = {"accept", "accept-encoding", "content-type", "content-length", "user-agent"}
_REFUSED = {
    *("connection", "content-encoding", "expect", "host", "keep-alive", "last-event-id", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,16384}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9._~+/-]* +\S")
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_SHORTEST_TOKEN = 4
_SHORTEST_SECRET = 8


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server as seen with one set of credentials. `key` is a hash; `transports` are tried in their order.

    `secrets` are the texts that must not come back out of the gateway, whatever the server says.
    """

    key: str
    transports: tuple[str, ...]
    guarded: bool
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redacted(self, text: str) -> str:
        """`text` without the secrets of this endpoint."""
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        return text


class Endpoints:
    """The endpoints of the servers that the configuration names, and of those that requests do."""

    def __init__(self, servers: Mapping[str, McpServerSettings], environ: Mapping[str, str]) -> None:
        """Raises SettingsError for a header that cannot be sent and for an environment variable that is named but not set."""
        self._configured = {label: _configured(label, server, environ) for label, server in servers.items()}

    def of(self, server: McpServer) -> Endpoint:
        """The endpoint that a request means. Raises ToolFailed."""
        try:
            headers = _headers(server.headers, server.authorization)
        except ValueError as exc:
            raise ToolFailed(str(exc)) from None
        if server.url is not None:
            return _endpoint("", server.url, headers, guarded=True, transport="auto")
        configured = self._configured.get(server.label)
        if configured is None:
            raise ToolFailed("No MCP server of this label is configured.")
        if configured.command and headers:
            raise ToolFailed("This MCP server is a command: it takes no headers and no authorization.")
        if not headers:
            return configured
        return _endpoint(server.label, configured.url, {**headers, **configured.headers}, guarded=False, transport=configured.transports)


def _configured(label: str, server: McpServerSettings, environ: Mapping[str, str]) -> Endpoint:
    where = f"mcp_servers.{label}"
    if server.command:
        values = {name: _value(name, environ, f"{where}.env") for name in server.env}
        return Endpoint(
            _key(label, server.command),
            ("stdio",),
            guarded=False,
            command=server.command,
            args=server.args,
            environment=values,
            secrets=_secrets((name, value) for name, value in values.items() if _SECRET_NAME.search(name)),
        )
    token = _value(server.authorization_env, environ, f"{where}.authorization_env") if server.authorization_env else ""
    try:
        headers = _headers(server.headers, token)
    except ValueError as exc:
        raise SettingsError("settings", f"{where}.headers", str(exc)) from exc
    return _endpoint(label, server.url, headers, guarded=False, transport=server.transport)


def _value(name: str, environ: Mapping[str, str], key: str) -> str:
    if name not in environ:
        raise SettingsError("settings", key, f"the environment variable {name} is not set")
    return environ[name]


def _endpoint(label: str, url: str, headers: Mapping[str, str], *, guarded: bool, transport: str | tuple[str, ...]) -> Endpoint:
    transports = _TRANSPORTS[transport] if isinstance(transport, str) else transport
    key = _key(label, url, *(part for header in sorted(headers.items()) for part in header))
    return Endpoint(key, transports, guarded, url=url, headers=headers, secrets=_secrets(headers.items()))


_TRANSPORTS = {"auto": ("streamable_http", "sse"), "streamable_http": ("streamable_http",), "sse": ("sse",)}


def _key(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _headers(given: Mapping[str, str], authorization: str) -> dict[str, str]:
    """The headers to send, by their lower-case names. Raises ValueError, which names a header but never its value."""
    headers = {name.strip().lower(): value.strip() for name, value in given.items()}
    if authorization.strip():
        headers["authorization"] = _with_scheme(authorization.strip())
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ValueError("The name of a header cannot be sent.")
        if name in _REFUSED or name.startswith("mcp-"):
            raise ValueError(f"The header '{name}' cannot be sent to an MCP server.")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"The value of the header '{name}' cannot be sent.")
    return {name: value for name, value in headers.items() if name not in _SET_BY_THE_PROTOCOL}


def _with_scheme(authorization: str) -> str:
    return authorization if _SCHEME.match(authorization) else f"Bearer {authorization}"


def _secrets(values: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Each as it is and as JSON writes it; the longest first, so that no part of one is left when a shorter one stands within it."""
    found: set[str] = set()
    for name, value in values:
        if name == "authorization":
            found |= {one for one in (value, value.rpartition(" ")[2]) if len(one) >= _SHORTEST_TOKEN}
        elif len(value) >= _SHORTEST_SECRET:
            found.add(value)
    found |= {json.dumps(secret, ensure_ascii=ascii)[1:-1] for secret in found for ascii in (True, False)}
    return tuple(sorted(found, key=len, reverse=True))
