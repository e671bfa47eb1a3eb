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

// The same, or 16 zeros without reading any.
__device__ __forceinline__ void copy16_or_zeros(u32 to, const char* from, bool copied) {
  const int n = copied ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n)
               : "memory");
}

// The same for N bytes, 4 or 8, through the first-level cache.
template <int N>
__device__ __forceinline__ void copy_or_zeros(u32 to, const char* from, bool copied) {
  const int n = copied ? N : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "r"(n)
               : "memory");
}

// The copies that this thread has asked for since the last call are a group.
__device__ __forceinline__ void copies_end() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the last N groups of this thread are there.
template <int N>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// This thread arrives at a barrier when the copies that it has asked for are there.
__device__ __forceinline__ void arrive_with_copies(u64* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(bar))
               : "memory");
}
