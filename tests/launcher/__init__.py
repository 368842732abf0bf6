"""Tests of the launcher: the command as its users run it, and what it starts beside the rooms."""
