"""What the services keep, as the API shows it: ids are written in front of bodies, bodies are never parsed."""

from collections.abc import Iterable

import msgspec
from aiohttp import web

from turnkeep.common.v1.common_pb2 import Item
from turnkeep.history.v1.history_pb2 import Conversation, GetResponseReply


def answer(body: bytes) -> web.Response:
    """A whole HTTP answer of JSON."""
    return web.Response(body=body, content_type="application/json")


def response(response_id: str, reply: GetResponseReply) -> bytes:
    """The response object with the same keys as in the terminal event of its stream."""
    output = b'"output":[' + b",".join(map(item, reply.output)) + b"]"
    return _object(_member("id", response_id), _members(reply.body), output)


def item(kept: Item) -> bytes:
    """One item."""
    return _object(_member("id", kept.id), _members(kept.body))


def given_item(kept: Item) -> bytes:
    """One item of an input. A message that came without a status is complete; the quotes tell the key from text, where they are escaped."""
    has_status = kept.type != "message" or b'"status":' in kept.body
    return _object(_member("id", kept.id), b"" if has_status else _member("status", "completed"), _members(kept.body))


def page(items: Iterable[Item], *, has_more: bool) -> bytes:
    """A list object: one page, and whether another one follows."""
    shown = tuple(items)
    ends = {"first_id": shown[0].id if shown else None, "last_id": shown[-1].id if shown else None, "has_more": has_more}
    return _object(b'"object":"list","data":[' + b",".join(map(given_item, shown)) + b"]", _members(msgspec.json.encode(ends)))


def conversation(kept: Conversation) -> bytes:
    """One conversation."""
    about = {"id": kept.id, "object": "conversation", "created_at": kept.created_at, "metadata": msgspec.Raw(kept.metadata or b"{}")}
    return msgspec.json.encode(about)


def deleted(id: str, kind: str) -> bytes:
    """What is left of a deleted response or conversation."""
    return msgspec.json.encode({"id": id, "object": f"{kind}.deleted", "deleted": True})


def extended(data: bytes, member: bytes) -> bytes:
    """A JSON object that is not empty, with one more member at its end."""
    return data.rstrip()[:-1] + b"," + member + b"}"


def _member(key: str, value: str) -> bytes:
    return msgspec.json.encode({key: value})[1:-1]


def _members(body: bytes) -> bytes:
    """The members of a JSON object, without its braces."""
    return body.strip()[1:-1].strip()


def _object(*members: bytes) -> bytes:
    return b"{" + b",".join(filter(None, members)) + b"}"
