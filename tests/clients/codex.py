"""The Codex CLI as its users run it: `codex exec` with a private CODEX_HOME and Turnkeep as its provider. What it is asked to do stands in
`codex_runs.py`.
"""

import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.house import KEY, Failure, House
from tests.fakes.engine import Received
from tests.fakes.scripts import Script

COMPACT_AT = 40_000
TURNS = "turnkeep_edge_websocket_turns_total"


@dataclass(frozen=True, slots=True)
class Run:
    """What a scenario does with Codex: one prompt, what the last message is then, and what must have reached the model.

    The model's name decides which tools Codex declares and how: `stub` is unknown to it, `gpt-5.5` has custom and deferred tools,
    `gpt-6.2-sol` brings its tools along as an input item. The provider's name decides who compacts.
    """

    name: str
    plays: tuple[Script, ...]
    says: str
    model: str = "gpt-5.5"
    provider: str = "Turnkeep"
    prompt: str = "go"
    mcp: bool = False
    retries: int = 0
    options: Callable[[Path], list[str]] = field(default=lambda home: [])
    then: "Callable[[Setup], Awaitable[None]] | None" = None
    check: Callable[[list[Received]], None] = field(default=lambda posts: None)
    rounds: int = 1


def settings_of(run: Run, base_url: str, *, websocket: bool, mcp_url: str = "") -> list[str]:
    """The lines of `config.toml`."""
    return [
        f'model = "{run.model}"',
        'model_provider = "turnkeep"',
        f"model_auto_compact_token_limit = {COMPACT_AT}",
        "check_for_update_on_startup = false",
        "[analytics]",
        "enabled = false",
        "[model_providers.turnkeep]",
        f'name = "{run.provider}"',
        f'base_url = "{base_url}"',
        'env_key = "TURNKEEP_API_KEY"',
        'wire_api = "responses"',
        f"supports_websockets = {json.dumps(websocket)}",
        f"request_max_retries = {run.retries}",
        f"stream_max_retries = {run.retries}",
        *(["[mcp_servers.demo]", f'url = "{mcp_url}"'] if run.mcp else []),
    ]


@dataclass(frozen=True, slots=True)
class Setup:
    """A directory with a CODEX_HOME and a place to work in."""

    house: House
    home: Path

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def codex_home(self) -> Path:
        return self.home / "codex"

    def write(self, settings: list[str]) -> None:
        """Makes both."""
        self.work.mkdir()
        self.codex_home.mkdir()
        (self.codex_home / "config.toml").write_text("\n".join(settings))

    async def exec(self, prompt: str, *more: str, subcommand: Sequence[str] = ()) -> str:
        """One run of `codex exec`; gives the last message."""
        last = self.home / "last.txt"
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-o", str(last)]
        command = [*self.house.installed.codex, "exec", *options, "-C", str(self.work), *more, *subcommand, "-"]
        said = await self.house.run(command, self.home, {"CODEX_HOME": str(self.codex_home), "TURNKEEP_API_KEY": KEY}, prompt.encode())
        if not last.exists():
            raise Failure(f"there is no last message: {said[-1500:]}")
        return last.read_text().strip()


async def act(run: Run, websocket: bool, house: House) -> None:
    """Does what `run` says, and looks whether all came about."""
    before = await house.counted(TURNS)
    with tempfile.TemporaryDirectory(dir=house.directory) as home:
        setup = Setup(house, Path(home))
        setup.write(settings_of(run, house.base_url, websocket=websocket, mcp_url=house.mcp.url))
        equal(await setup.exec(run.prompt, *run.options(setup.home)), run.says, "the last message")
        if run.then is not None:
            await run.then(setup)
    turns = await house.counted(TURNS) - before
    need((turns > 0) == websocket, f"{turns:.0f} turns went over a WebSocket")
    posts = house.engine.posts
    need(len(posts) == run.rounds, f"the model was called {len(posts)} times, not {run.rounds}: {[post.input[-1:] for post in posts]}")
    run.check(posts)


def equal(found: object, wanted: object, what: str) -> None:
    """Fails unless both are the same."""
    need(found == wanted, f"{what} is {found!r}, not {wanted!r}")


def need(fact: object, fault: str) -> None:
    """Fails with these words unless it is so."""
    if not fact:
        raise Failure(fault)
