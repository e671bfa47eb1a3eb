"""A profile to record into, and to write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .load import gpu, note

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.profile import Profile


def new_profile(model: Model) -> Profile:
    """An empty profile of a model, with the measured peaks of its backends (a quarter second)."""
    from gguflow.engine.profile import Peaks, Profile
    from gguflow.engine.profile.machine import machine_name

    measured = {name: backend.peaks() for name, backend in model.backends.items()}
    peaks = {name: Peaks(*roofs) for name, roofs in measured.items() if roofs}
    device = gpu(model)
    machine = ", ".join([*([device.processor] if device else []), machine_name()])
    name = Path(model.source.path).name
    return Profile(model=name, threads=model.n_threads, peaks=peaks, machine=machine)


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile in the form its ending names, and say so."""
    from gguflow.engine.profile import write_profile

    note(f"profile: {write_profile(profile, path)}")
