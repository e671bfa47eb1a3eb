"""What a process on a node is told to run, and how it begins: with a look at its own file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.gguf.errors import GgufError
from gguflow.engine.load import ModelSource, open_model
from gguflow.engine.load.bundled import bundled_folder, bundled_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.models.base import ModelError

from .connect import node_name, use_ray
from .errors import ClusterError, ClusterFileError
from .sameness import check_same, digest, digest_files, program


@dataclass(frozen=True)
class Work:
    """A model, for every process of it.

    path: its file on each node; empty for the bundled model. shape: of random weights, in place of
    a file. options: how it is run. hashes: of the file and each adapter. n_stages: processes that
    hold it together, with layers in the proportions of `shares`. patience: seconds for an answer.
    """

    path: str
    options: Options
    hashes: tuple[str, ...] = ()
    shape: str = ""
    n_stages: int = 1
    shares: tuple[float, ...] = ()
    patience: float = 30.0

    @classmethod
    def of(cls, path: Path, options: Options, **more: Any) -> Work:
        """For a file of this machine, which is read whole for its hash."""
        path = path.absolute()
        lora = tuple((str(Path(file).absolute()), f) for file, f in options.lora)
        options = replace(options, lora=lora)
        hashes = digest(path), *(digest_files([file]) for file, _ in lora)
        # Each node has its own installation, and the bundled model in it.
        shown = "" if bundled_folder() in path.parents else str(path)
        return cls(shown, options, hashes, **more)

    def source(self) -> ModelSource:
        """The model on this node, before any memory is spent on it. Raises ClusterFileError for
        another file, and what `open_model` raises."""
        if self.shape:
            from gguflow.engine.load.random import random_model

            return random_model(self.shape)
        path = self.path or bundled_model()
        found = digest(path), *(digest_files([file]) for file, _ in self.options.lora)
        check_same(here(), str(path), found, self.hashes)
        return open_model(path)


@dataclass(frozen=True)
class Started:
    """Where a process runs, its number there, and what computes."""

    node: str
    pid: int
    program: str

    @classmethod
    def of(cls, model: Model) -> Started:
        """This process."""
        held = (b for b in model.backends.values() if b.holds)
        return cls(here(), os.getpid(), program(held))


def here() -> str:
    """The node this process is on."""
    return node_name(use_ray())


@contextmanager
def named_errors() -> Iterator[None]:
    """What goes wrong in a process's start as a ClusterError that names its node."""
    try:
        yield
    except (GgufError, ModelError) as e:
        raise ClusterFileError(f"node {here()}: {e}") from None
    except (MemoryError, OSError) as e:
        raise ClusterError(f"node {here()}: {e}") from None
