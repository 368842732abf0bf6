"""The HTTP edge: Responses, models, the relayed paths, health and metrics over HTTP. Keeps no state; both services do the work."""
