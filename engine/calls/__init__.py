"""Calls of functions: the form each chat template writes them in, its grammar, its parser."""
