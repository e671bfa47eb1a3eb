"""Variants of the attention kernels, timed by bench/cuda_attention.py."""

import functools
import sys

import cuda_attention as bench
from gguflow.engine.backends.base import find_backend
from gguflow.kernels.cuda import attention
from gguflow.kernels.cuda.launch import Kernel

VARIANTS = {
    "default": {},
    "near none": {"NEAR_CHUNKS": 0},
    "near plain": {"NEAR_KIND": 1},
    "few 3": {"FEW_HALVES": 3},
    "few 6, near none": {"FEW_HALVES": 6, "NEAR_CHUNKS": 0},
    "listed 3": {"LISTED_HALVES": 3},
    "listed 4": {"LISTED_HALVES": 4},
    "piece 1": {"PIECE": 1},
    "piece 2": {"PIECE": 2},
    "piece 8": {"PIECE": 8},
}


def main() -> None:
    gpu = find_backend("cuda")
    works = [w for w in bench.works() if w.n_tokens == w.n_single]
    for name in sys.argv[1:] or VARIANTS:
        numbers = VARIANTS[name]
        old = {n: getattr(attention, n) for n in numbers if hasattr(attention, n)}
        for n in old:
            setattr(attention, n, numbers[n])
        options = tuple(f"-D{n}={v}" for n, v in numbers.items() if n != "PIECE")
        attention.Kernel = functools.partial(Kernel, options=options)
        print(f"--- {name}", flush=True)
        for w in works:
            single = w.n_single == 1
            if (name.startswith(("near", "few")) and not single) or (
                name.startswith(("listed", "piece")) and single
            ):
                continue
            bench.attention(gpu, w, (32, 8), 128, "f16", name == "default" and w.n_tokens < 20)
        for n, v in old.items():
            setattr(attention, n, v)
    attention.Kernel = Kernel


main()
