"""The history service: items, responses and checkpoints in Postgres. The only room with SQL."""
