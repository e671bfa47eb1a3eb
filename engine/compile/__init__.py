"""From graph to plan: fuse, place, split, memory."""
