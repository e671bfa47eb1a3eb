// Tiles of a tensor map that one thread asks for (TMA): they come into shared memory in rows of 128
// bytes, whose pieces of 16 are swizzled, as products of warpgroups read them. Only for the sm_90a
// target.
#pragma once

#include "cuda/bulk_copy.cuh"

constexpr int kTileK = 64, kTileRow = 2 * kTileK;  // of a tile's row: elements, bytes

// CUtensorMap.
struct alignas(64) TensorMap {
  u64 words[16];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A tile of four dimensions, from these indices on; policy: of the second-level cache.
__device__ __forceinline__ void bring_tile(u32 to, const TensorMap& map, u64* bar, int i0, int i1,
                                           int i2, int i3, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(i0), "r"(i1), "r"(i2), "r"(i3), "r"(shared_address(bar)), "l"(policy)
      : "memory");
}
// The same into the same place of several blocks of the cluster, and for their barriers. blocks: a
// bit for each.
__device__ __forceinline__ void bring_tile_to(u32 blocks, u32 to, const TensorMap& map, u64* bar,
                                              int i0, int i1, int i2, int i3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(i0), "r"(i1), "r"(i2), "r"(i3), "r"(shared_address(bar)),
      "h"((unsigned short)blocks)
      : "memory");
}
// Of two dimensions.
__device__ __forceinline__ void bring_tile(u32 to, const TensorMap& map, u64* bar, int i0, int i1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(i0), "r"(i1), "r"(shared_address(bar))
      : "memory");
}
__device__ __forceinline__ void bring_tile_to(u32 blocks, u32 to, const TensorMap& map, u64* bar,
                                              int i0, int i1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(i0), "r"(i1), "r"(shared_address(bar)), "h"((unsigned short)blocks)
      : "memory");
}

#endif
