"""Low-rank adapters beside the weights of a model (LoRA, Hu et al. 2021, arXiv 2106.09685)."""

from .variant import LoraVariant

VARIANT = LoraVariant()
