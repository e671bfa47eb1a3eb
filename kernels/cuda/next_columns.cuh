// The columns of the product behind, as columns_int8.cu would leave them, by the kernel that makes
// them: so no launch that rounds them stands between the two.
#pragma once

#include "cuda/int8_columns.cuh"
#include "cuda/rope.cuh"

// Where records lie: [k / 256][groups]. to: null where nobody reads any.
struct RecordsPlace {
  char* to;
  int groups, sums;

  // The record of a block of 32 elements of a column.
  __device__ __forceinline__ char* record(int block, int column) const {
    return to + ((i64)(block / kChunkBlocks) * groups + column / 8) * record_bytes(sums);
  }
  static __device__ __forceinline__ float* numbers(char* record) {
    return reinterpret_cast<float*>(record + kRecordD);
  }
};

// The whole warp, of which a lane has an element of a block each.
__device__ __forceinline__ void put_element(const RecordsPlace& place, int block, int column,
                                            float x) {
  const int lane = threadIdx.x % 32, b = block % kChunkBlocks, within = column % 8;
  const float most = warp_reduce(fabsf(x), Max());
  const int n = (int)four_bytes({x, 0.0f, 0.0f, 0.0f}, inverse_of(most));
  char* const record = place.record(block, column);
  record[(b * 32 + within * 4 + lane % 16 / 4) * 8 + lane / 16 * 4 + lane % 4] = (char)n;
  int2 of = {};
  if (place.sums > 0) {
    of.x = __reduce_add_sync(kAllLanes, lane < 16 ? (int)(signed char)n : 0);
    of.y = __reduce_add_sync(kAllLanes, lane < 16 ? 0 : (int)(signed char)n);
  }
  if (lane == 0) put_numbers(place.numbers(record), b, within, place.sums, scale_of(most), of);
}

// What mul_mat_few.cu leaves. Mirrored by `arguments` in next_columns.py.
struct NextColumns {
  RecordsPlace place;
  const float* norm;  // weights of the norm, or null
  float* squares;     // [8 groups][blocks] of each block, or null
  float2* turns;      // [m, half_dim] cosine and sine, or null
  Turns by;
  int blocks, half_dim;
};

// Lane 4 p + c has of a block's elements 2 p and 2 p + 1, and those 16 later, of column c of four.
struct BlockRows {
  float2 lo, hi;
  __device__ __forceinline__ float4 all() const { return {lo.x, lo.y, hi.x, hi.y}; }
};

// Those of the norm's weights.
__device__ __forceinline__ BlockRows norm_rows(const NextColumns& next, int block, int lane) {
  if (next.norm == nullptr) return {{1.0f, 1.0f}, {1.0f, 1.0f}};
  const float* const from = next.norm + block * 32 + lane / 4 * 2;
  return {*reinterpret_cast<const float2*>(from), *reinterpret_cast<const float2*>(from + 16)};
}

// The block's, in the order of block_squares: a chain goes from lane to lane. Right in lanes of odd
// p.
__device__ __forceinline__ float squares_of(const BlockRows& v, int lane) {
  const auto chain = [](float2 x, float s) { return fmaf(x.y, x.y, fmaf(x.x, x.x, s)); };
  float s = chain(v.lo, 0.0f);
  const float other = __shfl_xor_sync(kAllLanes, s, 4);
  s = chain(v.lo, lane / 4 % 2 ? other : 0.0f);
  s = chain(v.hi, __shfl_xor_sync(kAllLanes, s, 4));
  s = chain(v.hi, __shfl_xor_sync(kAllLanes, s, 4));
  s += __shfl_xor_sync(kAllLanes, s, 8);
  return s + __shfl_xor_sync(kAllLanes, s, 16);
}

// The whole warp. norm: as norm_rows has them. is_column: whether the lane's column is one.
__device__ __forceinline__ void put_rows(const NextColumns& next, int block, int column,
                                         bool is_column, const BlockRows& v, const BlockRows& norm,
                                         int lane) {
  const int p = lane / 4, b = block % kChunkBlocks, within = column % 8;
  if (next.squares != nullptr) {
    const float squares = squares_of(v, lane);
    if (p == 1 && is_column) next.squares[column * next.blocks + block] = squares;
  }
  const float4 x = times(v.all(), norm.all());
  const float most = of_eight_lanes(largest_of(x), Max());
  const u32 n = four_bytes(x, inverse_of(most));
  int2 of = {};
  if (next.place.sums > 0) {
    of = {__dp4a((int)n, 0x00000101, 0), __dp4a((int)n, 0x01010000, 0)};
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      of.x += __shfl_xor_sync(kAllLanes, of.x, step);
      of.y += __shfl_xor_sync(kAllLanes, of.y, step);
    }
  }
  if (!is_column) return;
  char* const record = next.place.record(block, column);
  char* const to = record + (b * 32 + within * 4 + p / 2) * 8 + p % 2 * 2;
  *reinterpret_cast<gf_u16*>(to) = (gf_u16)n;
  *reinterpret_cast<gf_u16*>(to + 4) = (gf_u16)(n >> 16);
  if (p > 0) return;
  put_numbers(RecordsPlace::numbers(record), b, within, next.place.sums, scale_of(most), of);
}
