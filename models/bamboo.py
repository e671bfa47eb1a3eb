"""Bamboo: ReLULLaMA with ReLU on the up projection too.

Source: PowerInfer team 2024, "Bamboo: a new 7B Mistral-level open LLM with high sparsity".
"""

from __future__ import annotations

from .relullama import ReluLlama


class Bamboo(ReluLlama):
    name = "bamboo"
    usual_relu_up = True
