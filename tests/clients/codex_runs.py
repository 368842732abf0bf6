"""What Codex is asked to do, over HTTP and over a WebSocket. What the model says is scripted; what it was sent is looked at afterwards."""

import base64
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.clients.codex import COMPACT_AT, Run, Setup, act, equal, need
from tests.clients.model import user_texts
from tests.clients.scenario import Scenario
from tests.fakes.answers import Usage
from tests.fakes.engine import Received
from tests.fakes.mcp_server import PIXEL
from tests.fakes.scripts import function_call, reasoning, status, text

FULL = Usage(COMPACT_AT + 1, 10)
"""So much that Codex compacts before it goes on."""
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"], "additionalProperties": False}
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
SUMMARY = "Handoff: one was printed."


# What must have reached the model.


def _output_holds(words: str) -> Callable[[list[Received]], None]:
    """The last item of the second model call is the output of the first one's call, with these words in it."""

    def check(posts: list[Received]) -> None:
        last = posts[1].input[-1]
        equal(last["type"], "function_call_output", "the last item")
        need(words in json.dumps(last["output"]), f"the output is {last['output']!r}")

    return check


def _thought(posts: list[Received]) -> None:
    """The reasoning is in the second prompt, in plain text, as the model wrote it."""
    thoughts = [item for item in posts[1].input if item["type"] == "reasoning"]
    equal([item["content"] for item in thoughts], [[{"type": "reasoning_text", "text": "I think so."}]], "the reasoning")


def _saw_image(posts: list[Received]) -> None:
    content = json.dumps(posts[-1].input)
    need("data:image/png;base64," in content, f"there is no image in {content[-800:]}")


def _saw_schema(posts: list[Received]) -> None:
    settings = posts[0].json["text"]
    need(isinstance(settings, dict) and settings["format"]["schema"] == SCHEMA, f"text is {settings!r}")


def _found(posts: list[Received]) -> None:
    """The tool that the search found can be called, and was answered."""
    need("mcp__demo__echo" in _declared(posts[1]), f"declared are {_declared(posts[1])}")
    need("from mcp" in json.dumps(posts[2].input[-1]["output"]), f"the output is {posts[2].input[-1]!r}")


def _compacted(posts: list[Received]) -> None:
    """The model goes on from the summary, and the call and its output are gone."""
    kinds = [str(item["type"]) for item in posts[-1].input]
    need("function_call" not in kinds, f"items are {kinds}")
    need(SUMMARY in json.dumps(posts[-1].input), f"there is no summary in {json.dumps(posts[-1].input)[-1500:]}")
    equal(user_texts(posts[-1]).count("go"), 1, "how often the prompt is there")


def _remembered(posts: list[Received]) -> None:
    said = user_texts(posts[-1])
    equal(said[-1], "again", "the last message of the user")
    need("go" in said, f"the user said {said}")
    need("first answer" in json.dumps(posts[-1].input), "the first answer is not there")


def _declared(post: Received) -> list[str]:
    tools = post.json.get("tools")
    return [str(tool.get("name")) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


# What is done after the first run, and what stands on the command line.


async def _resume(setup: Setup) -> None:
    equal(await setup.exec("again", subcommand=["resume", "--last"]), "second answer", "the last message after resuming")


async def _patched(setup: Setup) -> None:
    equal((setup.work / "hello.txt").read_text(), "hello\n", "the patched file")


def _with_image(home: Path) -> list[str]:
    return ["-i", str(_image(home))]


def _with_schema(home: Path) -> list[str]:
    (home / "schema.json").write_text(json.dumps(SCHEMA))
    return ["--output-schema", str(home / "schema.json")]


def _image(home: Path) -> Path:
    (home / "work" / "pixel.png").write_bytes(base64.b64decode(PIXEL))
    return home / "work" / "pixel.png"


def _place_image(home: Path) -> list[str]:
    _image(home)
    return []


SHELL = function_call("exec_command", {"cmd": "echo one"})
RUNS = (
    Run("plain, unknown model", (text("Hello."),), "Hello.", "stub"),
    Run("plain, gpt-5.5", (text("Hello."),), "Hello."),
    Run("plain, gpt-6.2-sol", (text("Hello."),), "Hello.", "gpt-6.2-sol"),
    Run("shell tool", (SHELL, text("Done.")), "Done.", "stub", check=_output_holds("one"), rounds=2),
    Run("reasoning", (reasoning("I think so.") + SHELL, text("Done.")), "Done.", check=_thought, rounds=2),
    Run(
        "apply_patch",
        (function_call("apply_patch", {"input": PATCH}), text("Done.")),
        "Done.",
        then=_patched,
        check=_output_holds("Success"),
        rounds=2,
    ),
    Run(
        "custom tool in a namespace",
        (function_call("functions__exec", {"input": 'text("from" + "-code")'}), text("Done.")),
        "Done.",
        "gpt-6.2-sol",
        check=_output_holds("from-code"),
        rounds=2,
    ),
    Run(
        "MCP namespace",
        (function_call("mcp__demo__echo", {"text": "from mcp"}), text("Done.")),
        "Done.",
        "stub",
        mcp=True,
        check=_output_holds("from mcp"),
        rounds=2,
    ),
    Run(
        "tool_search",
        (function_call("tool_search", {"query": "echo demo"}), function_call("mcp__demo__echo", {"text": "from mcp"}), text("Done.")),
        "Done.",
        mcp=True,
        check=_found,
        rounds=3,
    ),
    Run("image", (text("A pixel."),), "A pixel.", options=_with_image, check=_saw_image),
    Run(
        "image from a tool",
        (function_call("view_image", {"path": "pixel.png"}), text("A pixel.")),
        "A pixel.",
        options=_place_image,
        check=_saw_image,
        rounds=2,
    ),
    Run("output schema", (), '{"answer": "sample"}', options=_with_schema, check=_saw_schema),
    Run(
        "compaction by the client",
        (reasoning("I think so.") + SHELL.using(FULL), text(SUMMARY), text("Done.")),
        "Done.",
        check=_compacted,
        rounds=3,
    ),
    Run(
        "compaction by the gateway",
        (reasoning("I think so.") + SHELL.using(FULL), text(SUMMARY), text("Done.")),
        "Done.",
        provider="OpenAI",
        check=_compacted,
        rounds=3,
    ),
    Run("resume", (text("first answer"), text("second answer")), "first answer", then=_resume, check=_remembered, rounds=2),
    Run(
        "resume, gpt-6.2-sol",
        (text("first answer"), text("second answer")),
        "first answer",
        "gpt-6.2-sol",
        then=_resume,
        check=_remembered,
        rounds=2,
    ),
    Run(
        "web search",
        (function_call("web_search", {"query": "ranges"}), text("Done.")),
        "Done.",
        check=_output_holds("postgresql"),
        rounds=2,
    ),
    Run("retry after a rate limit", (status(429, headers={"Retry-After": "1"}), text("Hello.")), "Hello.", retries=1, rounds=2),
    Run("retry after a cut stream", (text("Hello there.").cut(events=6, ending="reset"), text("Hello.")), "Hello.", retries=1, rounds=2),
)
SCENARIOS = tuple(
    Scenario(f"codex ({'WebSocket' if websocket else 'HTTP'})", run.name, partial(act, run, websocket), run.plays)
    for websocket in (False, True)
    for run in RUNS
)
