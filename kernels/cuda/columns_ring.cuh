// Columns that a block of mul_mat_columns.cu or mul_mat_fragments_many.cu gets through a ring of
// stages in shared memory.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/ring.cuh"

constexpr int kTileK = 64;  // elements of a stage of columns

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// One thread. The N columns of this block's group, from one tile of kTileK elements to another.
template <int N, class RINGS>
__device__ __forceinline__ void bring_columns(const ColumnsArgs& a, const RINGS& rings, int begin,
                                              int end) {
  constexpr u32 STAGE = N * kTileK * 2;
  const char* const x = a.x + (i64)blockIdx.z * (a.k / kTileK) * STAGE;
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for (int tile = begin; tile < end; ++tile) {
    barrier_wait(rings.x_free + at.stage, at.parity ^ 1);
    const u32 bar = shared_address(rings.x_full + at.stage);
    expect_bytes(bar, STAGE);
    copy_bulk(shared_address(rings.x + at.stage * STAGE), x + (i64)tile * STAGE, STAGE, bar);
    at.next(a.x_stages);
  }
}

#endif
