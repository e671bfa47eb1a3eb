"""Families with ReLU in their feed-forward layers: LLaMA as SparseLLM has trained it on (ReLULLaMA,
ProSparse), Bamboo and TurboSparse-Mistral, Falcon. Facts: the models' own code and PowerInfer's
files of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .activation import activation
from .checkpoint import Config, ConvertError
from .family import Change, Family, Weight, llama3_factors, pairs_of_neighbours

Keys = Callable[[Config], Mapping[str, Any]]
_PREDICTOR = re.compile(r"model\.layers\.(\d{1,5})\.mlp\.predictor\.(fc[12])\.weight")
_DOWN = re.compile(
    r"(?:model\.layers|transformer\.h)\.(\d{1,5})\.mlp\.(?:down_proj|dense_4h_to_h)\.weight"
)
# What models of this name have beside ReLU, which is not read here.
_OTHERS = ("sparse_config", "sparsity_config")
_MOST = 1e30  # of thresholds


def by_neuron(change: Change) -> Change:
    """The same with the rows of the down matrix being neurons, and with predictors."""

    def changed(c: Config, w: Weight) -> Iterable[Weight]:
        if found := _PREDICTOR.fullmatch(w.name):
            return [w.changed(lambda x: x, name=f"blk.{found[1]}.{found[2]}.weight")]
        if found := _DOWN.fullmatch(w.name):
            name = f"blk.{found[1]}.ffn_down_t.weight"
            return [w.changed(lambda x: np.ascontiguousarray(x.T), w.shape[::-1], name)]
        return change(c, w)

    return changed


def _relu(keys: Keys, both: bool = False) -> Keys:
    """Of a family's keys those of its form with ReLU. both: on the up projection too."""

    def made(c: Config) -> dict[str, Any]:
        for name in _OTHERS:
            if c.get(name):
                raise ConvertError(f"{c.path}: {name} is not supported")
        found = dict(keys(c))
        if both:
            found["relu_up"] = True
        cut = c.get("hidden_act_param")
        if activation(c) == "fatrelu":
            if isinstance(cut, bool) or not isinstance(cut, int | float) or not 0 <= cut < _MOST:
                raise ConvertError(
                    f"{c.path}: hidden_act_param is {cut!r}, expected a number from 0 on"
                )
            found["relu_threshold"] = float(cut)
        return found

    return made


def relu_families(llama: Keys, falcon: Keys, falcon_tensors: Change) -> tuple[Family, ...]:
    """llama, falcon: keys of these families, and what tensors of Falcon become."""
    return (
        Family("relullama", ("LlamaForCausalLM", "MistralForCausalLM", "LLaMAForCausalLM",
                             "SparseLlamaForCausalLM"), _relu(llama),
               by_neuron(pairs_of_neighbours), llama3_factors, acts=("relu", "fatrelu")),
        Family("relullama", ("BambooForCausalLM",), _relu(llama, True),
               by_neuron(pairs_of_neighbours), llama3_factors, acts=("relu",)),
        Family("relufalcon", ("FalconForCausalLM", "RWForCausalLM"), _relu(falcon),
               by_neuron(falcon_tensors), acts=("relu",)),
    )  # fmt: skip
