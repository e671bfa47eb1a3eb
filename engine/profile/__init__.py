"""Per-op profiles and their exports."""

from .diff import DiffRow, diff, print_diff
from .errors import ProfileError, ProfileFileError, ProfilePathError
from .export import check_path, write_profile
from .jsonl import Dump, load_jsonl
from .peaks import Peaks, measure_peaks
from .plan_rows import PlanRow, PlanRows
from .record import Header, OpRow, Profile, Recording, StepRow
from .table import print_table

__all__ = [
    "DiffRow", "Dump", "Header", "OpRow", "Peaks", "PlanRow", "PlanRows", "Profile",
    "ProfileError", "ProfileFileError", "ProfilePathError", "Recording", "StepRow", "check_path",
    "diff", "load_jsonl", "measure_peaks", "print_diff", "print_table", "write_profile",
]  # fmt: skip
