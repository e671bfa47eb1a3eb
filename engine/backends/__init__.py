"""Backends: found by name."""
