"""Turns to save and a client that reads them back, for the tests of history."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from svckit.errors import RemoteError, error_of
from svckit.ids import IdBlock, new_block, new_tree_key, tree_key_of
from turnkeep.common.v1 import common_pb2 as common
from turnkeep.history.v1 import history_pb2 as pb
from turnkeep.history.v1.history_pb2_grpc import HistoryServiceStub

OWNER = "ada"
QUEUED = b'{"object":"response","status":"queued","n":1.50,"completed_at":7}'


@dataclass(frozen=True)
class Loaded:
    """A context as its reader sees it, and the messages that brought it."""

    head: pb.ContextHead
    prompts: bytes
    replies: list[pb.LoadContextReply]


class Client:
    """Calls the service and raises its failures as RemoteError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = HistoryServiceStub(channel)

    async def load(self, response_id: str, owner: str = OWNER) -> Loaded:
        """A whole context."""
        return await self._loaded(pb.LoadContextRequest(owner=owner, response_id=response_id))

    async def load_conversation(self, conversation_id: str, owner: str = OWNER) -> Loaded:
        """The whole context of a conversation."""
        return await self._loaded(pb.LoadContextRequest(owner=owner, conversation_id=conversation_id))

    async def _loaded(self, request: pb.LoadContextRequest) -> Loaded:
        try:
            replies = [reply async for reply in self.stub.LoadContext(request)]
        except grpc.aio.AioRpcError as exc:
            raise _raised(exc) from exc
        prompts = b",".join(item.prompt for reply in replies for item in reply.items if item.prompt)
        return Loaded(replies[0].head, prompts, replies)

    async def commit(self, turn: pb.CommitTurnRequest) -> pb.CommitTurnReply:
        """Saves a turn."""
        return await _answer(self.stub.CommitTurn(turn))

    async def get(self, response_id: str, owner: str = OWNER) -> pb.GetResponseReply:
        """A response."""
        return await _answer(self.stub.GetResponse(pb.GetResponseRequest(owner=owner, response_id=response_id)))

    async def delete(self, response_id: str, owner: str = OWNER) -> pb.DeleteResponseReply:
        """Deletes a response."""
        return await _answer(self.stub.DeleteResponse(pb.DeleteResponseRequest(owner=owner, response_id=response_id)))

    async def page(self, response_id: str, owner: str = OWNER, **wanted: object) -> tuple[list[str], str]:
        """The item ids of one page of a response's input, and the token of the next."""
        request = pb.ListInputItemsRequest(owner=owner, response_id=response_id, **wanted)
        try:
            replies = [reply async for reply in self.stub.ListInputItems(request)]
        except grpc.aio.AioRpcError as exc:
            raise _raised(exc) from exc
        return [item.id for reply in replies for item in reply.items], replies[-1].next_page_token

    async def find(self, *item_ids: str, owner: str = OWNER) -> list[pb.NewItem]:
        """Items by their ids."""
        try:
            replies = [reply async for reply in self.stub.FindItems(pb.FindItemsRequest(owner=owner, item_ids=item_ids))]
        except grpc.aio.AioRpcError as exc:
            raise _raised(exc) from exc
        return [item for reply in replies for item in reply.items]

    async def claim(self, claim_id: str, response_id: str, owner: str = OWNER) -> pb.ClaimCallReply:
        """Claims a call."""
        return await _answer(self.stub.ClaimCall(pb.ClaimCallRequest(owner=owner, claim_id=claim_id, response_id=response_id)))

    async def settle(self, claim_id: str, response_id: str, outcome: bytes, owner: str = OWNER) -> pb.SettleClaimReply:
        """Records what became of a claimed call."""
        request = pb.SettleClaimRequest(owner=owner, claim_id=claim_id, response_id=response_id, outcome=outcome)
        return await _answer(self.stub.SettleClaim(request))

    async def call(self, method: str, **fields: object) -> object:
        """Calls a method by its name with the fields of its request; `owner` is ours unless given."""
        request = getattr(pb, f"{method}Request")
        values = fields if method == "TakeTurn" else {"owner": OWNER, **fields}
        return await _answer(getattr(self.stub, method)(request(**values)))

    async def listed(self, conversation_id: str, owner: str = OWNER, **wanted: object) -> tuple[list[str], str]:
        """The item ids of one page of a conversation, and the token of the next."""
        request = pb.ListConversationItemsRequest(owner=owner, conversation_id=conversation_id, **wanted)
        try:
            replies = [reply async for reply in self.stub.ListConversationItems(request)]
        except grpc.aio.AioRpcError as exc:
            raise _raised(exc) from exc
        return [item.id for reply in replies for item in reply.items], replies[-1].next_page_token

    async def conversation(self, *words: str, **fields: object) -> str:
        """Makes a conversation whose first items say `words`; gives its id."""
        block = new_block(new_tree_key())
        items = [said(word, block.id("msg", place + 1)) for place, word in enumerate(words)]
        values = {"conversation_id": block.id("conv"), "items": items, "metadata": b"{}", "created_at": 1_700_000_000, **fields}
        await self.call("CreateConversation", **values)
        return str(values["conversation_id"])

    async def lease(self, conversation_id: str, holder: str = "me", lifetime_ms: int = 60_000, owner: str = OWNER) -> int:
        """Takes the lease of a conversation; gives its token."""
        fields = {"conversation_id": conversation_id, "holder": holder, "lifetime_ms": lifetime_ms, "owner": owner}
        return (await self.call("AcquireLease", **fields)).fencing_token

    async def spoken(self, conversation_id: str, *words: str, **fields: object) -> pb.CommitTurnRequest:
        """Saves a turn of a conversation, the way a caller does: lease, load, commit. Gives what was saved."""
        token = await self.lease(conversation_id)
        turn = in_conversation(conversation_id, (await self.load_conversation(conversation_id)).head, *words, fencing_token=token, **fields)
        await self.commit(turn)
        return turn

    async def enqueue(self, **fields: object) -> str:
        """Queues a turn, of a new tree unless a response id is given; gives the response's id."""
        values = {
            "response_id": new_block(new_tree_key()).id("resp"),
            "model": "m",
            "body": QUEUED,
            "request": b"do",
            "created_at": 1,
            **fields,
        }
        await self.call("EnqueueTurn", **values)
        return str(values["response_id"])

    async def take(self, holder: str = "process", lifetime_ms: int = 60_000) -> pb.TakeTurnReply:
        """Takes a turn, if there is one."""
        return await self.call("TakeTurn", holder=holder, lifetime_ms=lifetime_ms)

    async def keep(self, taken: pb.TakeTurnReply, lifetime_ms: int = 60_000) -> bool:
        """Prolongs the lease of a turn; says whether it is to be cancelled."""
        fields = {"owner": taken.owner, "response_id": taken.response_id, "fencing_token": taken.fencing_token, "lifetime_ms": lifetime_ms}
        return (await self.call("KeepTurn", **fields)).cancel_requested

    async def cancel(self, response_id: str, owner: str = OWNER) -> pb.GetResponseReply:
        """Cancels a turn; gives its response."""
        return (await self.call("CancelTurn", response_id=response_id, owner=owner)).response

    async def log(self, taken: pb.TakeTurnReply, *words: str, first: int = 0, ended: bool = False) -> None:
        """Appends events, one for each word, from a number on."""
        fields = {"owner": taken.owner, "response_id": taken.response_id, "fencing_token": taken.fencing_token, "ended": ended}
        await self.call("AppendEvents", events=events(*words, first=first), **fields)

    async def watch(self, response_id: str, after: int = -1, owner: str = OWNER, *, only_logged: bool = False) -> list[pb.LoggedEvent]:
        """All events behind a number, to the end of the turn or of what is logged."""
        request = pb.WatchEventsRequest(owner=owner, response_id=response_id, starting_after=after, only_logged=only_logged)
        try:
            return [event async for reply in self.stub.WatchEvents(request) for event in reply.events]
        except grpc.aio.AioRpcError as exc:
            raise _raised(exc) from exc

    async def continued(self, parent_id: str, *words: str, owner: str = OWNER, **fields: object) -> pb.CommitTurnRequest:
        """Saves a turn that continues from `parent_id`, the way a caller does: load, then commit what was loaded. Gives what was saved."""
        loaded = await self.load(parent_id, owner)
        turn = continuation(parent_id, loaded.head, *words, owner=owner, **fields)
        await self.commit(turn)
        return turn


async def _answer(call: grpc.aio.UnaryUnaryCall) -> object:
    try:
        return await call
    except grpc.aio.AioRpcError as exc:
        raise _raised(exc) from exc


def _raised(exc: grpc.aio.AioRpcError) -> RemoteError:
    return error_of(exc.code(), exc.details(), exc.trailing_metadata())


def root(*words: str, **fields: object) -> pb.CommitTurnRequest:
    """The first turn of a chain: the last of `words` is what the model said, the others are what it was given."""
    return _turn(new_block(new_tree_key()), words, **fields)


def continuation(parent_id: str, head: pb.ContextHead, *words: str, **fields: object) -> pb.CommitTurnRequest:
    """A turn that continues from a loaded context."""
    return _turn(new_block(tree_key_of(parent_id)), words, parent_response_id=parent_id, base=head.checkpoint, **fields)


def round_of(taken: pb.TakeTurnReply, number: int, base: Sequence[common.Span], *words: str, **fields: object) -> pb.CommitTurnRequest:
    """A save of a background turn: the first round has one word of input, every other word is output."""
    values: dict[str, object] = {
        "owner": taken.owner,
        "response_id": taken.response_id,
        "round": number,
        "fencing_token": taken.fencing_token,
        "must_hold": True,
        "base": base,
        "input_count": min(len(words), 1) if number == 1 else 0,
        "status": common.RESPONSE_STATUS_IN_PROGRESS,
        "completed_at": 0,
    }
    return _turn(new_block(tree_key_of(taken.response_id)), words, **{**values, **fields})


def events(*words: str, first: int = 0) -> list[pb.LoggedEvent]:
    """Events that say `words`, numbered from `first`."""
    return [pb.LoggedEvent(type="e", sequence_number=first + n, data=b'{"word":"%b"}' % word.encode()) for n, word in enumerate(words)]


def in_conversation(conversation_id: str, head: pb.ContextHead, *words: str, **fields: object) -> pb.CommitTurnRequest:
    """A turn of a conversation that continues from its loaded head."""
    block = new_block(tree_key_of(conversation_id))
    return _turn(block, words, **{"conversation_id": conversation_id, "base": head.checkpoint, **fields})


def _turn(block: IdBlock, words: Sequence[str], **fields: object) -> pb.CommitTurnRequest:
    values: dict[str, object] = {
        "owner": OWNER,
        "response_id": block.id("resp"),
        "round": 1,
        "items": [said(word, block.id("msg", place + 1)) for place, word in enumerate(words)],
        "input_count": max(len(words) - 1, 0),
        "status": common.RESPONSE_STATUS_COMPLETED,
        "model": "m",
        "body": b'"object":"response"',
        "created_at": 1_700_000_000,
        "completed_at": 1_700_000_009,
    }
    turn = pb.CommitTurnRequest(**{**values, **fields})
    turn.content_hash = hashlib.sha256(turn.SerializeToString(deterministic=True)).digest()
    return turn


def said(word: str, id: str, **fields: object) -> pb.NewItem:
    """An item whose prompt is its body."""
    item = common.Item(id=id, type="message", body=body(word))
    return pb.NewItem(**{"item": item, "tokens": 10, **fields})


def called(call_id: str, id: str, **fields: object) -> pb.NewItem:
    """A function call."""
    shown = b'{"type":"function_call","call_id":"%b","name":"f","arguments":"{}"}' % call_id.encode()
    return pb.NewItem(**{"item": common.Item(id=id, type="function_call", body=shown), "tokens": 10, **fields})


def answered(call_id: str, id: str, **fields: object) -> pb.NewItem:
    """The output of a function call."""
    shown = b'{"type":"function_call_output","call_id":"%b","output":"x"}' % call_id.encode()
    return pb.NewItem(**{"item": common.Item(id=id, type="function_call_output", body=shown), "tokens": 10, **fields})


def body(word: str) -> bytes:
    """The body, and the prompt, of the item that says `word`."""
    return b'{"type":"message","text":"%b"}' % word.encode()


def prompts(*words: str) -> bytes:
    """The joined prompts of items that say `words`."""
    return b",".join(map(body, words))


def spans(*bounds: tuple[int, int]) -> list[common.Span]:
    """Spans from pairs of numbers."""
    return [common.Span(first=first, end=end) for first, end in bounds]
