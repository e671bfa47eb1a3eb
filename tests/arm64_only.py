"""A pytest plugin of .ci/arm64: of the kernels' tests those of one instruction set, ARM64_ISA."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    isa = os.environ["ARM64_ISA"]

    def wanted(item: pytest.Item) -> bool:
        spec = getattr(item, "callspec", None)
        values = spec.params.values() if spec else []
        return isa in values

    config.hook.pytest_deselected(items=[i for i in items if not wanted(i)])
    items[:] = [i for i in items if wanted(i)]
