"""The real clients, from their registries, against a Turnkeep with a scripted engine: `python -m tests.clients`, or `make clients`."""
