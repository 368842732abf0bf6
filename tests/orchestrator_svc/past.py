"""A model of what turns continue from, in texts: it says what an engine must be shown, whatever was compacted, branched or deleted before.

It knows the rules and none of the code: what an item costs, which messages a compaction keeps, and what deleting changes (nothing).
"""

from dataclasses import dataclass, replace

from tests.orchestrator_svc.scribe import summed_up


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a context; a summary is written as the user's, and is none of the user's own."""

    text: str
    by_user: bool = True
    is_summary: bool = False

    @property
    def tokens(self) -> int:
        return -(-len(self.text) // 4) + 12 + 7


@dataclass(eq=False, slots=True)
class Unit:
    """An item of a conversation: what of it is shown to whoever lists it, and what to the model."""

    shown: str
    said: tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """What a turn continues from; `floor` is its size after its last compaction."""

    said: tuple[Said, ...] = ()
    floor: int = 0

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.said]

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.said)

    def with_user(self, text: str) -> "Context":
        return replace(self, said=(*self.said, Said(text)))

    def with_answer(self, text: str) -> "Context":
        return replace(self, said=(*self.said, Said(text, by_user=False)))

    def is_due(self, threshold: int, growth: float) -> bool:
        """Whether it is compacted before a model call."""
        return threshold > 0 and self.tokens > max(threshold, self.floor * (1 + growth))

    def compacted(self, budget: int, number: int) -> "Context":
        """It as it stands on summary `number`, with the newest messages of the user that fit."""
        kept: list[Said] = []
        for one in reversed(self.said):
            if not one.by_user or one.is_summary:
                continue
            budget -= one.tokens
            if budget < 0 and kept:
                break
            kept.append(one)
        context = Context((*reversed(kept), Said(summed_up(number), is_summary=True)))
        return replace(context, floor=context.tokens)
