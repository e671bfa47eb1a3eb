"""Runtime: a plan bound to memory and lowered, ready to run again and again."""

from .bind import BoundPlan, bind
from .exchange import LinkError
from .places import BoundMemory, host_array
from .together import Together

__all__ = ["BoundMemory", "BoundPlan", "LinkError", "Together", "bind", "host_array"]
