// Blocks that share a result: the last of them to arrive joins their parts.
#pragma once

#include "cuda/common.cuh"

// Called by every thread of a block. Adds one to the count, which starts over at zero after the
// n-th; true for that one. What the blocks before wrote is visible to it.
__device__ __forceinline__ bool arrives_last(u32* count, u32 n) {
  __shared__ u32 before;
  __syncthreads();
  if (threadIdx.x == 0) {
    // One operation that releases and acquires, for a fence on either side takes longer.
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(count), "r"(n - 1)
                 : "memory");
  }
  __syncthreads();
  return before == n - 1;
}
