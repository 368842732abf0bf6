"""Load on the history service itself: turns committed over its gRPC, without an engine and without loading."""

import asyncio
import time
from collections.abc import Sequence

import grpc

from svckit.grpc_client import Caller, open_channel
from svckit.ids import IdBlock, new_block, new_tree_key
from svckit.settings import GrpcSettings
from turnkeep.common.v1.common_pb2 import RESPONSE_STATUS_COMPLETED, Item, Span
from turnkeep.history.v1.history_pb2 import CommitTurnRequest, NewItem
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceStub

OWNER = "bench"
ITEMS = 5
ITEM_BYTES = 1000
DEADLINE_SECONDS = 60.0

_BODY = b'{"type":"message","role":"user","content":[{"type":"input_text","text":"%b"}]}' % (b"x" * ITEM_BYTES)


class _Line:
    """A line of turns: each commit continues from the one before, as its reply says."""

    def __init__(self, channel: grpc.aio.Channel, tree_key: int, base: Sequence[Span] = (), parent: str = "") -> None:
        self._stub = HistoryServiceStub(channel)
        self._caller = Caller(GrpcSettings())
        self._tree_key = tree_key
        self.base = base
        self.ids = [parent] if parent else []

    async def commit(self) -> None:
        block = new_block(self._tree_key)
        request = _commit(block, self.base, self.ids[-1] if self.ids else "")
        reply = await self._caller.unary(self._stub.CommitTurn, request, deadline=DEADLINE_SECONDS)
        self.base = reply.checkpoint
        self.ids.append(request.response_id)


async def per_second(address: str, clients: int, seconds: float, *, one_tree: bool) -> float:
    """Commits per second by so many clients at once, each at the end of its own line, all in one tree or each in its own."""
    async with open_channel(address, GrpcSettings()) as channel:
        lines = await _branched(channel, clients) if one_tree else [_Line(channel, new_tree_key()) for _ in range(clients)]
        until = time.monotonic() + seconds
        done = await asyncio.gather(*(_commit_until(line, until) for line in lines))
        return sum(done) / seconds


async def branches(address: str, count: int, turns: int) -> list[list[str]]:
    """Lets branches of one tree grow side by side; the ids of each branch's responses."""
    async with open_channel(address, GrpcSettings()) as channel:
        lines = await _branched(channel, count)
        for _ in range(turns):
            await asyncio.gather(*(line.commit() for line in lines))
        return [line.ids[1:] for line in lines]


async def _branched(channel: grpc.aio.Channel, count: int) -> list[_Line]:
    tree_key = new_tree_key()
    root = _Line(channel, tree_key)
    await root.commit()
    return [_Line(channel, tree_key, root.base, root.ids[0]) for _ in range(count)]


async def _commit_until(line: _Line, until: float) -> int:
    done = 0
    while time.monotonic() < until:
        await line.commit()
        done += 1
    return done


def _commit(block: IdBlock, base: Sequence[Span], parent: str) -> CommitTurnRequest:
    items = [NewItem(item=Item(id=block.id("msg", place + 1), type="message", body=_BODY), tokens=250) for place in range(ITEMS)]
    return CommitTurnRequest(
        owner=OWNER,
        response_id=block.id("resp"),
        round=1,
        content_hash=block.id("resp").encode(),
        parent_response_id=parent,
        base=base,
        items=items,
        input_count=ITEMS - 1,
        status=RESPONSE_STATUS_COMPLETED,
        model="bench",
        body=b'{"object":"response"}',
        created_at=1,
        completed_at=2,
    )
