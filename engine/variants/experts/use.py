"""How often each expert is chosen: counted on a text, or read from an importance matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

import numpy as np

from gguflow.engine import env
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.graph import I64, Graph, Tensor
from gguflow.engine.imatrix import read_imatrix
from gguflow.engine.load import ModelSource
from gguflow.engine.options import OptionError
from gguflow.engine.planning import Setup
from gguflow.engine.variants.base import Trial
from gguflow.models.base import ModelError
from gguflow.models.tokenizer import Tokenizer

from .run import expert_layers

Counts = Mapping[int, np.ndarray]  # layer -> how often each expert was chosen
N_TOKENS = 1024  # of the text that is counted on
N_UBATCH = 128
FORMAT = "expert-use"
_DOWN = re.compile(r"blk\.(\d+)\.ffn_down_exps\.weight")


@dataclass
class _Chosen:
    """A rewrite that makes the ids of the chosen experts outputs. layers: of its last graph."""

    layers: list[int]

    def rewrite(self, g: Graph) -> None:
        found = list(expert_layers(g))
        self.layers = [layer.index for layer in found]
        ids: list[Tensor] = [layer.ids for layer in found]
        g.outputs[:0] = ids


def expert_use(setup: Setup, trial: Trial) -> tuple[Counts, str]:
    """How often each expert of a model is chosen, and how that is known, in words: from the file
    that the options name; what was counted before; else counted now and kept.

    Raises OptionError for a file of another model, GgufError for one that cannot be read.
    """
    source = setup.source
    if setup.options.expert_use:
        path = setup.options.expert_use
        return from_imatrix(path, source), f"by {path}"
    kept = env.cache_dir() / "experts" / f"{_model_hash(source)}.use.gguf"
    with suppress(GgufError, OSError):
        return read_use(kept, source), "as counted before"
    counts = count(setup, trial)
    with suppress(GgufError, OSError):  # then the next run counts again
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_use(kept, counts)
    return counts, f"counted on {N_TOKENS} tokens"


def count(setup: Setup, trial: Trial) -> dict[int, np.ndarray]:
    """Load a model as it is set up, and count on a text that ships with the package; on arbitrary
    tokens where it has no vocabulary to read one with."""
    hp = setup.source.arch.hp
    assert hp.experts is not None
    ids = _tokens(setup.source)[: min(N_TOKENS, hp.n_ctx_train)]
    asked = replace(setup.options, n_ctx=len(ids), n_ubatch=N_UBATCH, n_seqs=1)
    chosen = _Chosen([])
    probe = replace(setup, rewrites=(*setup.rewrites, chosen)).under(asked)
    counts: dict[int, np.ndarray] = {}
    for out in trial(probe, ids):
        for k, layer in enumerate(chosen.layers):
            found = np.asarray(out[k]).reshape(-1)
            found = found[(found >= 0) & (found < hp.experts.n)]
            counts.setdefault(layer, np.zeros(hp.experts.n, np.int64))
            counts[layer] += np.bincount(found, minlength=hp.experts.n)
    return counts


def _tokens(source: ModelSource) -> list[int]:
    text = (files("gguflow.models") / "bundled" / "heldout.txt").read_text(encoding="utf-8")
    try:
        return Tokenizer.from_metadata(source.metadata).encode(text[: 16 * N_TOKENS])
    except (GgufError, ModelError, ImportError):
        n_vocab = source.arch.hp.n_vocab
        return np.random.default_rng(0).integers(0, n_vocab, N_TOKENS).tolist()


def from_imatrix(path: str, source: ModelSource) -> dict[int, np.ndarray]:
    """The counts of an importance matrix. Raises OptionError for one that is not of the model."""
    counts = {}
    for name, entry in read_imatrix(path).entries.items():
        if found := _DOWN.fullmatch(name):
            counts[int(found[1])] = entry.counts
    return _checked(counts, source, path)


def _checked(
    counts: dict[int, np.ndarray], source: ModelSource, path: str
) -> dict[int, np.ndarray]:
    """The counts of the model's layers. Raises OptionError where they are not of this model."""
    shapes = {
        int(found[1]): w.shape[0]
        for name, w in source.weights.items()
        if (found := _DOWN.fullmatch(name))
    }
    for layer, n in shapes.items():
        if layer not in counts or len(counts[layer]) != n:
            raise OptionError(
                f"`expert_use` {path}: no counts of the {n} experts of blk.{layer}; is it of "
                f"{source.path}?"
            )
    return {layer: counts[layer] for layer in shapes}


def write_use(path: Path, counts: Counts) -> None:
    """Raises GgufError for a place that cannot be written to."""
    from gguflow.engine.gguf import write_gguf  # with the gguf package, which a run does not need

    tensors = {f"blk.{i}.chosen": (I64, c.shape, c) for i, c in counts.items()}
    write_gguf(path, {"general.architecture": FORMAT}, tensors)


def read_use(path: Path, source: ModelSource) -> dict[int, np.ndarray]:
    """Raises GgufError for what is no such file, or not of the model."""
    with GgufFile.open(path) as f:
        if (found := f.keys.text("general.architecture", None)) != FORMAT:
            raise GgufError(str(path), "key general.architecture", repr(found), repr(FORMAT))
        counts = {
            int(name.split(".")[1]): f.array(name).copy()
            for name, info in f.tensors.items()
            if re.fullmatch(r"blk\.\d{1,9}\.chosen", name) and info.dtype.name == "i64"
        }
    try:
        return _checked(counts, source, str(path))
    except OptionError as e:
        raise GgufError(str(path), "tensors", str(e), "counts of this model") from None


def _model_hash(source: ModelSource) -> str:
    """32 hexadecimal digits, equal for every quantization of a model: of its sizes and norms."""
    hp = source.arch.hp
    h = blake2b(repr((hp.arch, hp.n_vocab, hp.n_embd, hp.n_layer, hp.experts)).encode(),
                digest_size=16)  # fmt: skip
    for name in sorted(n for n in source.weights if n.endswith("_norm.weight")):
        h.update(name.encode())
        h.update(source.weights[name].read().tobytes())
    return h.hexdigest()
