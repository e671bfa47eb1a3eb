"""Python's search for garbage, in a process that serves: while it looks through all there is,
nobody gets a token. Of what modules, the application and a loaded model are made nothing becomes
garbage before the model is put away, so it need not be looked through."""

from __future__ import annotations

import gc


def put_aside() -> None:
    """Leave out what is there now, until the next `collect`."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    """Look through everything, what was put aside too."""
    gc.unfreeze()
    gc.collect()
