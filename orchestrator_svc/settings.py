"""Settings of the orchestrator: `[engine]`, `[orchestrator]`, and what its tools need, besides what every service has."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from svckit.settings import GrpcSettings, LogSettings, SettingsError

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[engine]`: where the engine is and what it is like.

    `url` with or without `/v1`; `api_key_env` names the environment variable that holds its key. `include` are the values of the request's
    `include` that it knows, `drop` request fields that it refuses, `add` fields that every request to it gets. `context_window` is in
    tokens, 0: not known.
    """

    url: str = ""
    name: str = "engine"
    api_key_env: str = ""
    include: tuple[str, ...] = ("message.output_text.logprobs",)
    drop: tuple[str, ...] = ()
    add: dict[str, object] = {}
    context_window: Annotated[int, msgspec.Meta(ge=0)] = 0


class OrchestratorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[orchestrator]`: where it listens, where the history service is, and the bounds of a turn. Empty addresses: none."""

    listen: str = "127.0.0.1:9002"
    history: str = "127.0.0.1:9001"
    metrics_listen: str = "127.0.0.1:9102"
    first_event_grace_seconds: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    connect_timeout_seconds: Seconds = 5.0
    first_event_timeout_seconds: Seconds = 300.0
    gap_timeout_seconds: Seconds = 120.0
    turn_timeout_seconds: Seconds = 3600.0
    load_timeout_seconds: Seconds = 10.0
    commit_timeout_seconds: Seconds = 30.0
    drain_seconds: Annotated[float, msgspec.Meta(ge=0)] = 20.0
    max_turns: Count = 2000
    background_turns: Annotated[int, msgspec.Meta(ge=0)] = 4
    background_lease_seconds: Annotated[float, msgspec.Meta(ge=1)] = 20.0
    max_rounds: Count = 10
    max_context_bytes: Count = 32 * 1024 * 1024
    max_output_chars: Count = 4 * 1024 * 1024
    max_output_items: Count = 1000
    max_parallel_calls: Count = 8
    max_running_calls: Count = 64
    tool_timeout_seconds: Seconds = 60.0
    list_timeout_seconds: Seconds = 30.0
    max_tool_output_bytes: Count = 256 * 1024
    reasoning_events: str = "response.reasoning_text"


class OutboundSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[outbound]`: what URLs that a request can influence may reach, and the bounds of fetching one.

    An entry of `allow_hosts` and `deny_hosts` is a host name, `*.example.com` (its subdomains, not itself), an IP address or a CIDR
    network; all but a network may end in `:port`, an IPv6 address with a port stands in brackets. `allow_hosts` adds hosts that may be
    reached although they are private; it never narrows. `deny_hosts` narrows, and beats it.
    """

    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()
    connect_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    max_bytes: Annotated[int, msgspec.Meta(gt=0)] = 4 * 1024 * 1024
    max_redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 5


class WebSearchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[web_search]`: which backend searches, and the bounds of a search and of a page's text.

    `url` replaces the backend's own address (SearXNG has none); `api_key_env` names the environment variable that holds its key, empty:
    the one that the provider's documentation uses.
    """

    backend: str = "ddgs"
    url: str = ""
    api_key_env: str = ""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    max_page_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 48 * 1024


class McpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[mcp]`: the bounds of what MCP servers may cost. A session that nobody uses is closed after `idle_seconds`.

    `list_lifetime_seconds` is how long a server's list of tools is believed. Over HTTP a result is read up to `max_result_bytes`; what
    comes after is cut. The timeouts are below those that `[orchestrator]` has for every tool, so that a server's own failure is told.
    """

    connect_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    list_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    call_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 55.0
    list_lifetime_seconds: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    idle_seconds: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    max_sessions: Annotated[int, msgspec.Meta(ge=1)] = 200
    max_result_bytes: Annotated[int, msgspec.Meta(ge=16 * 1024)] = 4 * 1024 * 1024


class McpServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[mcp_servers.NAME]`: an MCP server that requests may name by its label, NAME: an address, or a command that is run here.

    `env` are the names of environment variables that the command gets; others than PATH, HOME and their like it does not see.
    `authorization_env` names the variable that holds the server's token. What stands here, a request cannot override.
    """

    url: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    authorization_env: str = ""
    transport: Literal["auto", "streamable_http", "sse"] = "auto"

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.command):
            raise ValueError("an MCP server has either a url or a command")
        if self.url and (self.args or self.env):
            raise ValueError("args and env belong to a command")
        if self.command and (self.headers or self.authorization_env or self.transport != "auto"):
            raise ValueError("headers, authorization_env and transport belong to a url")
        if self.url and not self.url.lower().startswith(("http://", "https://")):
            raise ValueError("the url is an http or https URL")

    def __repr__(self) -> str:
        return f"McpServerSettings(url={self.url!r}, command={self.command!r})"


class CompactionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[compaction]`: when contexts are compacted, and how. Sizes are in tokens; 0: only when a request asks for it.

    `thresholds` are for models by name, `threshold` for all others. `model` and `prompt` make the summary; empty: the turn's own model, and
    a prompt of ours. Messages are kept up to `keep_share` of the threshold; a context is compacted again when it has grown by `growth`.
    """

    threshold: Annotated[int, msgspec.Meta(ge=0)] = 0
    thresholds: dict[str, int] = {}
    model: str = ""
    prompt: str = ""
    keep_share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    growth: Annotated[float, msgspec.Meta(ge=0)] = 0.25


class SealingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sealing]`: the secrets that what clients keep for us is encrypted with; the first encrypts, all of them decrypt.

    Without any, a process makes one for itself: what it sealed is unreadable for others, and after its end.
    """

    secrets: tuple[str, ...] = ()


class Settings(msgspec.Struct, frozen=True):
    """All sections that the orchestrator reads."""

    log: LogSettings = LogSettings()
    grpc: GrpcSettings = GrpcSettings()
    engine: EngineSettings = EngineSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    outbound: OutboundSettings = OutboundSettings()
    web_search: WebSearchSettings = WebSearchSettings()
    mcp: McpSettings = McpSettings()
    mcp_servers: dict[str, McpServerSettings] = {}
    compaction: CompactionSettings = CompactionSettings()
    sealing: SealingSettings = SealingSettings()


def refuse_no_address(engine: EngineSettings) -> None:
    """Raises SettingsError where `url` is nothing that HTTP could be spoken with. The URL is not repeated: it may hold a password."""
    if not _is_address(engine.url):
        raise SettingsError("settings", "engine.url", "is no address of an engine; give one like http://127.0.0.1:8000")


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        has_port = url.port is None or url.port > 0
        (url.hostname or "").encode("idna")
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname) and has_port and not (url.query or url.fragment or " " in text)
