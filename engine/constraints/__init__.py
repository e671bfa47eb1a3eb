"""Constrained answers: grammars and schemas that decide which tokens may come next."""
