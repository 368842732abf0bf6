"""Runs the edge alone: `python -m http_edge [--config FILE]`. Its metrics are a page of its own port."""

import sys

from http_edge.app import open_edge
from http_edge.settings import Settings
from svckit.process import serve_alone

if __name__ == "__main__":
    sys.exit(serve_alone("http_edge", Settings, open_edge, log_of=lambda settings: settings.log))
