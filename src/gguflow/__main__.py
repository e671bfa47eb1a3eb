"""`python -m gguflow` is the `gguflow` command."""

from gguflow.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
