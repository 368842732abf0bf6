"""Every turn continues from its own past: long chains with compactions, and any interleaving of turns, branches, compactions, failures and
deletions, each against a model that knows none of the code."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from orchestrator_svc.errors import PreviousResponseNotFound, ResponseNotContinuable
from orchestrator_svc.items import JsonObject
from tests.end_to_end.prompts import texts
from tests.fakes.scripts import text
from tests.orchestrator_svc.past import Context
from tests.orchestrator_svc.scribe import Scribe, answer_to, over, user
from tests.orchestrator_svc.tool_turns import Turned, World, open_world
from tests.orchestrator_svc.turns import RULES
from turnkeep.history.v1 import history_pb2

GROWTH = 0.25
NEVER = 1_000_000
TRIGGER: JsonObject = {"type": "compaction_trigger"}


@dataclass
class Past:
    """A stored response, what continues from it, and whether anything may."""

    id: str
    context: Context
    ended: str = "completed"
    is_deleted: bool = False


@dataclass
class Chronicle:
    """Takes turns in a world and tells, turn by turn, what the engine must have been shown."""

    world: World
    scribe: Scribe
    pasts: list[Past] = field(default_factory=list)
    said: int = 0

    async def turn(self, parent: Past | None, threshold: int, *, filler: str = "", store: bool = True) -> Turned:
        """A turn with the next message."""
        self.said += 1
        told = f"m{self.said} {filler}"
        context = (parent.context if parent else Context()).with_user(told)
        start = len(self.world.engine.posts)

        turned = await self.world.turn(
            user(told), previous_response_id=parent.id if parent else None, store=store, context_management=over(threshold)
        )

        shown = [texts(post) for post in self.world.engine.posts[start:]]
        if context.is_due(threshold, GROWTH):
            assert shown.pop(0)[:-1] == context.texts
            context = context.compacted(max(threshold // 2, 1), self.scribe.summaries)
        assert shown == [context.texts]
        if store:
            self.pasts.append(Past(turned.id, context.with_answer(answer_to(context.texts[-1]))))
        return turned

    async def compact(self, parent: Past) -> None:
        """A turn that only compacts; messages up to half of the context stay."""
        start = len(self.world.engine.posts)
        turned = await self.world.turn(TRIGGER, previous_response_id=parent.id)
        assert turned.types == ["compaction"]
        assert [texts(post)[:-1] for post in self.world.engine.posts[start:]] == [parent.context.texts]
        budget = max(parent.context.tokens // 2, 1)
        self.pasts.append(Past(turned.id, parent.context.compacted(budget, self.scribe.summaries)))

    async def fail(self, parent: Past | None) -> None:
        """A turn whose engine breaks off."""
        self.said += 1
        self.world.engine.play(text("this is half of it").cut(events=5))
        turned = await self.world.turn(user(f"m{self.said}"), previous_response_id=parent.id if parent else None)
        assert turned.response["status"] == "failed"
        self.pasts.append(Past(turned.id, Context(), ended="failed"))

    async def delete(self, past: Past) -> None:
        request = history_pb2.DeleteResponseRequest(owner="ada", response_id=past.id)
        await self.world.history.DeleteResponse(request)  # type: ignore[misc]
        past.is_deleted = True

    async def refused(self, parent: Past) -> None:
        """A turn from what nothing can continue from."""
        error = PreviousResponseNotFound if parent.is_deleted else ResponseNotContinuable
        with pytest.raises(error):
            await self.world.turn(user("?"), previous_response_id=parent.id)

    async def remember(self, past: Past) -> None:
        """What continues from this response now is what it always was; nothing is stored."""
        if past.is_deleted or past.ended == "failed":
            await self.refused(past)
        else:
            question = f"what of {past.id}?"
            await self.world.turn(user(question), previous_response_id=past.id, store=False, context_management=over(NEVER))
            asked = next(post for post in reversed(self.world.engine.posts) if texts(post)[-1] == question)
            assert texts(asked) == [*past.context.texts, question]


@pytest.mark.timeout(300)
async def test_two_hundred_turns_with_ten_compactions(database: str) -> None:
    """B091: every id of the chain continues from its own history, before, between and after the compactions."""
    async with open_world(database, rules=structs.replace(RULES, growth=GROWTH)) as world:
        world.engine.default = scribe = Scribe()
        chronicle = Chronicle(world, scribe)
        past: Past | None = None
        for _ in range(200):
            await chronicle.turn(past, 1600, filler="x" * 100)
            past = chronicle.pasts[-1]

        assert scribe.summaries >= 10
        for first in range(0, 200, 20):
            await asyncio.gather(*map(chronicle.remember, chronicle.pasts[first : first + 20]))


Step = tuple[str, int, int]
# what happens, which of the responses that there are it happens to, and over which threshold contexts are compacted
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "turn", "turn", "turn", "unstored", "compact", "fail", "delete", "root"]),
        st.integers(0, 1000),
        st.sampled_from([NEVER, NEVER, 1, 60, 120]),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.timeout(300)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_any_interleaving_gives_the_contexts_of_the_model(world: World, steps: list[Step]) -> None:
    """B091."""
    world.engine.forget()
    world.engine.default = scribe = Scribe()
    chronicle = Chronicle(world, scribe)
    await chronicle.turn(None, NEVER)
    for kind, pick, threshold in steps:
        past = chronicle.pasts[pick % len(chronicle.pasts)]
        await _happen(chronicle, kind, past, threshold)
    for past in chronicle.pasts:
        await chronicle.remember(past)


async def _happen(chronicle: Chronicle, kind: str, past: Past, threshold: int) -> None:
    if kind == "root":
        await chronicle.turn(None, threshold)
    elif kind == "delete":
        if not past.is_deleted:
            await chronicle.delete(past)
    elif past.is_deleted or past.ended == "failed":
        await chronicle.refused(past)
    elif kind == "compact":
        await chronicle.compact(past)
    elif kind == "fail":
        await chronicle.fail(past)
    else:
        await chronicle.turn(past, threshold, store=kind == "turn")
