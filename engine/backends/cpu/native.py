"""The native CPU library: which instruction set, where it lies, what it exports."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path

from gguflow.engine import env, interrupt
from gguflow.engine.found import file_of
from gguflow.engine.graph import DType

from .abi import ABI_VERSION, GfOp, GfTensor

# Best first, of both families of processors: a library is built for one of them.
ISAS = ("amx", "avx512bf16", "avx512", "avx2", "i8mm", "dotprod", "baseline")


class CpuLibraryError(RuntimeError):
    """The native kernels are missing, stale, or not for this machine."""


class ThreadError(CpuLibraryError):
    """The system does not give the threads that are asked for."""


class CpuLibrary:
    """One loaded library. Exports are looked up by name: `gf_op_<op>`, `gf_init_<op>`, ..."""

    def __init__(self, isa: str, path: Path) -> None:
        self.isa = isa
        try:
            self.cdll = ctypes.CDLL(str(path))
        except OSError as e:
            raise CpuLibraryError(f"cannot load {path}: {e}; reinstall gguflow") from None
        found = self.cdll.gf_abi_version()
        if found != ABI_VERSION:
            raise CpuLibraryError(
                f"{path}: kernel interface {found}, expected {ABI_VERSION}; rebuild gguflow"
            )
        for name, mirror in (("gf_tensor", GfTensor), ("gf_op", GfOp)):
            size = self.cdll.gf_abi_bytes(name.encode())
            if size != ctypes.sizeof(mirror):
                raise CpuLibraryError(
                    f"{path}: a {name} has {size} bytes, expected {ctypes.sizeof(mirror)}; "
                    "rebuild gguflow"
                )
        pool_run = self.cdll.gf_pool_run
        pool_run.restype = ctypes.c_int32
        pool_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p,
                             ctypes.c_int64, ctypes.c_void_p]  # fmt: skip
        self.cdll.gf_pool_run_linked.restype = None
        self.cdll.gf_pool_create.restype = ctypes.c_void_p
        self.cdll.gf_pool_create.argtypes = [ctypes.c_int32] * 3
        self.cdll.gf_pool_destroy.restype = None
        self.cdll.gf_pool_destroy.argtypes = [ctypes.c_void_p]
        self.cdll.gf_interrupt.restype = None
        interrupt.add(self.cdll.gf_interrupt)
        self._addresses: dict[str, int] = {}
        if self.address("gf_heed"):
            heed, cancel = self.cdll.gf_heed, self.cdll.gf_cancel
            for word in (heed, cancel):
                word.restype, word.argtypes = None, [ctypes.c_void_p]
            interrupt.add_word(heed, cancel)

    def address(self, symbol: str) -> int:
        """Address of an exported function, 0 when there is none."""
        if symbol not in self._addresses:
            fn = getattr(self.cdll, symbol, None)
            value = ctypes.cast(fn, ctypes.c_void_p).value if fn is not None else 0
            self._addresses[symbol] = value or 0
        return self._addresses[symbol]

    def scratch_bytes(self, op: str, record: GfOp, n_threads: int) -> int:
        """Scratch that a kernel asks for; 0 for kernels that need none."""
        if not self.address(f"gf_scratch_{op}"):
            return 0
        fn = getattr(self.cdll, f"gf_scratch_{op}")
        fn.restype = ctypes.c_int64
        return int(fn(ctypes.byref(record), ctypes.c_int32(n_threads)))

    def needs_init(self, op: str, record: GfOp) -> bool:
        """Whether an op with a preparation phase needs it for these operands: one barrier less."""
        return self._says(f"gf_needs_init_{op}", record)

    def packed_bytes(self, dtype: DType, n_rows: int, n_cols: int) -> int:
        """Bytes of a matrix in the kernels' interleaved layout; 0 when the type has none."""
        fn = self.cdll.gf_packed_bytes
        fn.restype = ctypes.c_int64
        shape = ctypes.c_int64(n_rows), ctypes.c_int64(n_cols)
        return int(fn(ctypes.c_int32(dtype.ggml_id), *shape))

    def accepts(self, op: str, record: GfOp) -> bool:
        """Whether the kernel takes these types and layouts; kernels without a say take all."""
        return self._says(f"gf_supports_{op}", record)

    def reads_packed(self, op: str, operand: int, stack: bool = False) -> bool:
        """Whether a kernel takes this operand in the interleaved layout. stack: of matrices, one
        after the other, each of whole groups of rows."""
        symbol, bit = f"gf_packed_{op}", operand + (16 if stack else 0)
        return bool(self.address(symbol)) and bool(getattr(self.cdll, symbol)() >> bit & 1)

    def _says(self, symbol: str, record: GfOp) -> bool:
        """What a kernel answers; true of those that are not to be asked."""
        if not self.address(symbol):
            return True
        fn = getattr(self.cdll, symbol)
        fn.restype = ctypes.c_int32
        return bool(fn(ctypes.byref(record)))


def _library_path(isa: str) -> Path:
    suffix = ".dll" if platform.system() == "Windows" else ".so"
    return file_of("gguflow.kernels.cpu", "lib", f"libgguflow_cpu_{isa}{suffix}")


def runnable_isas() -> list[str]:
    """Instruction sets that were built and that this machine runs, best first."""
    base = _library_path("baseline")
    if not base.is_file():
        raise CpuLibraryError(f"{base} is missing; reinstall gguflow (pip install .)")
    probe = ctypes.CDLL(str(base))
    return [
        isa for isa in ISAS if _library_path(isa).is_file() and probe.gf_cpu_supports(isa.encode())
    ]


@cache
def load_library(isa: str | None = None) -> CpuLibrary:
    """The library for `isa`, by default GGUFLOW_CPU_ISA or the best one this machine runs.

    Raises CpuLibraryError naming what is possible.
    """
    can = runnable_isas()
    wanted = isa or env.cpu_isa() or can[0]
    if wanted not in can:
        raise CpuLibraryError(
            f"CPU instruction set {wanted!r} is not available here; possible: {', '.join(can)}"
        )
    return CpuLibrary(wanted, _library_path(wanted))
