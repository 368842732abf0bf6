"""The history service's settings: the sections of `turnkeep.toml` that it reads, with their defaults. How they are read is svckit's."""

from typing import Annotated

import msgspec

from svckit.settings import GrpcSettings, LogSettings

MIB = 1024 * 1024

Count = Annotated[int, msgspec.Meta(ge=1)]
PerhapsCount = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
PerhapsSeconds = Annotated[float, msgspec.Meta(ge=0)]


class HistorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[history]`."""

    listen: str = "127.0.0.1:9001"
    """Where gRPC listens: `host:port` or `unix:/path`; empty: nowhere, for callers in this process only."""
    metrics_listen: str = "127.0.0.1:9101"
    """Where a history service that runs alone serves its metrics; empty: nowhere."""
    database_url: str = ""
    """The database, directly or through a pooler in transaction mode."""
    listen_url: str = ""
    """A direct way to the database, for migrations and notifications; empty: `database_url` is direct."""
    migrate_at_start: bool = True
    """Bring the schema up to date before anything is served."""
    start_seconds: PerhapsSeconds = 30.0
    """How long the start waits for a database that does not answer yet."""
    read_connections: Count = 6
    commit_connections: Count = 6
    background_connections: Count = 2
    pool_wait_seconds: Seconds = 5.0
    """How long a call waits for a connection, and for its share of the memory."""
    pool_queue: PerhapsCount = 256
    """How many calls may wait for connections of one pool."""
    statement_seconds: Seconds = 30.0
    """How long one store operation may take once it has its connection."""
    context_limit_bytes: Count = 32 * MIB
    """The largest context that is loaded."""
    load_budget_bytes: Count = 256 * MIB
    """What all contexts being loaded and sent may take together."""
    tree_max_items: Count = 1_000_000
    """A tree with so many items is continued in a new tree."""
    retention_seconds: PerhapsCount = 0
    """How long a response is kept after its commit; 0: until it is deleted."""
    queue_limit: PerhapsCount = 100
    """How many background turns of one owner may wait."""
    max_attempts: Count = 3
    """How often a background turn is started before it is given up."""
    event_log_seconds: PerhapsSeconds = 3600.0
    """How long the stream events of a background response are kept after its end."""
    longest_turn_seconds: PerhapsSeconds = 7200.0
    """Longer than any turn may run: what a deleted response leaves behind is not swept sooner."""
    sweep_interval_seconds: PerhapsSeconds = 60.0
    """How often unused items and expired responses are looked for; 0: never by this process."""
    sweep_batch: Count = 10_000
    """How many rows one sweep transaction deletes at most."""
    drain_seconds: PerhapsSeconds = 10.0
    """How long calls may go on once the service is asked to stop."""


class Settings(msgspec.Struct, frozen=True):
    """All sections of the history service."""

    log: LogSettings = LogSettings()
    grpc: GrpcSettings = GrpcSettings()
    history: HistorySettings = HistorySettings()
