"""What every provider offers. One file per wire implements it; `registry` lists them."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from orchestrator_svc.request import TurnRequest
from orchestrator_svc.turn.actions import CallModel
from orchestrator_svc.turn.events import ModelEvent

Batches = AsyncGenerator[tuple[ModelEvent, ...], None]


@dataclass(frozen=True, slots=True)
class RelayedHead:
    """The status and the end-to-end headers of an engine's answer."""

    status: int
    headers: tuple[tuple[str, str], ...]


class Provider(Protocol):
    """An engine or a hosted API."""

    @property
    def name(self) -> str:
        """What its opaque items are marked with."""

    def call(self, request: TurnRequest, model_call: CallModel) -> Batches:
        """Runs one model call.

        Gives what each network read held, and as its last event ModelFinished or ModelFailed: no fault of the engine is raised. Closing the
        iterator closes the connection.
        """

    async def count(self, request: TurnRequest, model_call: CallModel) -> int | None:
        """How many input tokens a model call has by the engine's own count, or None where it does not count."""

    def relay(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[tuple[RelayedHead, AsyncIterator[bytes]]]:
        """Passes one HTTP request on, and its answer back as it comes. Raises EngineUnavailable, EngineTimeout, EngineStreamInterrupted."""

    async def answers(self) -> bool:
        """Whether the engine can be reached now."""
