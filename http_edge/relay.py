"""The stateless path: one HTTP request to the engine and its answer back, byte for byte, as the bytes come.

The edge knows no engine: which one, its key and its limits are the orchestrator's business. Only headers that belong to one connection, or
to the gateway, stay behind.
"""

from collections.abc import AsyncIterator, Iterable
from functools import cache, partial

from aiohttp import web

from http_edge.client_watch import ClientWatch
from http_edge.clients import CLIENTS
from http_edge.errors import TurnInterrupted
from http_edge.metrics import RELAYED, RELAYED_BYTES
from http_edge.middlewares import OWNER
from http_edge.settings import EDGE_SETTINGS
from http_edge.streamed_answer import StreamedAnswer
from svckit.grpc_client import Replies
from svckit.json_text import has_halves
from turnkeep.orchestrator.v1.orchestrator_pb2 import Header, RelayHead, RelayReply, RelayRequest

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
# What was said to the gateway and not to the engine; the body is whole and decoded here, so its framing goes too.
KEPT_FROM_ENGINE = HOP_BY_HOP | {
    "host",
    "content-length",
    "content-encoding",
    "expect",
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "cookie",
    "origin",
    "forwarded",
    "x-forwarded-for",
    "x-real-ip",
    "x-request-id",
    "traceparent",
}
# Whom a browser may tell, and what it keeps, is the gateway's decision.
KEPT_FROM_CLIENT = HOP_BY_HOP | {"set-cookie", "x-request-id"}
_CORS = "access-control-"
_relayed = cache(RELAYED.labels)


async def relay(request: web.Request, body: bytes) -> web.StreamResponse:
    """Passes `request` on and its answer back."""
    clients = request.app[CLIENTS]
    async with clients.caller.stream(clients.orchestrator.Relay, relay_request(request, body), deadline=None) as replies:
        return await _answer(request, await head_of(replies), replies)


def relay_request(request: web.Request, body: bytes) -> RelayRequest:
    """The request as the orchestrator gets it."""
    return RelayRequest(
        owner=request[OWNER],
        method=request.method,
        path=request.path + _query(request),
        headers=end_to_end(request),
        body=body,
    )


def end_to_end(request: web.Request) -> list[Header]:
    """The headers that are meant for the engine."""
    headers = request.headers
    left_out = KEPT_FROM_ENGINE.union(*map(_names_in, headers.getall("Connection", ())))
    return [
        Header(name=lower, value=value)
        for name, value in headers.items()
        if (lower := name.lower()) not in left_out and not has_halves(value)
    ]


async def head_of(replies: AsyncIterator[RelayReply]) -> RelayHead:
    """The head of the engine's answer. Raises TurnInterrupted where there is none."""
    first = await anext(replies, None)
    if first is None or not first.head.status:
        raise TurnInterrupted()
    return first.head


async def _answer(request: web.Request, head: RelayHead, replies: Replies[RelayReply]) -> web.StreamResponse:
    response = StreamedAnswer(status=head.status)
    for header in _shown(head.headers):
        response.headers.add(header.name, header.value)
    await response.prepare(request)
    _relayed(request.path, head.status).inc()
    with ClientWatch(request, request.app[EDGE_SETTINGS].client_timeout_seconds):
        if not (replies.is_behind or replies.is_at_end):
            response.send_head_soon()
        replies.hand_to(partial(_written_at_once, response))
        async for reply in replies:
            if replies.is_at_end:
                await response.write_eof(reply.chunk)  # in one send with the end
                break
            await response.write(reply.chunk)
        else:
            await response.write_eof()
    RELAYED_BYTES.inc(request.writer.output_size)
    return response


def _written_at_once(response: StreamedAnswer, reply: RelayReply) -> bool:
    if not response.flows:
        return False
    response.write_now(reply.chunk)
    return True


def _shown(headers: Iterable[Header]) -> Iterable[Header]:
    return (header for header in headers if header.name.lower() not in KEPT_FROM_CLIENT and not header.name.lower().startswith(_CORS))


def _names_in(value: str) -> set[str]:
    return {name.strip().lower() for name in value.split(",")}


def _query(request: web.Request) -> str:
    _, mark, query = request.raw_path.partition("?")
    return mark + query
