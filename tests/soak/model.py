"""The scripted model of a soak: the first word of what the user says last decides what becomes of the request."""

from collections.abc import Callable

from tests.fakes.engine import Received
from tests.fakes.scripts import Script, function_call, hang_up, never, status, text

MCP_TOOL = "docs__echo"
OWN_TOOL = "look"
SLOW_SECONDS = 0.03
BIG_DELTAS = 40

# Each failure that an engine shows us, by the word that asks for it.
FAILURES: dict[str, Callable[[], Script]] = {
    "error": lambda: status(500),
    "busy": lambda: status(429),
    "cut": lambda: text("one two three four").cut(events=5),
    "reset": lambda: text("one two three four").cut(events=5, ending="reset"),
    "gone": lambda: hang_up("reset"),
    "silent": never,
}


def scripted(received: Received) -> Script:
    """The answer to any request."""
    said = _said_last(received)
    word = said.partition(" ")[0]
    if word in FAILURES:
        return FAILURES[word]()
    match word:
        case "slow":
            return text("one two three four five six seven eight").paced(SLOW_SECONDS)
        case "big":
            return text("", deltas=["word " * 400] * BIG_DELTAS)
        case "look":
            return function_call(OWN_TOOL, {})
        case "echo":
            return function_call(MCP_TOOL, {"text": said})
    return text(f"You said: {said[:200]}")


def _said_last(received: Received) -> str:
    last = received.input[-1] if received.input else {}
    content = last.get("content") if last.get("role") == "user" else ""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content)
    return str(content)
