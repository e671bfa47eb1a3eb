"""What the commands of this family share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..load import random_source

if TYPE_CHECKING:
    from gguflow.engine.load import ModelSource


def add_relu_model(p: ArgumentParser) -> None:
    """-m and --random."""
    p.add_argument("-m", "--model", metavar="FILE",
                   help="GGUF model with ReLU; default: the bundled one")  # fmt: skip
    p.add_argument("--random", metavar="SHAPE:TYPE",
                   help="random weights in a named shape instead of a file")  # fmt: skip


def bundled_relu_model() -> Path:
    """The ReLU model that ships with the package. Raises UsageError where there is none."""
    from gguflow.engine.load.bundled import bundled_folder

    found = sorted(p for p in bundled_folder().glob("*.gguf") if "relu" in p.name)
    if not found:
        raise UsageError(
            "-m/--model is needed: this installation comes without a bundled ReLU model"
        )
    return found[0]


def open_relu(args: Namespace) -> ModelSource:
    """The model of -m, --random or the bundled one. Raises ModelError when it is not of ReLU."""
    from gguflow.engine.load import open_model
    from gguflow.models.base import ModelError
    from gguflow.models.relu import ReluLayers

    if args.random is not None:
        if args.model is not None:
            raise UsageError("-m/--model and --random exclude each other")
        source = random_source(args.random)
    else:
        source = open_model(args.model if args.model is not None else bundled_relu_model())
    if not isinstance(source.arch, ReluLayers):
        raise ModelError(
            f"{source.path}: architecture {source.arch.name} has no ReLU in its feed-forward "
            "layers: all of its neurons are always active"
        )
    return source


def check_output(flag: str, path: str | None) -> None:
    """Raises UsageError when a file cannot be written there: before the work, not after it."""
    if path is None:
        return
    if Path(path).is_dir():
        raise UsageError(f"{flag} {path}: Is a directory")
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{flag} {path}: no directory {folder}")
