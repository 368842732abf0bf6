"""The SDKs: a script for each, with a function for each scenario, run by the interpreter that its package is for."""

import re
import shutil
import tempfile
from functools import partial
from pathlib import Path

from tests.clients.house import House
from tests.clients.installed import HERE
from tests.clients.scenario import Scenario

SCRIPTS = HERE / "scripts"
NAMES = {
    "openai (Python)": "openai_python.py",
    "openai-agents (Python)": "agents_python.py",
    "langchain-openai": "langchain_python.py",
    "openai (Node)": "openai_node.mjs",
    "openai-agents (Node)": "agents_node.mjs",
    "AI SDK, openai": "ai_sdk_openai.mjs",
    "AI SDK, open-responses": "ai_sdk_open_responses.mjs",
}

_FUNCTION = re.compile(r"^(?:async )?(?:def|function) (\w+)\(\)", re.MULTILINE)


async def _run(script: str, function: str, house: House) -> None:
    with tempfile.TemporaryDirectory(dir=house.directory) as home:
        if script.endswith(".py"):
            command = [str(house.installed.python), "-P", str(SCRIPTS / script), function]
        else:
            command = [str(house.installed.node), str(_beside_its_modules(SCRIPTS / script, Path(home), house)), function]
        await house.run(command, Path(home))


def _beside_its_modules(script: Path, home: Path, house: House) -> Path:
    """A copy of the script where Node finds the packages: it looks for them beside the file, whatever the working directory."""
    (home / "node_modules").symlink_to(house.installed.modules)
    return Path(shutil.copy(script, home))


def _functions(script: str) -> list[str]:
    """The names of a script's scenarios: its top-level functions without parameters."""
    return _FUNCTION.findall((SCRIPTS / script).read_text())


def _words(function: str) -> str:
    return re.sub("_|(?<=[a-z])(?=[A-Z])", " ", function).lower()


SCENARIOS = tuple(
    Scenario(client, _words(function), partial(_run, script, function))
    for client, script in NAMES.items()
    for function in _functions(script)
)
