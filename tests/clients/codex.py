"""The Codex CLI as its users run it, `codex exec`, with Turnkeep as its provider: each scenario over HTTP and over a WebSocket.

The model's name decides which tools Codex declares and how: `stub` is unknown to it, `gpt-5.5` has custom and deferred tools, `gpt-6.2-sol`
brings its tools along as an input item. What the model says is scripted; what it was sent is looked at afterwards.
"""

import base64
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.clients.house import KEY, Failure, House
from tests.clients.model import user_texts
from tests.clients.scenario import Scenario
from tests.fakes.answers import Json, Usage
from tests.fakes.engine import Received
from tests.fakes.mcp_server import PIXEL
from tests.fakes.scripts import Script, function_call, reasoning, status, text

FULL = Usage(60_000, 10)
"""More than the limit below: Codex compacts before it goes on."""
COMPACT_AT = 40_000
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"], "additionalProperties": False}
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
SUMMARY = "Handoff: one was printed."


@dataclass(frozen=True, slots=True)
class Setup:
    """A private CODEX_HOME with one provider, and a directory to work in."""

    house: House
    home: Path
    websocket: bool
    model: str
    provider: str = "Turnkeep"
    mcp: bool = False
    retries: int = 0

    def write(self) -> None:
        (self.home / "codex").mkdir()
        (self.home / "work").mkdir()
        (self.home / "codex" / "config.toml").write_text("\n".join([*self._settings(), *(self._mcp_server() if self.mcp else [])]))

    def _settings(self) -> list[str]:
        return [
            f'model = "{self.model}"',
            'model_provider = "turnkeep"',
            f"model_auto_compact_token_limit = {COMPACT_AT}",
            "check_for_update_on_startup = false",
            "[analytics]",
            "enabled = false",
            "[model_providers.turnkeep]",
            f'name = "{self.provider}"',
            f'base_url = "{self.house.base_url}"',
            'env_key = "TURNKEEP_API_KEY"',
            'wire_api = "responses"',
            f"supports_websockets = {json.dumps(self.websocket)}",
            f"request_max_retries = {self.retries}",
            f"stream_max_retries = {self.retries}",
        ]

    def _mcp_server(self) -> list[str]:
        return ["[mcp_servers.demo]", f'url = "{self.house.mcp.url}"']

    async def exec(self, prompt: str, *more: str, subcommand: Sequence[str] = ()) -> str:
        """One run of `codex exec`; gives the last message."""
        last = self.home / "last.txt"
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-o", str(last)]
        command = [*self.house.installed.codex, "exec", *options, "-C", str(self.home / "work"), *more, *subcommand, "-"]
        secrets = {"CODEX_HOME": str(self.home / "codex"), "TURNKEEP_API_KEY": KEY}
        said = await self.house.run(command, self.home, secrets, prompt.encode())
        if not last.exists():
            raise Failure(f"there is no last message: {said[-1500:]}")
        return last.read_text().strip()


@dataclass(frozen=True, slots=True)
class Run:
    """What a scenario does with Codex: one prompt, what the last message is then, and what must have reached the model."""

    name: str
    plays: tuple[Script, ...]
    says: str
    model: str = "gpt-5.5"
    provider: str = "Turnkeep"
    prompt: str = "go"
    mcp: bool = False
    retries: int = 0
    options: Callable[[Path], list[str]] = field(default=lambda home: [])
    then: Callable[[Setup], Awaitable[None]] | None = None
    check: Callable[[list[Received]], None] = field(default=lambda posts: None)
    rounds: int = 1


async def _act(run: Run, websocket: bool, house: House) -> None:
    with tempfile.TemporaryDirectory(dir=house.directory) as home:
        setup = Setup(house, Path(home), websocket, run.model, run.provider, run.mcp, run.retries)
        setup.write()
        before = await house.counted("turnkeep_edge_websocket_turns_total")
        _equal(await setup.exec(run.prompt, *run.options(setup.home)), run.says, "the last message")
        if run.then is not None:
            await run.then(setup)
        _check_transport(websocket, await house.counted("turnkeep_edge_websocket_turns_total") - before)
    posts = house.engine.posts
    if len(posts) != run.rounds:
        raise Failure(f"the model was called {len(posts)} times, not {run.rounds}: {[post.input[-1:] for post in posts]}")
    run.check(posts)


def _check_transport(websocket: bool, turns: float) -> None:
    if (turns > 0) != websocket:
        raise Failure(f"{turns:.0f} turns went over a WebSocket")


# What must have reached the model.


def _equal(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Failure(f"{what} is {found!r}, not {wanted!r}")


def _need(fact: object, what: str) -> None:
    if not fact:
        raise Failure(what)


def _output_holds(words: str) -> Callable[[list[Received]], None]:
    """The last item of the second model call is the output of the first one's call, with these words in it."""

    def check(posts: list[Received]) -> None:
        last = posts[1].input[-1]
        _equal(last["type"], "function_call_output", "the last item")
        _need(words in json.dumps(last["output"]), f"the output is {last['output']!r}")

    return check


def _thought(posts: list[Received]) -> None:
    """The reasoning is in the second prompt, in plain text, as the model wrote it."""
    thoughts = [item for item in posts[1].input if item["type"] == "reasoning"]
    _equal([item["content"] for item in thoughts], [[{"type": "reasoning_text", "text": "I think so."}]], "the reasoning")


def _saw_image(posts: list[Received]) -> None:
    content = json.dumps(posts[-1].input)
    _need("data:image/png;base64," in content, f"there is no image in {content[-800:]}")


def _saw_schema(posts: list[Received]) -> None:
    settings = posts[0].json["text"]
    _need(isinstance(settings, dict) and settings["format"]["schema"] == SCHEMA, f"text is {settings!r}")


def _found(posts: list[Received]) -> None:
    """The tool that the search found can be called, and was answered."""
    _need("mcp__demo__echo" in _declared(posts[1]), f"declared are {_declared(posts[1])}")
    _need("from mcp" in json.dumps(posts[2].input[-1]["output"]), f"the output is {posts[2].input[-1]!r}")


def _compacted(posts: list[Received]) -> None:
    """The model goes on from the summary, and the call and its output are gone."""
    kinds = [str(item["type"]) for item in posts[-1].input]
    _need("function_call" not in kinds, f"items are {kinds}")
    _need(SUMMARY in json.dumps(posts[-1].input), f"there is no summary in {json.dumps(posts[-1].input)[-1500:]}")
    _equal(user_texts(posts[-1]).count("go"), 1, "how often the prompt is there")


def _remembered(posts: list[Received]) -> None:
    said = user_texts(posts[-1])
    _equal(said[-1], "again", "the last message of the user")
    _need("go" in said, f"the user said {said}")
    _need("first answer" in json.dumps(posts[-1].input), "the first answer is not there")


def _declared(post: Received) -> list[str]:
    tools = post.json.get("tools")
    return [str(tool.get("name")) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


# What is done after the first run, and what stands on the command line.


async def _resume(setup: Setup) -> None:
    _equal(await setup.exec("again", subcommand=["resume", "--last"]), "second answer", "the last message after resuming")


async def _patched(setup: Setup) -> None:
    _equal((setup.home / "work" / "hello.txt").read_text(), "hello\n", "the patched file")


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


def _call(name: str, arguments: Json) -> Script:
    return function_call(name, arguments)


SHELL = _call("exec_command", {"cmd": "echo one"})
RUNS = (
    Run("plain, unknown model", (text("Hello."),), "Hello.", "stub"),
    Run("plain, gpt-5.5", (text("Hello."),), "Hello."),
    Run("plain, gpt-6.2-sol", (text("Hello."),), "Hello.", "gpt-6.2-sol"),
    Run("shell tool", (SHELL, text("Done.")), "Done.", "stub", check=_output_holds("one"), rounds=2),
    Run("reasoning", (reasoning("I think so.") + SHELL, text("Done.")), "Done.", check=_thought, rounds=2),
    Run(
        "apply_patch",
        (_call("apply_patch", {"input": PATCH}), text("Done.")),
        "Done.",
        then=_patched,
        check=_output_holds("Success"),
        rounds=2,
    ),
    Run(
        "custom tool in a namespace",
        (_call("functions__exec", {"input": 'text("from" + "-code")'}), text("Done.")),
        "Done.",
        "gpt-6.2-sol",
        check=_output_holds("from-code"),
        rounds=2,
    ),
    Run(
        "MCP namespace",
        (_call("mcp__demo__echo", {"text": "from mcp"}), text("Done.")),
        "Done.",
        "stub",
        mcp=True,
        check=_output_holds("from mcp"),
        rounds=2,
    ),
    Run(
        "tool_search",
        (_call("tool_search", {"query": "echo demo"}), _call("mcp__demo__echo", {"text": "from mcp"}), text("Done.")),
        "Done.",
        mcp=True,
        check=_found,
        rounds=3,
    ),
    Run("image", (text("A pixel."),), "A pixel.", options=_with_image, check=_saw_image),
    Run(
        "image from a tool",
        (_call("view_image", {"path": "pixel.png"}), text("A pixel.")),
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
    Run("web search", (_call("web_search", {"query": "ranges"}), text("Done.")), "Done.", check=_output_holds("postgresql"), rounds=2),
    Run("retry after a rate limit", (status(429, headers={"Retry-After": "1"}), text("Hello.")), "Hello.", retries=1, rounds=2),
    Run("retry after a cut stream", (text("Hello there.").cut(events=6, ending="reset"), text("Hello.")), "Hello.", retries=1, rounds=2),
)
SCENARIOS = tuple(
    Scenario(f"codex ({'WebSocket' if websocket else 'HTTP'})", run.name, partial(_act, run, websocket), run.plays)
    for websocket in (False, True)
    for run in RUNS
)
