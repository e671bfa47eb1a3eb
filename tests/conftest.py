"""Fixtures every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory of reference models and vocabularies kept beside the checkout, if there is one."""
    if not (SHARED_DATA / "stories260K.gguf").is_file():
        pytest.skip("reference data is not beside the checkout (../shared/data)")
    return SHARED_DATA
