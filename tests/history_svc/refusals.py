"""How calls of the history service fail, for tests that compare it."""

import grpc
import pytest

from svckit.errors import RemoteError

NOT_FOUND = grpc.StatusCode.NOT_FOUND
NO_CONVERSATION = (NOT_FOUND, "conversation_not_found", "conversation")
LOCKED = (grpc.StatusCode.ABORTED, "conversation_locked", "conversation")
LEASE_LOST = (grpc.StatusCode.FAILED_PRECONDITION, "lease_lost", None)
CONFLICT = (grpc.StatusCode.ALREADY_EXISTS, "response_conflict", None)


async def refused(call: object) -> tuple[grpc.StatusCode, str, str | None]:
    """How a call fails: code, reason, param."""
    with pytest.raises(RemoteError) as failure:
        await call
    return failure.value.status, failure.value.reason, failure.value.param
