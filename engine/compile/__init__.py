"""From graph to plan: fuse, place, split, memory. Pure functions; no device needed."""

from .describe import fallbacks, human_bytes, listing, summary
from .exchanges import Exchanged, exchange_sizes
from .fuse import RULES, fuse, fuse_graph
from .memory import ALIGN, ArenaPlan, plan_memory, round_up
from .place import Placement, PlacementError, PlacementRules, layer_overrides, place
from .plan import Plan, PlanOptions, SpaceBytes, compile_graph
from .prune import prune
from .rewrite import recorded_before, replace_values
from .row_padding import pad_rows, padded_bytes, padded_strides, row_gap, with_gaps
from .schedule import (
    Meeting,
    Recv,
    Send,
    Step,
    UnlinkableError,
    check_side_by_side,
    reductions,
    schedule,
)
from .shard import split_columns, split_rows, split_sum, sum_before
from .split import Copy, Segment, split
from .types import BackendInfo, ChannelBytes

__all__ = [
    "ALIGN", "RULES", "ArenaPlan", "BackendInfo", "ChannelBytes", "Copy", "Exchanged", "Meeting",
    "Placement", "PlacementError", "PlacementRules", "Plan", "PlanOptions", "Recv", "Segment",
    "Send", "SpaceBytes", "Step", "UnlinkableError", "check_side_by_side", "compile_graph",
    "exchange_sizes", "fallbacks", "fuse", "fuse_graph", "human_bytes", "layer_overrides",
    "listing", "place", "pad_rows", "padded_bytes", "padded_strides", "plan_memory", "prune",
    "recorded_before", "reductions", "replace_values", "round_up", "row_gap", "schedule", "split",
    "split_columns", "split_rows", "split_sum", "sum_before", "summary", "with_gaps",
]  # fmt: skip
