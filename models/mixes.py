"""Quantization mixes: which element type each tensor of a model gets under a name like Q4_K_M.

The names and the choices are llama.cpp's (`llama-quantize`), so that files and figures compare. A
mix is a base type and exceptions: some tensors hurt more than others when they lose bits, first of
all the output head, the values of attention and the second feed-forward matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import DType, dtype_by_name

# (layer, layers, query heads per KV head) -> type name, or None for the mix's base type
Choice = Callable[[int, int, int], str | None]


class MixError(ValueError):
    """A quantization name that does not exist: lists those that do."""


def _always(name: str) -> Choice:
    return lambda layer, layers, group: name


def _where(test: Callable[[int, int], bool], name: str) -> Choice:
    return lambda layer, layers, group: name if test(layer, layers) else None


def _many_heads(name: str) -> Choice:
    return lambda layer, layers, group: name if group >= 4 else None


def _first_eighth(name: str) -> Choice:
    return _where(lambda layer, layers: layer < layers // 8, name)


def _sensitive(layer: int, layers: int) -> bool:
    """The first and last eighth of the layers and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


@dataclass(frozen=True)
class Mix:
    """base: type of all matrices without a choice of their own."""

    base: str
    attn_v: Choice | None = None
    attn_output: Choice | None = None
    ffn_down: Choice | None = None
    head: str = "q6_K"  # of the output, or of embeddings that are the output
    embeddings: str | None = None  # of other embeddings
    experts: str | None = None  # of matrices of three dimensions


MIXES: dict[str, Mix] = {
    "F32": Mix("f32"),
    "F16": Mix("f16"),
    "BF16": Mix("bf16"),
    "Q4_0": Mix("q4_0"),
    "Q4_1": Mix("q4_1"),
    "Q5_0": Mix("q5_0"),
    "Q5_1": Mix("q5_1"),
    "Q8_0": Mix("q8_0", head="q8_0"),
    "Q2_K": Mix(
        "q2_K",
        attn_v=lambda layer, layers, group: "q4_K" if group >= 4 else "q3_K",
        attn_output=_always("q3_K"),
        ffn_down=_always("q3_K"),
    ),
    "Q3_K_S": Mix("q3_K"),
    "Q3_K_M": Mix(
        "q3_K",
        attn_v=lambda layer, layers, group: "q5_K" if layer < 2 else "q4_K",
        attn_output=_always("q4_K"),
        ffn_down=lambda layer, layers, group: "q5_K" if layer < layers // 16 else "q4_K",
    ),
    "Q3_K_L": Mix("q3_K", _always("q5_K"), _always("q5_K"), _always("q5_K")),
    "Q4_K_S": Mix(
        "q4_K",
        attn_v=_where(lambda layer, layers: layer < 4, "q5_K"),
        ffn_down=_where(lambda layer, layers: layer < layers // 8, "q5_K"),
    ),
    "Q4_K_M": Mix("q4_K", attn_v=_where(_sensitive, "q6_K"), ffn_down=_where(_sensitive, "q6_K")),
    "Q5_K_S": Mix("q5_K"),
    "Q5_K_M": Mix("q5_K", attn_v=_where(_sensitive, "q6_K"), ffn_down=_where(_sensitive, "q6_K")),
    "Q6_K": Mix("q6_K"),
    "IQ4_NL": Mix("iq4_nl", _many_heads("q5_K"), ffn_down=_first_eighth("q5_K")),
    "IQ4_XS": Mix("iq4_xs", _many_heads("q5_K"), ffn_down=_first_eighth("q5_K")),
    "TQ1_0": Mix("tq1_0", embeddings="q4_K"),
    "TQ2_0": Mix("tq2_0", embeddings="q4_K"),
    "MXFP4_MOE": Mix("q8_0", head="q8_0", experts="mxfp4"),
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# Of the matrices that predict which neurons fire. All of their bytes are read for every token, and
# only signs matter. An exact predictor in q5_0 misses 2.5 % of the neurons that fire, which have
# 1.6e-5 of the gates' energy (q4_0: 4.9 % and 1.3e-4; q8_0: 0.3 % and nothing).
PREDICTOR_TYPES = {"q8_0": "q8_0", "q6_K": "q8_0"}  # by the mix's base type; else q5_0

_BLOCK_PART = re.compile(r"blk\.(\d{1,9})\.(\w+)\.weight")

# With an importance matrix the first layers' second feed-forward matrix gets another type, or, for
# None, no type of its own.
WEIGHTED_DOWN = {"iq4_nl": None, "iq4_xs": None, "q4_0": "q4_1", "q5_0": "q5_1"}

# Parts of names of tensors that no mix touches, as in llama.cpp: small, and worth more than the
# bytes they take.
KEPT = (
    "_norm.weight", "ffn_gate_inp", "position_embd", "token_types", "attn_rel_b.weight",
    "ssm_conv1d", "shortconv.conv.weight", "time_mix_", "altup", "laurel", "per_layer_model_proj",
)  # fmt: skip

# A row length that a type's block does not divide takes the next type of smaller blocks.
FALLBACKS = {"q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0",
             "iq4_xs": "iq4_nl", "tq1_0": "q4_0", "tq2_0": "q4_0"}  # fmt: skip


def find_mix(name: str) -> Mix:
    """The mix called `name`, case ignored. Raises MixError listing the names."""
    upper = name.upper()
    mix = MIXES.get(ALIASES.get(upper, upper))
    if mix is None:
        raise MixError(f"unknown quantization {name!r}; have {', '.join([*MIXES, *ALIASES])}")
    return mix


def tensor_type(
    mix: Mix,
    name: str,
    shape: tuple[int, ...],
    n_layer: int,
    group: int,
    tied: bool,
    pure: bool = False,
    weighted: bool = False,
) -> DType:
    """The element type of tensor `name` (shape in numpy order) under `mix`.

    group: query heads per KV head. tied: there is no output.weight, so the embeddings are the head.
    pure: the base type for every matrix. weighted: an importance matrix is used. What is no product
    (norms, biases, routers) is float32.
    """
    if len(shape) < 2 or not name.endswith("weight") or any(part in name for part in KEPT):
        return dtype_by_name("f32")
    chosen = mix.base
    if not pure and dtype_by_name(mix.base).is_quantized:
        if name == "output.weight" or (tied and name == "token_embd.weight"):
            chosen = mix.head
        elif name == "token_embd.weight":
            chosen = mix.embeddings or chosen
        elif len(shape) > 2 and mix.experts:
            chosen = mix.experts
        elif found := _BLOCK_PART.fullmatch(name):
            layer, part = int(found[1]), found[2].removesuffix("_t").removesuffix("_exps")
            choice = {"attn_v": mix.attn_v, "attn_output": mix.attn_output,
                      "ffn_down": mix.ffn_down}.get(part)  # fmt: skip
            if weighted and part == "ffn_down" and mix.base in WEIGHTED_DOWN:
                choice = _first_eighth(WEIGHTED_DOWN[mix.base] or mix.base)
            chosen = (choice and choice(layer, n_layer, group)) or chosen
            if part in ("fc1", "fc2"):
                chosen = PREDICTOR_TYPES.get(mix.base, "q5_0")
            if part == "attn_v" and n_layer == 80 and group > 1 and chosen in ("q3_K", "q4_K"):
                # The 70B models' eight heads share one V: more bits for it cost little there.
                chosen = "q5_K"
    while shape[-1] % dtype_by_name(chosen).block:
        chosen = FALLBACKS.get(chosen, "f16")
    return dtype_by_name(chosen)
