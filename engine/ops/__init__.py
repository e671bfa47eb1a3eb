"""Op specifications: one file each, found by being here."""
