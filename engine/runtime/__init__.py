"""Runtime: a plan bound to memory and lowered, ready to run again and again."""

from .bind import BoundPlan, bind
from .exchange import LinkError
from .places import BoundMemory, host_array

__all__ = ["BoundMemory", "BoundPlan", "LinkError", "bind", "host_array"]
