"""A conversation under any interleaving of turns, compactions, failures, added and deleted items, against a model of it."""

from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator_svc.items import JsonObject
from tests.end_to_end.prompts import texts
from tests.fakes.scripts import text
from tests.orchestrator_svc.past import Context, Said, Unit
from tests.orchestrator_svc.scribe import Scribe, answer_to, over, user
from tests.orchestrator_svc.tool_turns import World
from turnkeep.history.v1 import history_pb2

GROWTH = 0.25
NEVER = 1_000_000


@dataclass
class Talk:
    """A conversation and the model of it: `units` are what the model is shown, `listed` is what clients are shown."""

    world: World
    scribe: Scribe
    id: str
    units: list[Unit] = field(default_factory=list)
    listed: list[Unit] = field(default_factory=list)
    floor: int = 0
    said: int = 0

    async def turn(self, threshold: int, *, store: bool = True) -> None:
        """A turn that ends well."""
        asked, context = self._next(), self._context()
        context = context.with_user(asked.shown)
        start = len(self.world.engine.posts)

        turned = await self.world.turn(user(asked.shown), conversation_id=self.id, store=store, context_management=over(threshold))

        self._append(asked)
        shown = [texts(post) for post in self.world.engine.posts[start:]]
        if context.is_due(threshold, GROWTH):
            assert shown.pop(0)[:-1] == context.texts
            context = context.compacted(max(threshold // 2, 1), self.scribe.summaries)
            self.units, self.floor = [], context.floor
            self._append(Unit("compaction", context.said))
            assert turned.types == ["compaction", "message"]
        assert shown == [context.texts]
        answer = answer_to(context.texts[-1])
        self._append(Unit(answer, (Said(answer, by_user=False),)))

    async def fail(self) -> None:
        """A turn whose engine breaks off; it leaves nothing here."""
        self.world.engine.play(text("this is half of it").cut(events=5))
        turned = await self.world.turn(user(self._next().shown), conversation_id=self.id)
        assert turned.response["status"] == "failed"

    async def add(self) -> None:
        """A message that somebody puts in."""
        unit = self._next()
        await self.world.conversations.add("ada", self.id, [msgspec.json.encode(user(unit.shown))])
        self._append(unit)

    async def delete(self, pick: int) -> None:
        """Deletes one of the items that are listed."""
        if not self.listed:
            return
        unit = self.listed[pick % len(self.listed)]
        item_id = (await self.items())[self.listed.index(unit)]["id"]
        request = history_pb2.DeleteConversationItemRequest(owner="ada", conversation_id=self.id, item_id=str(item_id))
        await self.world.history.DeleteConversationItem(request)  # type: ignore[misc]
        self.listed.remove(unit)
        self.units = [one for one in self.units if one is not unit]

    async def check(self) -> None:
        """What is listed, and what a turn is shown that leaves no trace."""
        assert [_shown(item) for item in await self.items()] == [unit.shown for unit in self.listed]

    async def items(self) -> list[JsonObject]:
        """All items of the conversation, as they are listed."""
        request = history_pb2.ListConversationItemsRequest(owner="ada", conversation_id=self.id, page_size=100, order=history_pb2.ORDER_ASC)
        replies = [reply async for reply in self.world.history.ListConversationItems(request)]  # type: ignore[attr-defined]
        return [{"id": item.id, **msgspec.json.decode(item.body)} for reply in replies for item in reply.items]

    def _next(self) -> Unit:
        self.said += 1
        told = f"m{self.said}"
        return Unit(told, (Said(told),))

    def _append(self, unit: Unit) -> None:
        self.units.append(unit)
        self.listed.append(unit)

    def _context(self) -> Context:
        return replace(Context(tuple(one for unit in self.units for one in unit.said)), floor=self.floor)


def _shown(item: JsonObject) -> str:
    return texts_of(item) if item["type"] == "message" else str(item["type"])


def texts_of(item: JsonObject) -> str:
    """The text of a message."""
    content = item["content"]
    assert isinstance(content, list)
    return "".join(str(part["text"]) for part in content)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "turn", "turn", "unstored", "fail", "add", "delete"]),
        st.integers(0, 1000),
        st.sampled_from([NEVER, NEVER, 1, 60, 120]),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.timeout(300)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_any_interleaving_gives_the_conversation_of_the_model(world: World, steps: list[tuple[str, int, int]]) -> None:
    world.engine.forget()
    world.engine.default = scribe = Scribe()
    created = await world.conversations.create("ada", b"{}", [])
    talk = Talk(world, scribe, created.id)
    for kind, pick, threshold in steps:
        match kind:
            case "turn" | "unstored":
                await talk.turn(threshold, store=kind == "turn")
            case "fail":
                await talk.fail()
            case "add":
                await talk.add()
            case "delete":
                await talk.delete(pick)
    await talk.turn(NEVER)
    await talk.check()
