"""The forward pass against figures that llama.cpp printed for the same models and text.

A perplexity depends on every weight, on attention and on the rotary positions, so one number a
model is a witness of all of them. Each figure comes from

    llama-perplexity -m MODEL -f TEXT -c 64 -b 64 -ctk f32 -ctv f32 -fa off

(llama.cpp with ggml 0.25.3) on the file `write_tiny` makes; where a case says so, with more flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny

from gguflow.engine.evaluate import evaluate, windows
from gguflow.engine.graph import F32
from gguflow.engine.model import Model

TEXT = (
    'the fox and the 2 crows met at the well; "who drank it?" asked the fox. [nobody!] said they, '
) * 8
N_CTX = 64
QKV = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
BIASES = (*QKV, "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
OUT = ("output.weight",)


@dataclass(frozen=True)
class Case:
    """perplexity: what llama.cpp prints. keys, changes, optional: as `write_tiny` takes them."""

    name: str
    perplexity: float
    keys: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = OUT

    @property
    def arch(self) -> str:
        return self.name.partition("-")[0]


def scaled(kind: str | None, factor: float, **more: float) -> dict[str, Any]:
    """The keys of a rotary scaling."""
    keys = {".rope.scaling.factor": factor} | ({".rope.scaling.type": kind} if kind else {})
    return keys | {f".rope.scaling.{k}": v for k, v in more.items()}


CASES = [
    Case("llama", 763.6759),
    Case("llama-tied", 734.4767, optional=()),
    Case("llama-every-head-its-own-kv", 869.9083, changes={"n_head_kv": 4}),
    Case("llama-one-kv-head", 601.3978, changes={"n_head_kv": 1}),
    Case("llama-head-24", 393.1547, changes={"head_dim": 24, "head_dim_v": 24, "rope_dims": 24}),
    Case("llama-biases", 691.8978, optional=(*OUT, *BIASES)),
    Case("llama-large-eps", 600.1349, changes={"norm_eps": 0.5}),
    Case("llama-freq-factors", 466.5359, optional=(*OUT, "rope_freqs.weight"),
         changes={"rope_base": 5e5}),
    Case("llama-linear", 577.1526, scaled("linear", 4.0)),
    Case("llama-linear-type-left-out", 587.4378, scaled(None, 2.5)),
    Case("llama-linear-old-key", 577.1526, {".rope.scale_linear": 4.0}),
    Case("llama-none", 763.6759, scaled("none", 2.5)),
    Case("llama-yarn", 617.4433, scaled("yarn", 4.0, original_context_length=64),
         {"n_ctx_train": 256}),
    Case("llama-yarn-trained-context", 617.4433, scaled("yarn", 4.0)),
    Case("llama-yarn-magnitude", 560.4985,
         scaled("yarn", 8.0, original_context_length=32, attn_factor=0.7), {"n_ctx_train": 256}),
    # With --yarn-beta-fast 16 --yarn-beta-slow 2.
    Case("llama-yarn-betas", 528.6280,
         scaled("yarn", 8.0, original_context_length=32, yarn_beta_fast=16.0, yarn_beta_slow=2.0),
         {"n_ctx_train": 256}),
    Case("llama-magnitude", 720.3998, {".rope.scaling.attn_factor": 0.7}),
    Case("llama-linear-magnitude", 488.9124, scaled("linear", 2.0, attn_factor=0.7)),
    Case("qwen2", 689.4725, optional=(*OUT, *QKV)),
    Case("qwen2-tied-one-kv-head", 778.0719, changes={"n_head_kv": 1, "rope_base": 1e6},
         optional=QKV),
    Case("qwen2-yarn", 706.5396, scaled("yarn", 4.0, original_context_length=32),
         optional=(*OUT, *QKV)),
    Case("qwen3", 879.3480),
    Case("qwen3-tied-head-32", 882.0478,
         changes={"head_dim": 32, "head_dim_v": 32, "rope_dims": 32, "rope_base": 1e6},
         optional=()),
    Case("qwen3-linear", 726.5201, scaled("linear", 3.0)),
]  # fmt: skip


def write_case(case: Case, path: Path) -> Path:
    return write_tiny(
        path, case.arch, seed=1, gain=2.0, keys=case.keys,
        optional=case.optional, **case.changes,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_perplexity_is_llama_cpps(case: Case, tmp_path: Path) -> None:
    path = write_case(case, tmp_path / "model.gguf")
    model = Model.load(path, n_ctx=N_CTX, k_type=F32, v_type=F32, n_threads=1)
    tok = model.tokenizer
    chunks = windows(tok.encode(TEXT), N_CTX, tok.bos)
    found = evaluate([model.session], chunks)[0].perplexity.value
    assert found == pytest.approx(case.perplexity, rel=1e-4)


def test_the_cases_tell_the_variants_apart() -> None:
    said_twice = ("llama-none", "llama-linear-old-key", "llama-yarn-trained-context")
    values = sorted(c.perplexity for c in CASES if c.name not in said_twice)
    assert all(b / a > 1 + 1e-3 for a, b in zip(values, values[1:], strict=False))
