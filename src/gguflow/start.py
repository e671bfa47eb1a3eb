"""The `gguflow` command begins here, where Ctrl-C is heeded before anything else is imported."""

from __future__ import annotations


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from gguflow.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
