"""The HTTP edge: responses, conversations, models, the relayed paths, health and metrics, over HTTP and WebSockets. Stores nothing: what it
remembers goes with its connection or its process; both services do the work."""
