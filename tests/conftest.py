"""Fixtures every test may use."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_queue
import pytest
from reference_families import unpack

from gguflow.engine.backends import cpu
from gguflow.engine.backends.cpu import native

SHARED_DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-lib", metavar="DIR", help="other builds of the CPU kernels to test")


def pytest_configure(config: pytest.Config) -> None:
    if queue := os.environ.get("QUEUE"):
        gpu_queue.join(config, queue)
    if config.option.markexpr == "not slow":
        config.pluginmanager.register(_LeftOut())
    folder = config.getoption("--cpu-lib")
    if folder:
        # Sets that were built there, of those that this machine runs.
        at = {isa: Path(folder) / f"libgguflow_cpu_{isa}.so" for isa in native.runnable_isas()}
        built = [isa for isa, path in at.items() if path.is_file()]
        native.runnable_isas = cpu.runnable_isas = lambda: built
        native._library_path = at.__getitem__


@pytest.hookimpl(trylast=True)  # of what -m leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """SHARD=i/n: every n-th test, beginning with the i-th, for the scripts of sanitizers."""
    if shard := os.environ.get("SHARD"):
        i, n = map(int, shard.split("/"))
        config.hook.pytest_deselected(items=[x for k, x in enumerate(items) if k % n != i])
        items[:] = items[i::n]


class _LeftOut:
    """Of `make test`: tests that are slow or want a GPU where there is none are not even made, of
    which there are ten thousand. With any other -m they are, and say why they are skipped."""

    GPU = "tests that need a GPU are left out: there is no CuPy (pip install 'gguflow[cuda13]')"

    def __init__(self) -> None:
        self._gpu = "cupy" not in sys.modules and find_spec("cupy") is None

    def _is_out(self, collector: pytest.Collector, test: Any) -> bool:
        own = getattr(test, "pytestmark", [])
        marks = {m.name for m in (*collector.iter_markers(), *own) if isinstance(m, pytest.Mark)}
        return "slow" in marks or (self._gpu and "gpu" in marks)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, obj: Any) -> Any:
        return [] if callable(obj) and self._is_out(collector, obj) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Nor are arguments that are slow, unless all of a test's are."""
        parametrize = metafunc.parametrize

        def without_slow(names: Any, values: Iterable[Any], *args: Any, **more: Any) -> None:
            values = list(values)
            slow = [any(m.name == "slow" for m in getattr(v, "marks", ())) for v in values]
            if any(slow) and not all(slow):
                values = [v for v, left_out in zip(values, slow, strict=True) if not left_out]
                if isinstance(ids := more.get("ids"), Sequence):
                    more["ids"] = [x for x, left_out in zip(ids, slow, strict=True) if not left_out]
            parametrize(names, values, *args, **more)

        metafunc.parametrize = without_slow  # type: ignore[method-assign]

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """Of Schemathesis, whose tests collect themselves."""
        test = getattr(collector, "test_function", None)
        if test is None or not self._is_out(collector, test):
            return None
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._gpu:
            terminalreporter.write_line(self.GPU)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tens of thousands of tests stay to the end: the collector need not go through them meanwhile,
    nor again and again as they run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def architectures_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of tiny models of many families with their own implementations' logits."""
    return unpack(tmp_path_factory.mktemp("architectures"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory of reference models and vocabularies kept beside the checkout, if there is one."""
    if not (SHARED_DATA / "stories260K.gguf").is_file():
        pytest.skip("reference data is not beside the checkout (../shared/data)")
    return SHARED_DATA
