"""Runs the orchestrator alone: `python -m orchestrator_svc [--config FILE]`."""

import sys

from orchestrator_svc.app import open_orchestrator
from orchestrator_svc.settings import Settings
from svckit.process import serve_alone

if __name__ == "__main__":
    sys.exit(
        serve_alone(
            "orchestrator_svc",
            Settings,
            open_orchestrator,
            log_of=lambda settings: settings.log,
            metrics_listen=lambda settings: settings.orchestrator.metrics_listen,
        )
    )
