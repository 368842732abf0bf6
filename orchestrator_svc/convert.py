"""Between messages of the contract and the values that turns are made of. Pure."""

from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.request import Asked
from orchestrator_svc.turn.actions import StreamEvent
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
    if not request.owner:
        raise InvalidRequest("An owner is needed.", param="owner")
    return Asked(
        owner=request.owner,
        model=request.model,
        previous_response_id=request.previous_response_id or None,
        store=request.store,
        input=tuple(request.input),
        parameters=request.parameters,
    )


def reply_of(events: tuple[StreamEvent, ...]) -> wire.CreateResponseReply:
    """Stream events as one message."""
    reply = wire.CreateResponseReply()
    add = reply.events.add
    for event in events:
        add(type=event.type, sequence_number=event.sequence_number, data=event.data)
    return reply


def check_relayed(request: wire.RelayRequest) -> None:
    """Raises InvalidRequest unless the method and path are among those that are relayed."""
    if request.method not in _METHODS or request.path.partition("?")[0] not in RELAYED_PATHS:
        raise InvalidRequest(f"{request.method} {request.path} is not relayed.", param="path")
