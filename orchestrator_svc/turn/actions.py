"""What a turn wants done. `machine` asks for it, `runner` does it."""

from dataclasses import dataclass

from orchestrator_svc.items import Item


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One stream event of the Responses API, `data` being its JSON."""

    type: str
    sequence_number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """What is stored of a turn."""

    response_id: str
    round: int
    status: str
    items: tuple[Item, ...]
    input_count: int
    open_call_ids: tuple[str, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class CallModel:
    """Start a model call with this input: the elements of a JSON array."""

    round: int
    input: bytes


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand these events to the client."""

    events: tuple[StreamEvent, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Store the turn; ends in Saved or SaveFailed. The model call, if one runs, is over."""

    record: Record


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the turn with an error instead of a stream. Nothing has been sent and nothing is stored."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Finish:
    """The turn is over."""


Action = CallModel | Emit | Save | Refuse | Finish
