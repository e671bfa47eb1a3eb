"""Runtime: a plan bound to memory and lowered, ready to run again and again."""

from .bind import BoundPlan, bind
from .exchange import LinkError
from .places import BoundMemory, host_array
from .together import Together
from .workspace import Workspace

__all__ = ["BoundMemory", "BoundPlan", "LinkError", "Together", "Workspace", "bind", "host_array"]
