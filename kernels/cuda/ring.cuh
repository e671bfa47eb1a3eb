// A ring of stages in shared memory that some warps fill and others empty, each stage with a
// barrier that tells that it is full and one that tells that it is free.
#pragma once

#include "cuda/pipeline.cuh"

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void barrier_make(u64* bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(u64* bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}

// Once for the whole warp.
__device__ __forceinline__ void warp_arrive(u64* bar, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(bar);
}

// A barrier at which to arrive when what was read has come into registers. read: of every load;
// zero: zero, which the compiler must not know. Loads that a warp has only asked for wait in line
// behind other warps' asynchronous copies, and an arrival does not: it overtook them (H200,
// compiler 13), and what was brought next came first.
__device__ __forceinline__ u64* after_reads(u64* bar, u32 read, u32 zero) {
  return bar + (read & zero);
}

// A stage of a ring, and how often it has been passed.
struct Place {
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

#endif
