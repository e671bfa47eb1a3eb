// Copies from device memory into shared memory that go on while the threads compute.
#pragma once

#include "cuda/common.cuh"

__device__ __forceinline__ u32 shared_address(const void* p) {
  return (u32)__cvta_generic_to_shared(p);
}

// 16 bytes, aligned so; past the first-level cache.
__device__ __forceinline__ void copy16_async(u32 to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
