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

// Whether a wait would be over at once.
__device__ __forceinline__ bool barrier_passed(u64* bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
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
