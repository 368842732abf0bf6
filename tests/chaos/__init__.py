"""Kills services and Postgres at random moments under load, and looks whether anything that a client was told is gone."""
