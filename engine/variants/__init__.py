"""Variants: other ways to run models, each a module or package that is found by being here."""
