"""What the README tells users to write is what the clients are run with."""

import re
import tomllib
from pathlib import Path

from tests.clients.codex import Run, settings_of
from tests.clients.sdks import NAMES, SCRIPTS

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_codex_is_run_with_the_settings_of_the_readme() -> None:
    (block,) = [block for block in re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL) if "model_providers" in block]
    ours = tomllib.loads("\n".join(settings_of(Run("x", (), "", model="my-model"), "http://127.0.0.1:8080/v1", websocket=True)))
    shown = tomllib.loads(block)
    provider = ours["model_providers"]["turnkeep"]
    assert {key: provider[key] for key in shown["model_providers"]["turnkeep"]} == shown["model_providers"]["turnkeep"]
    assert {key: ours[key] for key in ("model", "model_provider")} == {key: shown[key] for key in ("model", "model_provider")}


def test_every_client_has_scenarios_and_a_script() -> None:
    assert sorted(NAMES.values()) == sorted(path.name for path in SCRIPTS.iterdir() if path.is_file())
