"""Per-op profiles and their exports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import ProfileError, ProfileFileError, ProfilePathError
from .peaks import Peaks
from .plan_rows import PlanRow, PlanRows
from .record import ActivityRow, Header, OpRow, Profile, Recording, StepRow

if TYPE_CHECKING:
    from .diff import DiffRow, diff, print_diff
    from .export import check_path, write_profile
    from .jsonl import Dump, load_jsonl
    from .sparse import print_sparse_table
    from .table import print_table

__all__ = [
    "ActivityRow", "DiffRow", "Dump", "Header", "OpRow", "Peaks", "PlanRow", "PlanRows", "Profile",
    "ProfileError", "ProfileFileError", "ProfilePathError", "Recording", "StepRow", "check_path",
    "diff", "load_jsonl", "print_diff", "print_sparse_table", "print_table", "write_profile",
]  # fmt: skip

# A session needs the recorder alone; rich and the exports take as long to import as a small model
# takes to load.
_LATER = {
    "DiffRow": "diff", "diff": "diff", "print_diff": "diff", "check_path": "export",
    "write_profile": "export", "Dump": "jsonl", "load_jsonl": "jsonl", "print_table": "table",
    "print_sparse_table": "sparse",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_LATER[name]}")
    # All of its names at once: importing the submodule `diff` hides the function of that name.
    globals().update({n: getattr(module, n) for n, m in _LATER.items() if m == _LATER[name]})
    return globals()[name]
