"""Where statistics and splits are kept from one run to the next: GGUFLOW_CACHE_DIR/sparse."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from gguflow.engine import env
from gguflow.engine.files import private_folder
from gguflow.engine.load import ModelSource
from gguflow.models.base import ModelError

from .identity import model_hash
from .stats import Activations, from_probabilities, read_stats


class NoStatsError(ModelError):
    """A placement is asked for and nobody counted the model's activations."""


def folder() -> Path:
    """The directory; it need not exist. Raises PermissionError for one that another user may have
    put things into: what is found there decides what runs where."""
    path = env.cache_dir() / "sparse"
    return private_folder(path) if path.is_dir() else path


def stats_path(model: str) -> Path:
    """The statistics of the model with this hash."""
    return folder() / f"{model}.stats.gguf"


def split_path(model: str, budget: int, *depends: object) -> Path:
    """The split of a model for a budget in bytes; depends: what else it was solved from."""
    rest = blake2b(repr(depends).encode(), digest_size=6).hexdigest()
    return folder() / f"{model}.{budget}.{rest}.split.gguf"


def model_stats(source: ModelSource) -> Activations:
    """The statistics kept for a model, or those that random weights were made by. Raises
    NoStatsError, naming the command that counts."""
    if source.activity is not None:
        return from_probabilities(source.activity(), model_hash(source))
    path = stats_path(model_hash(source))
    if not path.is_file():
        raise NoStatsError(
            f"{source.path}: no activation statistics to place its neurons by; "
            "run `gguflow sparse stats` with this model first"
        )
    return check_stats(read_stats(path), source, str(path))


def check_stats(stats: Activations, source: ModelSource, path: str) -> Activations:
    """`stats` when they are of this model. Raises ModelError naming both files."""
    hp = source.arch.hp
    sizes = len(stats.counts), len(stats.counts[0])
    if stats.model_hash != model_hash(source) or sizes != (hp.n_layer, hp.n_ff):
        raise ModelError(
            f"{path}: statistics of another model, {sizes[0]} layers of {sizes[1]} neurons, model "
            f"hash {stats.model_hash}; {source.path} has {hp.n_layer} of {hp.n_ff}, "
            f"hash {model_hash(source)}"
        )
    return stats
