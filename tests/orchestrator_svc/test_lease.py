"""The lease of a conversation: who holds it, and when others get it."""

from collections.abc import AsyncIterator

import pytest

from orchestrator_svc.conversations import Conversations
from orchestrator_svc.turn.events import Saved, SaveFailed
from orchestrator_svc.turn.lease import take_lease
from svckit.errors import RemoteError
from tests.orchestrator_svc.background_turns import Process, open_queue
from tests.orchestrator_svc.turns import RULES


async def committed() -> Saved | SaveFailed:
    return Saved()


async def failed() -> Saved | SaveFailed:
    return SaveFailed("storage_failed", "It is not stored.")


@pytest.fixture
async def process(queue_database: str) -> AsyncIterator[Process]:
    async with open_queue(queue_database) as queue, queue.process(background_turns=0) as opened:
        yield opened


@pytest.fixture
async def conversation(process: Process) -> str:
    return (await Conversations(process.store, RULES.seals).create("ada", b"{}", ())).id


async def test_a_commit_that_fails_gives_the_lease_back(process: Process, conversation: str) -> None:
    lease = await take_lease(process.store, "ada", conversation)
    assert isinstance(await lease.spent_on(failed()), SaveFailed)
    await (await take_lease(process.store, "ada", conversation)).release()


async def test_a_commit_that_is_on_its_way_keeps_the_lease_from_being_released(process: Process, conversation: str) -> None:
    lease = await take_lease(process.store, "ada", conversation)
    saving = lease.spent_on(committed())
    await lease.release()
    with pytest.raises(RemoteError) as refused:
        await take_lease(process.store, "ada", conversation)
    assert refused.value.reason == "conversation_locked"
    assert await saving == Saved()
