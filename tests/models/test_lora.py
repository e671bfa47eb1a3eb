"""LoRA adapters against weights with the adapters' products added, alone and by request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_files import (
    ALPHA,
    GREEDY,
    IDS,
    RANK,
    Made,
    generated,
    nmse,
    write_adapter,
    write_model,
)
from tiny_model import tiny_hparams, tiny_weights

from gguflow.engine.model import Model
from gguflow.engine.options import OptionError
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.models.base import ModelError, architecture


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("lora"))


def test_an_adapter_is_what_it_adds_to_the_weights(made: Made) -> None:
    base = Model.load(made.model).logits(IDS)
    for scales in ((1.0, 0.0), (0.5, -1.0)):
        lora = tuple(zip(made.files, scales, strict=True))
        found = Model.load(made.model, lora=lora).logits(IDS)
        expected = made.merged(*scales).logits(IDS)
        assert nmse(found, expected) < 1e-8
        assert nmse(found, base) > 1e-3
    none = Model.load(made.model, lora=tuple((f, 0.0) for f in made.files)).logits(IDS)
    assert nmse(none, base) < 1e-10


def test_factors_can_change_and_adapters_cannot(made: Made) -> None:
    model = Model.load(made.model, lora=((made.files[0], 1.0),))
    found = model.with_options(lora=((made.files[0], 0.5),)).logits(IDS)
    assert nmse(found, made.merged(0.5, 0.0).logits(IDS)) < 1e-8
    with pytest.raises(OptionError, match="`lora`: adapters are loaded with the model"):
        model.with_options(lora=((made.files[1], 1.0),))


def test_token_by_token_and_in_pieces(made: Made) -> None:
    model = Model.load(made.model, lora=((made.files[0], 1.0),), n_ubatch=4)
    whole = made.merged(1.0, 0.0).logits(IDS)
    assert nmse(model.logits(IDS), whole) < 1e-8
    session = model.session
    session.rewind(0)
    for i, token in enumerate(IDS):
        last = session.step([token], "last")[0]
        assert nmse(last.reshape(-1), whole[i]) < 1e-8


def test_requests_with_their_own_factors_share_runs(made: Made) -> None:
    choices = [None, (0.0, 0.0), (1.0, 0.0), (0.0, -2.0), (1.0, 0.0)]
    expected = []
    for factors in choices:
        alone = made.merged(*(factors or (0.5, 0.5)))
        expected.append(generated(Engine(alone), [Request(IDS, 12, GREEDY)])[0])
    lora = tuple((f, 0.5) for f in made.files)
    model = Model.load(made.model, lora=lora, n_seqs=4)
    requests = [Request(IDS, 12, GREEDY, lora=factors) for factors in choices]
    assert generated(Engine(model), requests) == expected
    assert len({tuple(e) for e in expected}) > 2


def test_factors_are_one_an_adapter(made: Made) -> None:
    engine = Engine(Model.load(made.model, lora=((made.files[0], 1.0),)))
    with pytest.raises(ValueError, match="lora: 2 factors for 1 adapters"):
        engine.add(Request(IDS, 1, lora=(1.0, 2.0)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"general.type": "model"}, "general.type is 'model', expected 'adapter'"),
        ({"adapter.type": "ia3"}, "adapter.type is 'ia3', expected 'lora'"),
        ({"general.architecture": "qwen2"}, "general.architecture is 'qwen2', expected 'llama'"),
    ],
)
def test_files_that_are_no_adapter_of_the_model(
    made: Made, tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_adapter(tmp_path / "a.gguf", made.adapters[0], **keys)
    with pytest.raises(ModelError, match=message):
        Model.load(made.model, lora=((str(path), 1.0),))


def test_tensors_that_do_not_fit_are_named(made: Made, tmp_path: Path) -> None:
    def load(tensors: dict[str, np.ndarray]) -> None:
        path = write_adapter(tmp_path / "a.gguf", tensors)
        Model.load(made.model, lora=((str(path), 1.0),))

    zeros = np.zeros((RANK, 8), np.float32)
    with pytest.raises(ModelError, match="tensor blk.0.attn_q.weight.lora_b is missing"):
        load({"blk.0.attn_q.weight.lora_a": zeros})
    with pytest.raises(ModelError, match="the model has no blk.9.attn_q.weight"):
        load({"blk.9.attn_q.weight.lora_a": zeros, "blk.9.attn_q.weight.lora_b": zeros})
    with pytest.raises(ModelError, match=r"do not fit blk.0.attn_q.weight"):
        load({"blk.0.attn_q.weight.lora_a": zeros, "blk.0.attn_q.weight.lora_b": zeros})
    with pytest.raises(ModelError, match="blk.0.attn_norm.weight.lora_magnitude: neither lora_a"):
        load({"blk.0.attn_norm.weight.lora_magnitude": zeros})


def test_experts(tmp_path: Path) -> None:
    model = architecture("qwen3moe")(tiny_hparams("qwen3moe"))
    values = tiny_weights(model)
    tensors: dict[str, np.ndarray] = {}
    changed = dict(values)
    for name in ("blk.0.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"):
        e, n, k = values[name].shape
        rng = np.random.default_rng(n)
        a, b = (rng.standard_normal(s).astype(np.float16).astype(np.float32) * 0.125
                for s in ((e, RANK, k), (e, n, RANK)))  # fmt: skip
        tensors |= {f"{name}.lora_a": a, f"{name}.lora_b": b}
        changed[name] = (values[name] + ALPHA / RANK * (b @ a)).astype(np.float32)
    base = write_model(tmp_path / "m.gguf", "qwen3moe", values)
    merged = write_model(tmp_path / "merged.gguf", "qwen3moe", changed)
    keys = {"general.architecture": "qwen3moe"}
    adapter = write_adapter(tmp_path / "a.gguf", tensors, **keys)
    found = Model.load(base, lora=((str(adapter), 1.0),)).logits(IDS)
    assert nmse(found, Model.load(merged).logits(IDS)) < 1e-8
    assert nmse(found, Model.load(base).logits(IDS)) > 1e-3
