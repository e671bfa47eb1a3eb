"""Quantized element types: one file each, found by being here."""
