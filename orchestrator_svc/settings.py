"""Settings of the orchestrator: `[engine]`, `[orchestrator]`, `[outbound]`, `[web_search]`, and what every service has."""

from typing import Annotated

import msgspec

from svckit.settings import GrpcSettings, LogSettings


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[engine]`: where the engine is and what it is like.

    `url` with or without `/v1`; `api_key_env` names the environment variable that holds its key. `include` are the values of the request's
    `include` that it knows, `drop` request fields that it refuses, `add` fields that every request to it gets.
    """

    url: str = ""
    name: str = "engine"
    api_key_env: str = ""
    include: tuple[str, ...] = ("message.output_text.logprobs",)
    drop: tuple[str, ...] = ()
    add: dict[str, object] = {}


class OrchestratorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[orchestrator]`: where it listens, where the history service is, and the bounds of a turn. Empty addresses: none."""

    listen: str = "127.0.0.1:9002"
    history: str = "127.0.0.1:9001"
    metrics_listen: str = "127.0.0.1:9102"
    first_event_grace_seconds: float = 10.0
    connect_timeout_seconds: float = 5.0
    first_event_timeout_seconds: float = 300.0
    gap_timeout_seconds: float = 120.0
    turn_timeout_seconds: float = 3600.0
    load_timeout_seconds: float = 30.0
    commit_timeout_seconds: float = 30.0
    drain_seconds: float = 20.0
    max_turns: int = 2000
    max_rounds: int = 10
    max_context_bytes: int = 32 * 1024 * 1024
    max_output_chars: int = 4 * 1024 * 1024
    max_output_items: int = 1000
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


class Settings(msgspec.Struct, frozen=True):
    """All sections that the orchestrator reads."""

    log: LogSettings = LogSettings()
    grpc: GrpcSettings = GrpcSettings()
    engine: EngineSettings = EngineSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    outbound: OutboundSettings = OutboundSettings()
    web_search: WebSearchSettings = WebSearchSettings()
