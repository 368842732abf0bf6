"""The edge as one thing that is opened and closed: settings and channels go in, a URL comes out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from grpc import aio

from http_edge.auth import API_KEYS, Keys, read_keys
from http_edge.clients import CLIENTS, Clients, open_clients
from http_edge.drain import DRAIN, Drain
from http_edge.idempotency import FIRSTS, Firsts
from http_edge.listener import open_listener
from http_edge.middlewares import MIDDLEWARES, add_headers
from http_edge.retained import RETAINED, Retained
from http_edge.routes import ROUTES
from http_edge.settings import EDGE_SETTINGS, EdgeSettings, Settings, refuse_open_door


@dataclass(frozen=True, slots=True)
class Edge:
    """A running edge: once its URL is known, a request to it works."""

    url: str

    @property
    def address(self) -> str:
        """The same, by the name that every room has for it."""
        return self.url


@asynccontextmanager
async def open_edge(settings: Settings, history: aio.Channel | None = None, orchestrator: aio.Channel | None = None) -> AsyncIterator[Edge]:
    """Opens the edge; services without a channel are called at the addresses of the settings. Raises SettingsError."""
    keys = read_keys(settings)
    refuse_open_door(settings.edge, has_keys=bool(keys.owners))
    async with (
        open_clients(settings, history, orchestrator) as clients,
        open_listener(_application(settings.edge, keys, clients), settings.edge) as url,
    ):
        yield Edge(url)


def _application(settings: EdgeSettings, keys: Keys, clients: Clients) -> web.Application:
    app = web.Application(middlewares=MIDDLEWARES, client_max_size=settings.body_limit_bytes)
    app[EDGE_SETTINGS] = settings
    app[API_KEYS] = keys
    app[CLIENTS] = clients
    app[DRAIN] = Drain()
    app[FIRSTS] = Firsts()
    app[RETAINED] = Retained(settings)
    app.on_response_prepare.append(add_headers)
    app.add_routes(ROUTES)
    return app
