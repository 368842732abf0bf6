"""A model for tests of compaction: it numbers its summaries, and answers everything else by repeating what it was told last.

    world.engine.default = scribe = Scribe()

`windows` says what an engine was asked in the words that a test compares: one text per item.
"""

from dataclasses import dataclass

from orchestrator_svc.context.compaction import DEFAULT_PROMPT, SUMMARY_HEADER
from orchestrator_svc.items import JsonObject
from tests.end_to_end.prompts import texts
from tests.fakes.engine import FakeEngine, Received
from tests.fakes.scripts import Script, text


@dataclass
class Scribe:
    """Answers by what is asked; its `summaries` are counted from 1."""

    summaries: int = 0

    def __call__(self, received: Received) -> Script:
        if wants_summary(received):
            self.summaries += 1
            return text(f"summary {self.summaries}")
        return text(answer_to(texts(received)[-1]))


def answer_to(told: str) -> str:
    """What the model says to this."""
    return f"re: {told}"


def summed_up(number: int) -> str:
    """Summary `number`, as the model is shown it afterwards."""
    return f"{SUMMARY_HEADER}summary {number}"


def wants_summary(received: Received) -> bool:
    """Whether the engine was asked for a summary."""
    return texts(received)[-1] == DEFAULT_PROMPT


def summary_requests(engine: FakeEngine) -> list[Received]:
    """The requests for summaries."""
    return [post for post in engine.posts if wants_summary(post)]


def user(said: str, **more: object) -> JsonObject:
    """A message of the user."""
    return {"type": "message", "role": "user", "content": said, **more}


def over(threshold: int) -> list[JsonObject]:
    """The `context_management` that compacts over a threshold."""
    return [{"type": "compaction", "compact_threshold": threshold}]
