"""Between messages of the contract and the values that turns are made of. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from msgspec import Struct

from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import Item
from orchestrator_svc.request import Asked
from orchestrator_svc.turn.actions import Batch
from turnkeep.common.v1.common_pb2 import Item as WireItem
from turnkeep.orchestrator.v1 import orchestrator_pb2 as wire

RELAYED_PATHS = frozenset(
    {
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
    }
)
_METHODS = ("GET", "POST")


def asked_of(request: wire.CreateResponseRequest) -> Asked:
    """What is asked for."""
    check_owner(request.owner)
    return Asked(
        owner=request.owner,
        model=request.model,
        previous_response_id=request.previous_response_id or None,
        store=request.store,
        input=tuple(request.input),
        parameters=request.parameters,
        conversation_id=request.conversation_id or None,
        continuation=request.continuation,
        keep_continuation=request.keep_continuation,
        response_id=request.response_id,
        prewarm=request.prewarm,
    )


def queued_of(request: wire.StartResponseRequest) -> Asked:
    """What is asked for, to be run in the background."""
    asked = asked_of(request.turn)
    if request.owner != asked.owner:
        raise InvalidRequest("The turn is another owner's.", param="owner")
    return replace(asked, background=True, keep_continuation=False, prewarm=False)


def reply_of(batch: Batch) -> wire.CreateResponseReply:
    """Stream events as one message."""
    reply = wire.CreateResponseReply(continuation=batch.continuation)
    add = reply.events.add
    for event in batch.events:
        add(type=event.type, sequence_number=event.sequence_number, data=event.data)
    return reply


class RelayedHeader(Struct, frozen=True):
    """A header, with the fields of a `Header`."""

    name: str
    value: str


class RelayedHead(Struct, frozen=True):
    """A status and headers, with the fields of a `RelayHead`."""

    status: int
    headers: list[RelayedHeader]


class HeadPart(Struct, frozen=True):
    """The first of a relayed answer, with the field of a `RelayReply`: a caller in this process reads it as one."""

    head: RelayedHead

    def ByteSize(self) -> int:  # protobuf's name for it
        """How large the message would be, or a little less."""
        return sum([len(header.name) + len(header.value) for header in self.head.headers])


def head_part(status: int, headers: Iterable[tuple[str, str]]) -> HeadPart:
    """The first of a relayed answer."""
    return HeadPart(RelayedHead(status, [RelayedHeader(name, value) for name, value in headers]))


def head_reply(part: HeadPart) -> wire.RelayReply:
    """The first of a relayed answer as a message."""
    headers = [wire.Header(name=header.name, value=header.value) for header in part.head.headers]
    return wire.RelayReply(head=wire.RelayHead(status=part.head.status, headers=headers))


class Chunk(Struct, frozen=True):
    """A piece of a relayed body, with the field of a `RelayReply`: a caller in this process reads it as one."""

    chunk: bytes

    def ByteSize(self) -> int:  # protobuf's name for it
        """How large the message would be, or a little less."""
        return len(self.chunk)


def chunk_reply(piece: Chunk) -> wire.RelayReply:
    """A piece of a relayed body as a message."""
    return wire.RelayReply(chunk=piece.chunk)


def item_of(item: Item) -> WireItem:
    """An item as it is shown."""
    return WireItem(id=item.id, type=item.type, body=item.body)


def check_owner(owner: str) -> None:
    """Raises InvalidRequest without an owner."""
    if not owner:
        raise InvalidRequest("An owner is needed.", param="owner")


def check_relayed(request: wire.RelayRequest) -> None:
    """Raises InvalidRequest unless the method and path are among those that are relayed."""
    if request.method not in _METHODS or request.path.partition("?")[0] not in RELAYED_PATHS:
        raise InvalidRequest(f"{request.method} {request.path} is not relayed.", param="path")
