"""Launches the fused gate and up of a layer's experts, for few pairs (row, id): more are faster as
products of their own, by the tensor cores."""

from __future__ import annotations

from gguflow.engine.graph import Tensor

from .expert_vec import FEW
from .launch import Call, Launch, register
from .mul_mat_id import glu_few_launch

OPS = ("mul_mat_id_glu",)


def supports(node: Tensor) -> bool:
    return node.shape[0] * node.shape[1] <= FEW


def launches(call: Call) -> list[Launch]:
    return [glu_few_launch(call)]


register(OPS, launches, supports=supports)
