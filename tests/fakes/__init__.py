"""Peers and judges for tests: a scripted engine, a fault proxy, a stream checker and a search for planted secrets. No test data."""
