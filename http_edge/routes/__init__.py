"""All routes of the edge, one file per resource. A new resource is a new file and one entry here."""

from http_edge.routes import conversations, health, metrics, models, relayed, responses, websocket

ROUTES = (
    *responses.ROUTES,
    *websocket.ROUTES,
    *conversations.ROUTES,
    *models.ROUTES,
    *relayed.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
)
