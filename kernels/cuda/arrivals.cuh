// Blocks that share a result: the last of them to arrive joins their parts.
#pragma once

#include "cuda/common.cuh"

// Called by every thread of a block. Adds one to the count, which starts over at zero after the
// n-th; true for that one. What the blocks before wrote is visible to it.
__device__ __forceinline__ bool arrives_last(u32* count, u32 n) {
  __shared__ u32 before;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    before = atomicInc(count, n - 1);
    __threadfence();
  }
  __syncthreads();
  return before == n - 1;
}
