"""Per-op profiles and their exports."""
