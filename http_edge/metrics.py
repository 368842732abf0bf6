"""What the edge counts: requests, time to first event, gaps between events, bytes. The page itself is svckit's."""

from prometheus_client import Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

REQUESTS = Counter(
    "turnkeep_edge_requests",
    "HTTP requests by route, method and status; 499 is a client that left before its answer.",
    ["route", "method", "status"],
)
REQUEST_SECONDS = Histogram(
    "turnkeep_edge_request_seconds",
    "How long a request took, its stream included; WebSockets are left out.",
    ["route"],
    buckets=_LATENCY_BUCKETS,
)
IN_FLIGHT = Gauge("turnkeep_edge_requests_in_flight", "HTTP requests that are running now.", multiprocess_mode="livesum")
FIRST_EVENT_SECONDS = Histogram(
    "turnkeep_edge_first_event_seconds", "From the arrival of a streamed request to its first event.", buckets=_LATENCY_BUCKETS
)
EVENT_GAP_SECONDS = Histogram(
    "turnkeep_edge_event_gap_seconds",
    "Longest silence within a stream.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0),
)
STREAM_BYTES = Counter("turnkeep_edge_stream_bytes", "Bytes written to event streams.")
RELAYED = Counter(
    "turnkeep_edge_relayed", "Requests passed to the engine byte for byte, by path and the engine's status.", ["path", "status"]
)
RELAYED_BYTES = Counter("turnkeep_edge_relayed_bytes", "Bytes of engine answers passed on.")
VIEWERS = Gauge("turnkeep_edge_viewers", "Streams that watch a background turn now.", multiprocess_mode="livesum")
REPEATS = Counter(
    "turnkeep_edge_idempotent_repeats",
    "Requests whose Idempotency-Key was there already, by what they got: stored, rerun, or told to wait.",
    ["outcome"],
)
WEBSOCKETS = Gauge("turnkeep_edge_websockets", "WebSocket connections that are open now.", multiprocess_mode="livesum")
WEBSOCKET_TURNS = Counter(
    "turnkeep_edge_websocket_turns", "Turns asked for over WebSockets, by their end: ended, failed, refused, or left.", ["end"]
)
RETAINED_BYTES = Gauge(
    "turnkeep_edge_retained_bytes", "What WebSocket connections keep of responses that are not stored.", multiprocess_mode="livesum"
)
