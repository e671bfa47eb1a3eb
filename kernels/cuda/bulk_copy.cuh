// Whole runs of bytes from device memory into shared memory that one thread asks for (sm_90): of
// multiples of 16, from aligned addresses. A barrier is told what it is to expect, and of the bytes
// as they come. Places in shared memory are pointers, or their addresses there.
#pragma once

#include "cuda/async_copy.cuh"

#if __CUDA_ARCH__ >= 900

// The thread arrives, and so many bytes are to come.
__device__ __forceinline__ void expect_bytes(u32 bar, u32 n) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
__device__ __forceinline__ void expect_bytes(u64* bar, u32 n) {
  expect_bytes(shared_address(bar), n);
}

__device__ __forceinline__ void copy_bulk(u32 to, const char* from, u32 n, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(n), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void copy_bulk(char* to, const char* from, u32 n, u64* bar) {
  copy_bulk(shared_address(to), from, n, shared_address(bar));
}

// policy: of the second-level cache (`read_once`).
__device__ __forceinline__ void copy_bulk(u32 to, const char* from, u32 n, u32 bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(n), "r"(bar), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_bulk(char* to, const char* from, u32 n, u64* bar, u64 policy) {
  copy_bulk(shared_address(to), from, n, shared_address(bar), policy);
}

// To all BLOCKS of the cluster, into the same place and for the same barrier there.
template <int BLOCKS>
__device__ __forceinline__ void copy_bulk_to_all(u32 to, const char* from, u32 n, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(n), "r"(bar), "h"((unsigned short)((1 << BLOCKS) - 1))
      : "memory");
}

#endif
