"""What the clients are run in: one gateway over a database and a scripted engine, with a search service and an MCP server beside it.

Everything listens on loopback, and what the clients ask of other hosts goes to a closed port.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.clients.installed import Installed
from tests.clients.model import obedient
from tests.end_to_end.gateway import UNFORESEEN, Gateway, Place, reserved_port
from tests.fakes.engine import FakeEngine
from tests.fakes.mcp_server import FakeMcpServer
from tests.fakes.web import FakeWeb
from tests.orchestrator_svc.tools.provider_answers import SEARXNG
from tests.postgres import fresh_database, postgres_server

KEY = "sk-client"
NOWHERE = "http://127.0.0.1:9"
SECRET = "the secret of these tests, long enough"


class Failure(Exception):
    """A scenario that did not go as it should; the message is for whoever reads the table."""


@dataclass(frozen=True, slots=True)
class House:
    """All that a scenario needs."""

    installed: Installed
    gateway: Gateway
    engine: FakeEngine
    mcp: FakeMcpServer
    directory: Path

    @property
    def base_url(self) -> str:
        return f"{self.gateway.url}/v1"

    def environment(self, home: Path) -> dict[str, str]:
        """What a client's process sees: the address, the key, a home of its own, and no way out."""
        ours = {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": KEY, "MCP_URL": self.mcp.url, "HOME": str(home)}
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
        quiet = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **ours, **proxies, **quiet}

    async def run(self, command: Sequence[str], home: Path, more: Mapping[str, str] | None = None, stdin: bytes = b"") -> str:
        """Runs a client to its end and gives what it says; a status other than 0 is a failure. Cancelled, it takes the client along."""
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=home,
            env={**self.environment(home), **(more or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said = (await process.communicate(stdin))[0].decode(errors="replace")
        finally:
            _end(process)
        if process.returncode != 0:
            raise Failure(f"exit status {process.returncode}: {_shortened(said)}")
        return said

    async def counted(self, metric: str) -> float:
        """The sum of one counter of the gateway over all its labels."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.gateway.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{metric}{{", f"{metric} ")))

    def check_log(self, start: int) -> None:
        """Nothing that nobody foresaw may have been logged."""
        logged = self.gateway.log_bytes(start)
        if any(words in logged for words in UNFORESEEN):
            raise Failure(f"the gateway logged {_shortened(logged.decode(errors='replace'))}")


def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a client that still runs, and what it has started: it leads a session of its own."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def _shortened(text: str, limit: int = 1500) -> str:
    text = text.strip()
    return text if len(text) <= limit else f"... {text[-limit:]}"


@asynccontextmanager
async def open_house(installed: Installed) -> AsyncIterator[House]:
    """Opens everything, the gateway last."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkcli-")))
        (directory / "postgres").mkdir()
        dsn = stack.enter_context(fresh_database(stack.enter_context(postgres_server(directory / "postgres"))))
        port = stack.enter_context(reserved_port())
        async with FakeEngine(port=port, strict=True) as engine, FakeWeb() as web, FakeMcpServer() as mcp:
            web.answers["/search"] = SEARXNG
            engine.default = obedient
            gateway = Gateway(Place(dsn, f"{engine.url}/v1", {"ada": KEY}, _settings(web)))
            gateway.prepare()
            stack.callback(gateway.close)
            await gateway.restart()
            yield House(installed, gateway, engine, mcp, directory)


def _settings(web: FakeWeb) -> dict[str, dict[str, object]]:
    return {
        "outbound": {"allow_hosts": ["127.0.0.1"]},
        "web_search": {"backend": "searxng", "url": web.url},
        "sealing": {"secrets": [SECRET]},
    }
