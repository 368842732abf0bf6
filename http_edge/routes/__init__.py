"""All routes of the edge, one file per resource. A new resource is a new file and one entry here."""

from http_edge.routes import health, metrics, models, relayed, responses

ROUTES = (*responses.ROUTES, *models.ROUTES, *relayed.ROUTES, *health.ROUTES, *metrics.ROUTES)
