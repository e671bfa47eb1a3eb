"""The ops, one file each; importing this package registers them all.

Files are found, not listed: a new op is a new file.
"""

from __future__ import annotations

from importlib import import_module

from gguflow.engine.found import modules_in

for _module in modules_in(__path__):
    if _module.name != "__main__":  # the table generator runs when imported
        import_module(f"{__name__}.{_module.name}")
