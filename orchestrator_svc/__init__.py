"""The orchestrator service: runs turns between the history service and an engine. Keeps no database."""
