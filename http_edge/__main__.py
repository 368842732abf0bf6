"""Runs the edge alone: `python -m http_edge --config FILE`. `turnkeep serve edge` does the same."""

import argparse
import asyncio
import sys
from pathlib import Path

from http_edge.app import open_edge
from http_edge.settings import Settings
from svckit.lifecycle import run
from svckit.logs import configure
from svckit.settings import SettingsError, environment, load


def main() -> int:
    """The process's exit status: 0 after a stop that was asked for, 2 for settings that do not fit."""
    parser = argparse.ArgumentParser(prog="http_edge", description="The HTTP edge of Turnkeep.")
    parser.add_argument("--config", type=Path, help="a turnkeep.toml")
    try:
        settings = load(Settings, file=parser.parse_args().config, environ=environment())
        configure(settings.log.level, settings.log.format)
        run(lambda stop: _serve(settings, stop))
    except SettingsError as error:
        print(f"http_edge: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    async with open_edge(settings) as edge:
        print(f"ready {edge.url}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
