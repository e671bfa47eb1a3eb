// What becomes of the sums of a block of columns: of all of k from shared memory, of parts of k
// from device memory.
#pragma once

#include "cuda/columns.cuh"

// Of a tile of PAIRS pairs and N columns, those from `columns` on. all: [N][stride], rows of a
// tile, those of a pair being neighbours. AT_ONCE: whose latencies overlap.
template <int PAIRS, int N, int WARPS, int AT_ONCE>
__device__ __forceinline__ void finish_pairs(int kind, const ColumnsArgs& a, const Tile& at,
                                             int columns, const float* all, int stride) {
  constexpr int ROWS32 = PAIRS / 32, ALL = N * ROWS32;
  static_assert(ALL % (WARPS * AT_ONCE) == 0, "warps have the same number of turns");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int first = warp; first < ALL; first += WARPS * AT_ONCE) {
    BesideOne besides[AT_ONCE];
    const auto column_of = [&](int i) { return (first + i * WARPS) / ROWS32; };
    const auto pair_of = [&](int i) { return (first + i * WARPS) % ROWS32 * 32 + lane; };
    if (columns + column_of(0) >= a.m) return;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      besides[i] = beside_one(kind, a, at.matrix, at.pair + pair_of(i), columns + column_of(i));
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const float2 y =
          *reinterpret_cast<const float2*>(all + column_of(i) * stride + 2 * pair_of(i));
      finish_one<true>(kind, a, at.matrix, at.pair + pair_of(i), columns + column_of(i), y.x, y.y,
                       besides[i]);
    }
  }
}

// Sums of parts of k, so many float4s apart, added in order.
__device__ __forceinline__ float4 sum_of_parts(const float4* p, i64 apart, int parts) {
  float4 sum = {};
#pragma unroll 8
  for (int s = 0; s < parts; ++s) {
    const float4 v = __ldcg(p + s * apart);
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  return sum;
}
