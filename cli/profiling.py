"""A profile to record into, and to write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .load import note

if TYPE_CHECKING:
    from gguflow.engine.profile import Profile
    from gguflow.engine.session import Model


def new_profile(model: Model) -> Profile:
    """An empty profile of a model, with the measured peaks of its backends (a quarter second)."""
    from gguflow.engine.profile import Peaks, Profile

    measured = {name: backend.peaks() for name, backend in model.backends.items()}
    peaks = {name: Peaks(*roofs) for name, roofs in measured.items() if roofs}
    return Profile(model=Path(model.source.path).name, threads=model.n_threads, peaks=peaks)


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile in the form its ending names, and say so."""
    from gguflow.engine.profile import write_profile

    note(f"profile: {write_profile(profile, path)}")
