"""Opening a turn: what it continues from is loaded, what it asks for is checked, and both become a turn that has not begun.

IO stands here and in `desk`; what the pieces mean is decided in `context` and `request`.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from orchestrator_svc.context import joining
from orchestrator_svc.context import parent as parents
from orchestrator_svc.context.pairing import CallIds
from orchestrator_svc.context.parent import NO_PARENT, Parent
from orchestrator_svc.context.pipeline import Draft, assembled, wanted
from orchestrator_svc.errors import (
    ConversationFull,
    ConversationNotFound,
    InvalidRequest,
    PreviousResponseNotFound,
    RequestTooLarge,
    ResponseNotContinuable,
    ResponseNotFinished,
)
from orchestrator_svc.history import Found, Head, History
from orchestrator_svc.items import Item
from orchestrator_svc.request import Asked, CompactionRules, ToolKinds, TurnRequest, read_hindered, read_request
from orchestrator_svc.settings import OrchestratorSettings
from orchestrator_svc.turn import snapshot
from orchestrator_svc.turn.snapshot import Queued
from orchestrator_svc.turn.state import Limits, Turn
from orchestrator_svc.turn.written import Output
from svckit.errors import ServiceError
from svckit.ids import IdBlock, block_of, moved, new_block, new_tree_key, tree_key_of

# What a save may be: both forms of the input, the output, and room for the rest within one message.
_MAX_SAVE_BYTES = 56 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Opening:
    """Opens the turns of one provider."""

    history: History
    kinds: ToolKinds
    rules: CompactionRules
    thresholds: Mapping[str, int]
    provider: str
    settings: OrchestratorSettings

    async def open(self, asked: Asked) -> Turn:
        """A turn that may begin. Raises whatever it is to be refused with."""
        block = _block(asked)
        draft, parent = await self._drafted(asked, block)
        if parent.is_full:
            block = _moved(block, asked)
        items = () if asked.response_id else joining.joined(draft.request, block.tree_key, draft.stored)
        if items:
            parent = joining.parent_of(items, draft.numbers, self.provider)
            block, draft = _gone_on_with(block, draft, items)
        return self._turn(block, draft, parent, int(time.time()))

    async def open_queued(self, queued: Queued) -> Turn:
        """A turn that has waited, from its start and under its promised id, even if its tree is full by now. Raises like `open`."""
        draft, parent = await self._drafted(queued.asked, queued.block)
        moved = _tree_key(queued.asked) not in (None, queued.block.tree_key)
        return self._turn(queued.block, draft, replace(parent, is_full=moved), queued.created_at)

    async def resume(self, queued: Queued, saves: int, stored: Sequence[Item]) -> Turn:
        """A turn that has been saved `saves` times, as it was then; `stored` are the items of its output. Raises like `open`."""
        asked = queued.asked
        head, prompts = await self.history.load(asked.owner, queued.response_id)
        names = {"response_id": asked.previous_response_id or "", "conversation_id": asked.conversation_id or ""}
        parent = _parent_of(head, prompts.rendered(self.provider), **names)
        new_id = _ids_of_input(queued.block)
        draft = Draft(replace(self._request(asked, new_id), input=()), self.kinds.specs, new_id, carried=parent.carried)
        draft = assembled(replace(draft, stored=(await self._found(draft, queued.block)).items))
        return snapshot.resumed(self._turn(queued.block, draft, parent, queued.created_at), head.resume_state, saves, stored)

    def hindered(self, queued: Queued, saves: int) -> Turn:
        """A turn that has waited and cannot be run: all that can be told of it without what it continues from."""
        new_id = _ids_of_input(queued.block)
        request = read_hindered(queued.asked, self._rules(queued.asked.model), new_id)
        draft = Draft(replace(request, input=()) if saves else request, self.kinds.specs, new_id)
        parent = Parent(conversation_id=queued.asked.conversation_id or "")
        return replace(self._turn(queued.block, draft, parent, queued.created_at), saves=saves)

    async def _drafted(self, asked: Asked, block: IdBlock) -> tuple[Draft, Parent]:
        new_id = _ids_of_input(block)
        request = self._request(asked, new_id)
        parent = await self._parent(asked)
        draft = Draft(request, self.kinds.specs, new_id, carried=parent.carried, open_call_ids=parent.open_call_ids)
        found = await self._found(draft, block)
        return assembled(replace(draft, stored=found.items, numbers=found.numbers)), parent

    def _request(self, asked: Asked, new_id: Callable[[str], str]) -> TurnRequest:
        return read_request(asked, self.kinds, self._rules(asked.model), new_id)

    def _rules(self, model: str) -> CompactionRules:
        return replace(self.rules, threshold=self.thresholds.get(model, self.rules.threshold))

    async def _parent(self, asked: Asked) -> Parent:
        if asked.conversation_id is not None:
            head, prompts = await self.history.load_conversation(asked.owner, asked.conversation_id)
            return _parent_of(head, prompts.rendered(self.provider), conversation_id=asked.conversation_id)
        if asked.previous_response_id is None:
            return NO_PARENT
        if not asked.continuation:
            return await self._stored(asked.owner, asked.previous_response_id)
        continuation = parents.read(asked.continuation, asked.previous_response_id)
        stored = await self._stored(asked.owner, continuation.stored_id) if continuation.stored_id else NO_PARENT
        return parents.continued_unstored(stored, continuation, self.provider)

    async def _stored(self, owner: str, response_id: str) -> Parent:
        head, prompts = await self.history.load(owner, response_id)
        _check_continuable(head)
        return _parent_of(head, prompts.rendered(self.provider), response_id=response_id)

    async def _found(self, draft: Draft, block: IdBlock) -> Found:
        ids = wanted(draft.request, draft.carried, block.tree_key)
        return await self.history.find(draft.request.owner, ids) if ids else Found()

    def _turn(self, block: IdBlock, draft: Draft, parent: Parent, created_at: int) -> Turn:
        settings, request = self.settings, draft.request
        _check_size(parent, request, settings.max_context_bytes)
        return Turn(
            response_id=block.id("resp"),
            request=request,
            parent=parent,
            created_at=created_at,
            limits=Limits(settings.max_rounds, settings.max_output_chars, settings.max_output_items),
            output=Output(
                block,
                settings.reasoning_events,
                self.provider,
                next_id=1 + len(request.input),
                tools=request.tools,
                include=request.include,
                seal=_sealer(request),
                given_call_ids=CallIds((*parent.context, *(item.rendered for item in request.input))),
            ),
            approved=draft.approved,
        )


def _sealer(request: TurnRequest) -> Callable[[bytes], str] | None:
    if "reasoning.encrypted_content" not in request.include:
        return None
    return partial(request.compaction.seals.seal, request.owner, "reasoning")


def _block(asked: Asked) -> IdBlock:
    """The ids of a turn: those that were promised, else new ones in the tree of what it continues, else in a new tree."""
    tree_key = _tree_key(asked)
    if not asked.response_id:
        return new_block(new_tree_key() if tree_key is None else tree_key)
    block = block_of(asked.response_id)
    if block is None or (tree_key is not None and block.tree_key != tree_key):
        raise InvalidRequest("The promised id is not of the tree that the turn belongs to.", param="response_id")
    return block


def _tree_key(asked: Asked) -> int | None:
    continued = asked.previous_response_id or asked.conversation_id
    if continued is None:
        return None
    tree_key = tree_key_of(continued)
    if tree_key is None:
        raise _missing(asked)
    return tree_key


def _missing(asked: Asked) -> ServiceError:
    if asked.previous_response_id:
        return PreviousResponseNotFound(response_id=asked.previous_response_id[:64])
    return ConversationNotFound(conversation_id=str(asked.conversation_id)[:64])


def _moved(block: IdBlock, asked: Asked) -> IdBlock:
    """The ids of a turn whose parent's tree is full: in a tree of its own, which a conversation cannot have."""
    if asked.conversation_id is not None:
        raise ConversationFull(conversation_id=asked.conversation_id)
    return dataclasses.replace(block, tree_key=new_tree_key())


def _gone_on_with(block: IdBlock, draft: Draft, items: Sequence[Item]) -> tuple[IdBlock, Draft]:
    """The turn in the tree of the items that its input starts with, and the rest of its input with ids of that tree."""
    home = dataclasses.replace(block, tree_key=tree_key_of(items[0].id) or block.tree_key)
    rest = draft.request.input[len(items) :]
    own = tuple(_at_home(item, block, home) for item in rest)
    return home, replace(draft, request=replace(draft.request, input=own))


def _at_home(item: Item, block: IdBlock, home: IdBlock) -> Item:
    if tree_key_of(item.id) != block.tree_key:
        return item
    return dataclasses.replace(item, id=moved(item.id, home.tree_key))


def _ids_of_input(block: IdBlock) -> Callable[[str], str]:
    return partial(_next_id, block, iter(range(1, 1 << 32)))


def _next_id(block: IdBlock, offsets: Iterator[int], prefix: str) -> str:
    return block.id(prefix, next(offsets))


def _parent_of(head: Head, context: tuple[bytes, ...], *, response_id: str = "", conversation_id: str = "") -> Parent:
    return Parent(
        response_id=response_id,
        conversation_id=conversation_id,
        base=head.checkpoint,
        context=context,
        open_call_ids=head.open_call_ids,
        carried=head.carried,
        tokens=head.tokens,
        is_full=head.tree_full,
    )


def _check_continuable(head: Head) -> None:
    if head.status in ("queued", "in_progress"):
        raise ResponseNotFinished(response_id=head.response_id, status=head.status)
    if head.status in ("failed", "cancelled"):
        instead = f"'{head.parent_response_id}'" if head.parent_response_id else "the start"
        raise ResponseNotContinuable(response_id=head.response_id, status=head.status, instead=instead)


def _check_size(parent: Parent, request: TurnRequest, limit: int) -> None:
    prompts = sum(len(item.rendered) for item in request.input)
    stored = sum(len(item.body) + len(item.prompt or b"") for item in (*parent.unstored, *request.input))
    if sum(map(len, parent.context)) + prompts > limit or stored > _MAX_SAVE_BYTES:
        raise RequestTooLarge(limit=limit)
