"""PowerInfer's model files (Song et al. 2023, arXiv 2312.12456): GGUF with a magic of its own.

They keep the name of the model that they were made from, which in GGUF means another activation.
Those of OPT count the two positions that no token has, and do not say the norms' epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguflow.engine.gguf import Typed
from gguflow.engine.gguf.errors import show
from gguflow.engine.gguf.keys import KeyReader
from gguflow.models.base import ModelError
from gguflow.models.hparams import architecture_name
from gguflow.models.opt import UNUSED, Opt

MAGIC = "PWRI"
# Their name -> GGUF's.
ARCHITECTURES = {
    "llama": "relullama", "bamboo": "relullama", "falcon": "relufalcon", "opt": Opt.name
}  # fmt: skip
_CONTEXT, _EPSILON = f"{Opt.name}.context_length", f"{Opt.name}.attention.layer_norm_epsilon"
_OPT_EPSILON = 1e-5  # of every published OPT


def plain_architecture(name: str) -> str:
    """The architecture's name in a plain GGUF file. Raises ModelError listing what there is."""
    if name not in ARCHITECTURES:
        raise ModelError(
            f"general.architecture: PowerInfer's {show(name)} is not supported; have "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def amended(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a file that mean something else in a plain one, or are missing, as it has them."""
    keys = KeyReader(metadata, MAGIC)
    name = keys.find("general.architecture")
    if not isinstance(name, str) or name != Opt.name:  # a file may hold anything under that key
        return {}
    found: dict[str, Any] = {}
    n_ctx = keys.find(_CONTEXT)
    if isinstance(n_ctx, int) and n_ctx > UNUSED:
        found[_CONTEXT] = n_ctx - UNUSED
    if keys.find(_EPSILON) is None:
        found[_EPSILON] = _OPT_EPSILON
    return found


def plain_metadata(metadata: Mapping[str, Typed]) -> dict[str, Typed]:
    """A file's metadata as a plain GGUF file has it."""
    plain = {k: v.value for k, v in metadata.items()}
    old = architecture_name(plain)
    new = ARCHITECTURES.get(old, old)
    renamed = {
        f"{new}{k.removeprefix(old)}" if k.startswith(f"{old}.") else k: v
        for k, v in metadata.items()
    }
    renamed["general.architecture"] = Typed("str", new)
    for key, value in amended(plain).items():
        renamed[key] = Typed("u32" if isinstance(value, int) else "f32", value)
    if old == "bamboo":
        renamed[f"{new}.relu_up"] = Typed("bool", True)
    return renamed
