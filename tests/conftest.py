"""Fixtures for all tests. Those of one room stand in that room's conftest."""
