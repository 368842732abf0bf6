"""The body of a request, read whole: within the limit, within the time, or refused."""

import asyncio

from aiohttp import web

from http_edge.errors import BodyTooLarge, BodyTooSlow, InvalidRequest, UnknownEncoding
from http_edge.settings import EDGE_SETTINGS

_ENCODINGS = ("", "identity", "gzip", "deflate", "br", "zstd")


async def read_body(request: web.Request) -> bytes:
    """The body, its content encoding undone by aiohttp. Raises BodyTooLarge, BodyTooSlow, UnknownEncoding, InvalidRequest."""
    settings = request.app[EDGE_SETTINGS]
    if (request.content_length or 0) > settings.body_limit_bytes:
        raise BodyTooLarge(limit=settings.body_limit_bytes)
    if request.headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
        raise UnknownEncoding()
    try:
        if request.content.is_eof():  # all of it has come
            return await request.read()
        async with asyncio.timeout(settings.body_timeout_seconds):
            return await request.read()
    except TimeoutError as exc:
        raise BodyTooSlow() from exc
    except web.HTTPRequestEntityTooLarge as exc:
        raise BodyTooLarge(limit=settings.body_limit_bytes) from exc
    except (web.RequestPayloadError, asyncio.IncompleteReadError) as exc:
        raise InvalidRequest("The body of the request cannot be read.") from exc
