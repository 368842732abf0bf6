"""Runs the history service alone: `python -m history_svc [--config FILE]`."""

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from history_svc.app import open_history
from history_svc.settings import Settings
from svckit import lifecycle, logs
from svckit.settings import SettingsError, environment, load
from svckit.telemetry import open_metrics_listener


def main() -> None:
    """Reads the settings and serves until a signal asks for the end."""
    parser = argparse.ArgumentParser(prog="history_svc", description="The history service of Turnkeep.")
    parser.add_argument("--config", type=Path, help="the settings file, turnkeep.toml")
    arguments = parser.parse_args()
    try:
        settings = load(Settings, file=arguments.config, environ=environment())
        logs.configure(settings.log.level, settings.log.format)
        lifecycle.run(lambda stop: _serve(settings, stop))
    except SettingsError as exc:
        sys.exit(f"history_svc: {exc}")


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        if settings.history.metrics_listen:
            await stack.enter_async_context(open_metrics_listener(settings.history.metrics_listen))
        history = await stack.enter_async_context(open_history(settings))
        logs.get_logger(__name__).info("history is served", address=history.address)
        await stop.wait()


if __name__ == "__main__":
    main()
