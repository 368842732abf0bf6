"""Engines and hosted APIs, one file per wire."""
