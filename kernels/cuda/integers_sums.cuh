// The sums of the four quarters of k together, in order.
#pragma once

#include "cuda/integers_block.cuh"

// Where float4 f of a thread's sums belongs.
struct Spot {
  int matrix, pair, column;
};
template <int N>
__device__ __forceinline__ Spot spot_of(const ColumnsArgs& a, int tile, int group, int thread,
                                        int f) {
  const Tile at = tile_of<kPairs>(a, tile);
  return {at.matrix, at.pair + thread / 32 * 8 + thread % 32 / 4,
          group * N + f * 8 + thread % 4 * 2};
}

// Quarters that a block gives to sum_integers: of each block four, [N / 8][256 threads] of float4.
// The first is of all its quarters of a tile that begin with the tile's first, the others are of
// quarters 1, 2 and 3 of a tile that another block has begun.
template <int N>
__device__ __forceinline__ float4* part_of(const ColumnsArgs& a, int block, int part) {
  return a.parts + (i64)(block * kQuarters + part) * (N / 8 * kConsumers);
}

// A block's quarters. Each thread has its own place for sums.
template <int N>
struct Adder {
  static constexpr int F = N / 8;  // float4s of a thread
  const IntegersArgs& args;
  const Memory& m;

  // A quarter's sums: onto those before it, or for sum_integers.
  __device__ __forceinline__ void add(const Unit& u, int quarter,
                                      const float (&sums)[N / 2]) const {
    float4* const to = u.begin == 0 ? m.sums : part_of<N>(args.c, blockIdx.x, quarter);
#pragma unroll
    for (int f = 0; f < F; ++f) {
      float4* const at = to + f * kConsumers + threadIdx.x;
      const float4 y = u.begin == 0 && quarter > 0 ? *at : float4{};
      const float* const v = sums + f * 4;
      *at = {y.x + v[0], y.y + v[1], y.z + v[2], y.w + v[3]};
    }
  }
  // After the last of a unit's quarters.
  __device__ __forceinline__ void end(const Unit& u) const {
    if (u.begin > 0 || !u.own) return;
    const ColumnsArgs& a = args.c;
    const float4* const from = m.sums + threadIdx.x;
    if (u.end < kQuarters) {
      float4* const to = part_of<N>(a, blockIdx.x, 0) + threadIdx.x;
#pragma unroll
      for (int f = 0; f < F; ++f) to[f * kConsumers] = from[f * kConsumers];
      return;
    }
    constexpr int AT_ONCE = 2;  // whose latencies overlap
#pragma unroll 1
    for (int first = 0; first < F; first += AT_ONCE) {
      Spot spots[AT_ONCE];
      Beside besides[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        spots[i] = spot_of<N>(a, u.tile, u.group, threadIdx.x, first + i);
        besides[i] = beside_of(a, spots[i].matrix, spots[i].pair, spots[i].column);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const Spot& s = spots[i];
        finish(a, s.matrix, s.pair, s.column, from[(first + i) * kConsumers], besides[i]);
      }
    }
  }
};
