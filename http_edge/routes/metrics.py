"""/metrics: what this process has counted, for Prometheus."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from svckit.telemetry import metrics_page


async def show_metrics(request: web.Request) -> web.Response:
    """All metrics of all rooms in this process."""
    return web.Response(body=metrics_page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


ROUTES = (web.get("/metrics", show_metrics),)
