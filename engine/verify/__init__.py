"""Whether a model computes on this machine what it should: its weights, its text, every op against
the oracle, and its logits against another device's or program's."""

from .checks import Check
from .logits import Difference, LogitsError, read_logits
from .ops import OpRow, by_op, first_fault
from .verify import Report, Settings, verify

__all__ = ["Check", "Difference", "LogitsError", "OpRow", "Report", "Settings", "by_op",
           "first_fault", "read_logits", "verify"]  # fmt: skip
