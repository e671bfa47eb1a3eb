"""Model architectures: one file each, found by being here."""
