"""The header Idempotency-Key on create: a key stands for one response, and a repeated request gets that response instead of a new one.

The key is claimed at the history service together with the hash of the request and the id that the response will have. A repeat waits for
the stored response. A first request that was refused before anything was stored leaves its key free to be used again, which only the
process that saw the refusal knows; to any other it looks like one that still runs.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from aiohttp import web

from http_edge import render, sse, turns
from http_edge.clients import CLIENTS
from http_edge.errors import IdempotencyInProgress, InvalidRequest
from http_edge.metrics import REPEATS
from http_edge.middlewares import OWNER
from http_edge.replay import events_of
from http_edge.requests import AskedTurn, Fields
from http_edge.settings import EDGE_SETTINGS
from http_edge.stored import stored_response
from http_edge.viewing import view
from svckit.errors import RemoteError, ServiceError
from svckit.ids import new_block, new_tree_key, tree_key_of
from turnkeep.common.v1.common_pb2 import RESPONSE_STATUS_IN_PROGRESS, RESPONSE_STATUS_QUEUED
from turnkeep.history.v1.history_pb2 import ClaimIdempotencyKeyRequest, GetResponseReply
from turnkeep.orchestrator.v1.orchestrator_pb2 import CreateResponseRequest

HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 255

_UNFINISHED = (RESPONSE_STATUS_QUEUED, RESPONSE_STATUS_IN_PROGRESS)
# How the answer travels is not part of what was asked for.
_OF_THE_ANSWER = frozenset({"stream", "stream_options"})
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_MAX_REFUSED = 10_000


class Firsts:
    """What this process knows of the first requests with a key: which of them run here, and which were refused."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Event] = {}
        self._refused: OrderedDict[str, None] = OrderedDict()

    @contextmanager
    def running(self, response_id: str) -> Iterator[None]:
        """The request that makes this response runs here."""
        ended = self._running[response_id] = asyncio.Event()
        self._refused.pop(response_id, None)
        try:
            yield
        except RemoteError:
            # What a service answers with before a turn's first event is not stored; should it be after all, the repeat finds it.
            self.remember_refused(response_id)
            raise
        finally:
            del self._running[response_id]
            ended.set()

    def was_refused(self, response_id: str) -> bool:
        """May the request be run again?"""
        return response_id in self._refused

    async def ended(self, response_id: str, seconds: float) -> None:
        """Waits until the request has ended, if it runs here, but at most so long."""
        ended = self._running.get(response_id, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return

    def remember_refused(self, response_id: str) -> None:
        """Nothing is stored of it, and it may run again; only so many are remembered."""
        self._refused[response_id] = None
        if len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)


FIRSTS = web.AppKey("firsts", Firsts)


def key_of(request: web.Request, asked: AskedTurn) -> str | None:
    """The key of a create request, if it has one. Raises InvalidRequest."""
    keys: Sequence[str] = request.headers.getall(HEADER, ())
    if not keys:
        return None
    if len(keys) > 1 or not (0 < len(keys[0]) <= MAX_KEY_CHARS and keys[0].isascii() and keys[0].isprintable()):
        raise InvalidRequest(f"{HEADER} must be one key of 1 to {MAX_KEY_CHARS} printable ASCII characters.")
    if not asked.message.store:
        raise InvalidRequest(f"{HEADER} needs store: true; what is not stored cannot be given again.", param="store")
    return keys[0]


async def answer_once(request: web.Request, asked: AskedTurn, key: str, fields: Fields) -> web.StreamResponse:
    """Answers with the one response that the key stands for."""
    clients = request.app[CLIENTS]
    minted = _response_id(asked.message)
    claim = ClaimIdempotencyKeyRequest(
        owner=request[OWNER],
        key=key,
        request_hash=_hash_of(fields),
        response_id=minted,
        lifetime_seconds=request.app[EDGE_SETTINGS].idempotency_lifetime_seconds,
    )
    try:
        held = await clients.caller.unary(clients.history.ClaimIdempotencyKey, claim, deadline=_deadline(request), idempotent=True)
    except (RemoteError, asyncio.CancelledError):
        request.app[FIRSTS].remember_refused(minted)  # the claim may stand although nobody was told; nothing has begun under it
        raise
    # A claim whose answer was lost on the way and that was sent again is told its own id.
    if held.granted or held.response_id == minted:
        return await _first(request, asked, minted)
    return await _repeated(request, asked, held.response_id)


async def _first(request: web.Request, asked: AskedTurn, response_id: str) -> web.StreamResponse:
    asked.message.response_id = response_id
    with request.app[FIRSTS].running(response_id):
        return await turns.answer(request, asked)


async def _repeated(request: web.Request, asked: AskedTurn, response_id: str) -> web.StreamResponse:
    firsts, clock = request.app[FIRSTS], asyncio.get_running_loop().time
    until, pause = clock() + request.app[EDGE_SETTINGS].idempotency_wait_seconds, _FIRST_PAUSE_SECONDS
    while True:
        stored = await _stored(request, response_id)
        if stored is not None:
            REPEATS.labels("stored").inc()
            return await _again(request, asked, response_id, stored)
        if firsts.was_refused(response_id):
            REPEATS.labels("rerun").inc()
            return await _first(request, asked, response_id)
        if clock() >= until:
            REPEATS.labels("told to wait").inc()
            raise IdempotencyInProgress()
        await firsts.ended(response_id, min(pause, until - clock()))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _stored(request: web.Request, response_id: str) -> GetResponseReply | None:
    try:
        return await stored_response(request, response_id)
    except ServiceError as error:
        if error.reason != "response_not_found":
            raise
        return None


async def _again(request: web.Request, asked: AskedTurn, response_id: str, stored: GetResponseReply) -> web.StreamResponse:
    """The stored response in the form that is asked for now."""
    shown = render.response(response_id, stored)
    if not asked.stream:
        return render.answer(shown)
    if stored.status in _UNFINISHED:
        return await view(request, response_id, padded=asked.padded)
    return await sse.replay(request, events_of(shown), padded=asked.padded)


def _response_id(message: CreateResponseRequest) -> str:
    """An id in the tree that the turn will belong to."""
    root = message.conversation_id or message.previous_response_id
    tree_key = tree_key_of(root) if root else None
    return new_block(new_tree_key() if tree_key is None else tree_key).id("resp")


def _hash_of(fields: Fields) -> bytes:
    """Equal for requests that ask for the same, whatever the order of their keys and the spaces between them."""
    meant = {name: raw for name, raw in fields.items() if name not in _OF_THE_ANSWER}
    try:
        canonical = msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(meant)), order="deterministic")
    except RecursionError as exc:
        raise InvalidRequest("The body of the request is nested too deeply.") from exc
    except msgspec.MsgspecError as exc:
        raise InvalidRequest("The body of the request holds a value that cannot be read.") from exc
    return hashlib.sha256(canonical).digest()


def _deadline(request: web.Request) -> float:
    return request.app[EDGE_SETTINGS].history_timeout_seconds
