// A warp's own pipeline from device memory into shared memory.
//
// On sm_90 one lane asks for whole runs of bytes (bulk copies); before that every lane copies its
// share, 16 bytes at a time. Either way a barrier in shared memory tells when a stage is full.
#pragma once

#include "cuda/bulk_copy.cuh"
#include "cuda/dependent.cuh"

#ifndef GF_BULK
#if __CUDA_ARCH__ >= 900
#define GF_BULK 1
#else
#define GF_BULK 0
#endif
#endif

// One per warp and stage, made by one lane.
__device__ __forceinline__ void barrier_init(u64* bar) {
  const u32 arrivals = GF_BULK ? 1 : 32;
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals)
               : "memory");
}

// After all barriers of a warp are made.
__device__ __forceinline__ void barriers_ready() {
#if GF_BULK
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncwarp();
}

// The whole warp: n barriers, at most 32. A lane each, since a loop would be unrolled, and what a
// kernel does once takes as long as its instructions take to come.
__device__ __forceinline__ void barriers_make(u64* bars, int n, int lane) {
  if (lane < n) barrier_init(bars + lane);
  barriers_ready();
}

__device__ __forceinline__ void barrier_wait(u64* bar, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(bar)), "r"(parity)
        : "memory");
  } while (!done);
}

// Bytes that are read once a token: others may use the L2.
__device__ __forceinline__ u64 read_once() {
  u64 policy = 0;
#if GF_BULK
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// The whole warp: fill a stage with two runs of n bytes (a multiple of 16, from aligned addresses).
__device__ __forceinline__ void fill(char* to0, const char* from0, char* to1, const char* from1,
                                     u32 n, u64* bar, int lane, u64 policy) {
#if GF_BULK
  if (lane == 0) {  // elected() would be faster, and have more in the column's way (docs/LOG.md)
    expect_bytes(bar, 2 * n);
    copy_bulk(to0, from0, n, bar, policy);
    copy_bulk(to1, from1, n, bar, policy);
  }
#else
  for (u32 i = lane * 16; i < n; i += 32 * 16) {
    copy16_async(shared_address(to0 + i), from0 + i);
    copy16_async(shared_address(to1 + i), from1 + i);
  }
  arrive_with_copies(bar);
#endif
}

// One lane of a warp whose lanes are all here.
__device__ __forceinline__ bool elected() {
#if __CUDA_ARCH__ >= 900
  u32 is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(is));
  return is;
#else
  return threadIdx.x % 32 == 0;
#endif
}

// The same for N runs, of lengths of their own. That one lane asks is what the compiler knows here:
// it need not let lanes take turns.
template <int N>
__device__ __forceinline__ void fill_runs(char* const (&to)[N], const char* const (&from)[N],
                                          const u32 (&n)[N], u64* bar, int lane, u64 policy) {
#if GF_BULK
  if (elected()) {
    u32 all = 0;
#pragma unroll
    for (int r = 0; r < N; ++r) all += n[r];
    expect_bytes(bar, all);
#pragma unroll
    for (int r = 0; r < N; ++r) copy_bulk(to[r], from[r], n[r], bar, policy);
  }
  __syncwarp();
#else
#pragma unroll
  for (int r = 0; r < N; ++r) {
    for (u32 i = lane * 16; i < n[r]; i += 32 * 16) {
      copy16_async(shared_address(to[r] + i), from[r] + i);
    }
  }
  arrive_with_copies(bar);
#endif
}
