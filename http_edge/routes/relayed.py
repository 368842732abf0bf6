"""The paths whose requests always go to the engine as they are."""

from aiohttp import web

from http_edge.incoming import read_body
from http_edge.relay import relay

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens")


async def pass_on(request: web.Request) -> web.StreamResponse:
    """Passes a request to the engine."""
    return await relay(request, await read_body(request))


ROUTES = tuple(web.post(path, pass_on) for path in PATHS)
