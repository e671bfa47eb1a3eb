"""PowerInfer's model files (Song et al. 2023, arXiv 2312.12456): GGUF with a magic of its own.

They keep the name of the model that they were made from, which in GGUF means another activation.
"""

from __future__ import annotations

from collections.abc import Mapping

from gguflow.engine.gguf import Typed
from gguflow.models.base import ModelError
from gguflow.models.hparams import architecture_name

MAGIC = "PWRI"
ARCHITECTURES = {"llama": "relullama", "bamboo": "relullama"}  # their name -> GGUF's


def plain_architecture(name: str) -> str:
    """The architecture's name in a plain GGUF file. Raises ModelError listing what there is."""
    if name not in ARCHITECTURES:
        raise ModelError(
            f"general.architecture: PowerInfer's {name!r} is not supported; have "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


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
    if old == "bamboo":
        renamed[f"{new}.relu_up"] = Typed("bool", True)
    return renamed
