"""The tool that `docs/adding-a-tool.md` adds: its code is taken from the page and run through a turn, as one file and one line."""

import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.settings import Settings
from orchestrator_svc.tools.registry import TOOLS, open_toolbox
from tests.fakes.scripts import function_call, text
from tests.orchestrator_svc.tool_turns import open_world
from tests.orchestrator_svc.turns import HELLO

PAGE = (Path(__file__).parents[2] / "docs/adding-a-tool.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[ModuleType]:
    """The module that the page shows."""
    (code,) = [block for language, block in BLOCKS if language == "python"]
    file = tmp_path / "clock.py"
    file.write_text(code, "utf-8")
    spec = spec_from_file_location("clock_of_the_page", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def added(clock: ModuleType) -> tuple[object, ...]:
    """TOOLS with the line that the page shows."""
    (line,) = [block for language, block in BLOCKS if not language]
    return (*TOOLS, *eval(f"({line})", {"clock": clock}))


async def test_the_tool_of_the_page_runs_within_a_turn(database: str, clock: ModuleType) -> None:
    """The engine is offered a function, the gateway runs the call, the client sees it, the model goes on."""
    tools = open_toolbox(Settings(), added(clock))  # type: ignore[arg-type]
    async with open_world(database, tools) as world:
        world.engine.play(function_call("clock", {}), function_call("clock", {"zone": "Nowhere/Here"}), text("It is late."))
        turned = await world.turn(HELLO, tools=[{"type": "clock", "zone": "Europe/Rome"}])

        assert turned.types == ["mcp_call", "mcp_call", "message"]
        shown = [(item["server_label"], item["name"], item["status"]) for item in turned.output[:2]]
        assert shown == [("clock", "clock", "completed"), ("clock", "clock", "failed")]
        told = [str(item["output"]) for item in world.inputs()[2] if item["type"] == "function_call_output"]
        assert told[0].endswith("in Europe/Rome")
        assert told[1] == "Error: There is no such time zone."
        assert await world.stored(turned.id) == turned.response


async def test_the_tool_of_the_page_names_what_is_wrong(database: str, clock: ModuleType) -> None:
    tools = open_toolbox(Settings(), added(clock))  # type: ignore[arg-type]
    async with open_world(database, tools) as world:
        with pytest.raises(InvalidRequest) as refused:
            await world.turn(HELLO, tools=[{"type": "clock", "zone": 5}])
    assert refused.value.param == "tools[0].zone"
