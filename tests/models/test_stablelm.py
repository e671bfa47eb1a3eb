"""StableLM's forms: one block after the other or side by side, norms of every head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_hparams, tiny_weights, vocabulary

from gguflow.engine.gguf import write_gguf
from gguflow.engine.graph import F32
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.models.base import ModelError
from gguflow.models.shapes import metadata
from gguflow.models.stablelm import StableLm

IDS = [int(i) for i in np.random.default_rng(7).integers(3, 96, 12)]
HEADS = ("attn_q_norm.weight", "attn_k_norm.weight")
NORM = ("ffn_norm.weight",)


def write(path: Path, parallel: bool, optional: tuple[str, ...] = (), left: str = "") -> Path:
    """optional: tensors beside those that have to be; left: the end of those left out."""
    model = StableLm(tiny_hparams("stablelm"), parallel)
    arrays = tiny_weights(model, optional=("output.weight", *optional), gain=2.0)
    tensors = {n: (F32, a.shape, a) for n, a in arrays.items() if not left or not n.endswith(left)}
    write_gguf(path, dict(metadata(model)) | vocabulary(model.hp.n_vocab), tensors)
    return path


def logits(path: Path, **options: object) -> np.ndarray:
    return Model.load(path, k_type=F32, v_type=F32, **options).logits(IDS)


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


FORMS = {"sequential": (False, ()), "parallel": (True, ()), "heads": (False, HEADS),
         "both": (True, HEADS)}  # fmt: skip


def test_forms_differ(tmp_path: Path) -> None:
    found = [logits(write(tmp_path / f"{name}.gguf", *form)) for name, form in FORMS.items()]
    for i, one in enumerate(found):
        assert all(nmse(other, one) > 1e-3 for other in found[i + 1 :])


@pytest.mark.parametrize("form", FORMS)
def test_kernels_and_several_devices(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "m.gguf", *FORMS[form])
    expected = logits(path, backends=("numpy",))
    assert nmse(logits(path), expected) < 1e-6
    for mode in ("tensor", "layer"):
        devices = ("simulated:0", "simulated:1")
        cut = logits(path, backends=("numpy",), devices=devices, split_mode=mode)
        assert nmse(cut, expected) < 1e-7


def test_a_norm_that_is_there_is_used(tmp_path: Path) -> None:
    """Files of sequential models may say that they are parallel."""
    plain = logits(write(tmp_path / "a.gguf", False))
    said = logits(write(tmp_path / "b.gguf", True, NORM))
    assert np.array_equal(plain, said)


def test_a_norm_that_is_missing_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", False, left="blk.1.ffn_norm.weight")
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_norm\.weight"):
        open_model(path)
