"""What every provider offers. One file per wire implements it; `registry` lists them."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from orchestrator_svc.request import TurnRequest
from orchestrator_svc.turn.actions import CallModel
from orchestrator_svc.turn.events import ModelEvent

Batches = AsyncGenerator[tuple[ModelEvent, ...], None]


class Taker(Protocol):
    """Has a batch the moment it is there, and says whether it takes it."""

    @property
    def is_open(self) -> bool:
        """Might it take one now? Else it need not be asked."""

    def __call__(self, events: tuple[ModelEvent, ...]) -> bool: ...


class Relayed(Protocol):
    """An engine's answer: its status and end-to-end headers, and its body in chunks as they arrive. Left as a context, it is closed.

    Reading raises EngineTimeout and EngineStreamInterrupted.
    """

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> tuple[tuple[str, str], ...]: ...

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def hand_to(self, taker: Callable[[bytes], bool]) -> None:
        """Each chunk that arrives while its reader waits is given to `taker`, and comes to the reader only if that says False."""


class Provider(Protocol):
    """An engine or a hosted API."""

    @property
    def name(self) -> str:
        """What its opaque items are marked with."""

    def call(self, request: TurnRequest, model_call: CallModel, taker: Taker | None = None) -> Batches:
        """Runs one model call.

        Gives what each network read held, and as its last event ModelFinished or ModelFailed: no fault of the engine is raised. Closing the
        iterator closes the connection. A read that holds only more of an open part may go to `taker` while the next batch is waited for;
        what that does not take is given as all else.
        """

    async def count(self, request: TurnRequest, model_call: CallModel) -> int | None:
        """How many input tokens a model call has by the engine's own count, or None where it does not count."""

    async def relay(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Relayed:
        """Passes one HTTP request on; its answer is to be closed. Raises EngineUnavailable and EngineTimeout."""

    async def answers(self) -> bool:
        """Whether the engine can be reached now."""
