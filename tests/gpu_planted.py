"""python tests/gpu_planted.py memcheck|racecheck launch|graph: a fault of that kind, in a launch of
its own or in one of a captured graph. compute-sanitizer has to name it (tests/sanitize_gpu.sh)."""

from __future__ import annotations

import sys

import cupy

CODE = r"""
extern "C" __global__ void writes_beyond(float* p, int n) { p[n + threadIdx.x] = 1.0f; }
extern "C" __global__ void forgets_a_barrier(float* p, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = p[threadIdx.x];
  p[threadIdx.x] = s[n - 1 - threadIdx.x];
}
"""
N = 64
FAULTS = {"memcheck": "writes_beyond", "racecheck": "forgets_a_barrier"}


def main(tool: str, by_graph: bool) -> None:
    kernel = cupy.RawKernel(CODE, FAULTS[tool])
    memory = cupy.cuda.runtime.malloc(4 * N)
    stream = cupy.cuda.Stream(non_blocking=True)
    args = memory, cupy.int32(N)
    with stream:
        if not by_graph:
            kernel((1,), (N,), args)
        else:
            stream.begin_capture()
            kernel((1,), (N,), args)
            graph = stream.end_capture()
            graph.launch(stream)
    stream.synchronize()


if __name__ == "__main__":
    main(sys.argv[1], by_graph=sys.argv[2] == "graph")
