"""Time and memory in proportion to what is asked: small files that would cost much, and do not.

Times are of the processor, and of a larger case against a smaller one, so that a busy machine does
not matter.
"""

from __future__ import annotations

import gc
import random
import struct
import time
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_hparams, write_tiny

import gguflow
from gguflow.engine.gguf import GgufError, GgufFile, StringArray
from gguflow.engine.graph import F32, Graph, op_spec
from gguflow.engine.load.source import ModelSource, WeightSource
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.planning import token_key
from gguflow.models.base import architecture
from gguflow.models.shapes import metadata
from gguflow.models.tokenizer import Tokenizer
from gguflow.models.tokenizer.long_numbers import cut_numbers
from gguflow.models.tokenizer.pretokenizers import PRE_TOKENIZERS


def seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def deep(n_layer: int) -> ModelSource:
    """A model of so many layers without weights."""
    arch = architecture("llama")(tiny_hparams("llama", n_layer=n_layer))
    weights = {
        s.name: WeightSource(s.name, F32, s.shape, lambda: np.empty(0), lambda: None)
        for s in arch.weights()
        if not s.optional
    }
    return ModelSource("deep", dict(metadata(arch)), arch, weights, (), 0)


def test_planning_is_linear_in_layers() -> None:
    def plan(n_layer: int) -> float:
        source = deep(n_layer)
        return seconds(lambda: Model(source, Options(n_ctx=64)).plan(token_key()))

    plan(10)  # imports
    small, large = plan(60), plan(480)
    assert large < 20 * small  # of squares it would be 64


@pytest.mark.slow
def test_planning_of_thousands_of_layers() -> None:
    def plan(n_layer: int) -> float:
        source = deep(n_layer)
        return seconds(lambda: Model(source, Options(n_ctx=64)).plan(token_key()))

    plan(10)
    small, large = plan(512), plan(4096)
    assert large < 16 * small  # ten seconds of one processor; of squares it would be ten minutes


def test_cost_of_attention_at_any_length() -> None:
    """A closed form: equal to the sum over tokens, and as quick for two thousand million."""

    def pairs(n_tok: int, n_kv: int, window: int, n_single: int) -> int:
        g = Graph()
        q = g.input("q", F32, (n_tok, 1, 1))
        k, v = (g.state(x, F32, (2048, 1, 1)) for x in "kv")
        pos, seq = (g.input(x, gguflow.engine.graph.I32, (n_tok,)) for x in ("pos", "seq"))
        table = g.input("t", gguflow.engine.graph.I32, (1, 32))
        out = g.attention(q, k, v, pos, seq, table, None, scale=1.0, window=window,
                          n_single=n_single)  # fmt: skip
        spec = op_spec("attention")
        one = 4 + spec._cost.__globals__["_SCORE"]
        flops = spec._cost(out, n_kv)[1]
        assert flops % one == 0
        return flops // one

    rng = random.Random(4)
    for _ in range(200):
        n_tok, n_kv = rng.randrange(1, 40), rng.randrange(1, 60)
        window, n_single = rng.choice([0, 1, 5, 30]), rng.randrange(0, n_tok + 1)
        rest, width = n_tok - n_single, window or n_kv
        each = min(max(n_kv - max(rest, 1) + 1, 1), width)
        slow = n_single * each + sum(min(max(n_kv - i, 0), width) for i in range(rest))
        assert pairs(n_tok, n_kv, window, n_single) == slow


def test_planning_of_very_long_prompts(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", n_ctx_train=1 << 28)
    model = Model(gguflow.engine.load.open_model(path), Options(n_ctx=(1 << 31) - 1))
    from gguflow.engine.plan_key import step_key

    assert seconds(lambda: model.plan(step_key((1 << 31) - 1, "last", True)).flops()) < 2


def test_many_empty_tokens() -> None:
    """A vocabulary of nothing is refused before it becomes objects."""
    for n, message in ((1 << 22, "at most 1048576"), (100_000, "100000 empty tokens")):
        stored = bytes(8 * n)
        bounds = __import__("array").array("q", range(0, 8 * n + 1, 8))
        values = {"tokenizer.ggml.model": "llama",
                  "tokenizer.ggml.tokens": StringArray(stored, bounds)}  # fmt: skip
        tracemalloc.start()
        with pytest.raises(GgufError, match=message):
            Tokenizer.from_metadata(values, "x.gguf")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        tracemalloc.stop()


def test_too_many_tensors(tmp_path: Path) -> None:
    n = 1 << 20
    entry = struct.pack("<Q1sIQIQ", 1, b"a", 1, 8, 0, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n, 0) + entry * n)
    with pytest.raises(GgufError, match="number of tensors: found 1048576, expected at most"):
        GgufFile.open(path)


@pytest.mark.parametrize("name", ["superbpe", "tiny_aya", "afmoe"])
def test_long_numbers(name: str) -> None:
    """Cut where the patterns cut them, in time that is linear in their length."""
    rules = PRE_TOKENIZERS[name]
    assert rules.grouping is not None

    def words(text: str) -> list[str]:
        return [word for word, _ in rules.splitter().pre_tokenize_str(text)]

    rng = random.Random(7)
    beside, n_cut = "²½٣Ⅷabc _é\u0301.一\n", 0
    for _ in range(40):
        text = ""
        for _ in range(3):
            digits = rng.choice(["0123456789", "01²Ⅷ٣"])
            text += "".join(rng.choices(beside, k=rng.randrange(4)))
            text += "".join(rng.choices(digits, k=rng.randrange(1, 1000)))
        pieces = cut_numbers(text, rules.grouping)
        n_cut += len(pieces) > 1
        assert "".join(pieces) == text
        assert [w for piece in pieces for w in words(piece)] == words(text)
    assert n_cut > 10
    pieces = cut_numbers("1" * 100_001 + "x", rules.grouping)
    assert max(map(len, pieces)) < 400


def test_a_model_is_freed_with_its_last_user(tmp_path: Path) -> None:
    """At once, not when the cycle collector comes by: weights and caches are gigabytes."""
    path = write_tiny(tmp_path / "m.gguf")
    gc.disable()
    try:
        for use in (
            lambda m: None,
            lambda m: list(m.generate("A", max_tokens=2, seed=1)),
            lambda m: list(m.generate_many(["A", "B"], max_tokens=2, seed=1)),
            lambda m: m.logits([1, 2]),
            lambda m: m.embed("A"),
            lambda m: list(m.new_session().generate([1, 2], 2)),
        ):
            model = gguflow.Model.load(path)
            use(model)
            refs = [weakref.ref(x) for x in (model, model.weights, model.source, model.session,
                                             *model.weights.buffers.values())]  # fmt: skip
            del model
            assert all(r() is None for r in refs)
    finally:
        gc.enable()
