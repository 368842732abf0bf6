"""What a soak runs in: a gateway in one of two shapes over a Postgres, a scripted engine and an MCP server of its own, all on loopback.

Its processes make their temporary files in a directory that belongs to them alone, so that those can be counted.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.end_to_end.gateway import ONE_PROCESS, THREE_PROCESSES, Gateway, Place, Sections, reserved_port, until_ready
from tests.fakes.engine import FakeEngine
from tests.fakes.mcp_server import FakeMcpServer
from tests.postgres import fresh_database, postgres_server
from tests.soak.model import scripted

SHAPES = {"one": ONE_PROCESS, "three": THREE_PROCESSES}
KEY = "sk-soak"
SWEEPS = {"sweep_interval_seconds": 5.0, "event_log_seconds": 60.0, "longest_turn_seconds": 120.0}
POOLS = {"read_connections": 6, "commit_connections": 6, "background_connections": 2}
MOST_CONNECTIONS = sum(POOLS.values()) + 1
"""All pools, and the connection that listens."""


@dataclass(frozen=True, slots=True)
class House:
    """A running gateway and its surroundings."""

    shape: str
    gateway: Gateway
    dsn: str
    engine: FakeEngine
    mcp: FakeMcpServer
    temporary: Path
    metrics_urls: tuple[str, ...]

    def forget(self) -> None:
        """Drops what the fakes have written down: a soak would fill the memory with it."""
        self.engine.forget()
        self.engine.minted.clear()
        self.mcp.calls.clear()
        self.mcp.cancelled.clear()
        self.mcp.headers.clear()

    async def cut_idle_connections(self) -> None:
        """The engine lets go of its connections, as engines do after a while; those of ours that nobody closes then are leaks."""
        await self.engine.stop()
        await self.engine.start()


@asynccontextmanager
async def open_house(shape: str) -> AsyncIterator[House]:
    """Opens everything, the gateway last."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tksoak-")))
        for name in ("postgres", "temporary"):
            (folder / name).mkdir()
        dsn = stack.enter_context(fresh_database(stack.enter_context(postgres_server(folder / "postgres"))))
        ports = [stack.enter_context(reserved_port()) for _ in ("history", "orchestrator")]
        engine = await stack.enter_async_context(FakeEngine())
        mcp = await stack.enter_async_context(FakeMcpServer())
        engine.default = scripted
        place = Place(dsn, f"{engine.url}/v1", {"ada": KEY}, _settings(ports), {"TMPDIR": str(folder / "temporary")})
        gateway = Gateway(place, SHAPES[shape])
        gateway.prepare()
        stack.callback(gateway.close)
        await gateway.restart()
        await until_ready(gateway.url)
        alone = [f"http://127.0.0.1:{port}" for port in ports] if shape == "three" else []
        yield House(shape, gateway, dsn, engine, mcp, folder / "temporary", (gateway.url, *alone))


def _settings(ports: list[int]) -> Sections:
    history, orchestrator = (f"127.0.0.1:{port}" for port in ports)
    return {
        "log": {"level": "warning"},
        "history": {**POOLS, "metrics_listen": history, **SWEEPS},
        "orchestrator": {
            "metrics_listen": orchestrator,
            "first_event_timeout_seconds": 3.0,
            "gap_timeout_seconds": 3.0,
            "turn_timeout_seconds": 60.0,
            "background_lease_seconds": 5.0,
        },
        "edge": {"client_timeout_seconds": 10.0},
        "mcp": {"idle_seconds": 1.0},
        "outbound": {"allow_hosts": ["127.0.0.1"]},
        "sealing": {"secrets": ["the secret of this soak, long enough"]},
    }
