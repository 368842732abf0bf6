"""Runs the history service alone: `python -m history_svc [--config FILE]`."""

import sys

from history_svc.app import open_history
from history_svc.settings import Settings
from svckit.process import serve_alone

if __name__ == "__main__":
    sys.exit(
        serve_alone(
            "history_svc",
            Settings,
            open_history,
            log_of=lambda settings: settings.log,
            metrics_listen=lambda settings: settings.history.metrics_listen,
        )
    )
