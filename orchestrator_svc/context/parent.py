"""What a turn continues from: a stored response, a conversation, ancestors that were never stored, or nothing. Pure.

A client of a lasting connection may chain responses that are not stored. What they said then travels as a `Continuation`, which whoever
holds the connection keeps and hands back; if such a chain is stored after all, its items are stored with the turn, as its input.
"""

import msgspec
from msgspec import Struct

from orchestrator_svc.context.carried import NOTHING_CARRIED, Carried
from orchestrator_svc.errors import PreviousResponseNotFound
from orchestrator_svc.items import Item

Span = tuple[int, int]


class Parent(Struct, frozen=True):
    """What is continued. `context` is rendered: pieces of one or several elements of a JSON array each.

    `response_id` and `base` name what is stored of it: the response whose checkpoint was loaded, and the spans of that. `unstored` are the
    items behind it that are not. `is_full`: the tree takes no further items, so the turn starts a tree of its own.
    """

    response_id: str = ""
    conversation_id: str = ""
    base: tuple[Span, ...] = ()
    context: tuple[bytes, ...] = ()
    open_call_ids: tuple[str, ...] = ()
    carried: Carried = NOTHING_CARRIED
    tokens: int = 0
    unstored: tuple[Item, ...] = ()
    is_full: bool = False


class Continuation(Struct, frozen=True):
    """An unstored response, as its continuation needs it. `stored_id` is the stored response at the start of the chain, or empty."""

    response_id: str
    stored_id: str
    items: tuple[Item, ...]
    open_call_ids: tuple[str, ...]
    carried: Carried


NO_PARENT = Parent()


def write(continuation: Continuation) -> bytes:
    """The bytes that are handed to the client's keeper."""
    return msgspec.msgpack.encode(continuation)


def read(data: bytes, response_id: str) -> Continuation:
    """What was written for this response. Raises PreviousResponseNotFound."""
    try:
        continuation = msgspec.msgpack.decode(data, type=Continuation)
    except msgspec.MsgspecError as exc:
        raise PreviousResponseNotFound(response_id=response_id) from exc
    if continuation.response_id != response_id:
        raise PreviousResponseNotFound(response_id=response_id)
    return continuation


def continued_unstored(stored: Parent, continuation: Continuation, provider: str) -> Parent:
    """The parent of a turn that continues an unstored response."""
    shown = [item.rendered for item in continuation.items if item.origin in ("", provider)]
    return msgspec.structs.replace(
        stored,
        context=(*stored.context, *filter(None, shown)),
        open_call_ids=continuation.open_call_ids,
        carried=continuation.carried,
        tokens=stored.tokens + sum(item.tokens for item in continuation.items),
        unstored=continuation.items,
    )
