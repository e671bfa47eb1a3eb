// Quantized weights times columns that are rounded to int8, in one order of sums for every number
// of columns: mul_mat_one.cu, mul_mat_few.cu (2 to 16 columns) and mul_mat_integers.cu (more) give
// the same bits.
//
// The order of a row's sum is a function of k alone:
//   - A column's 32 elements v = x, or x times the norm's weight rounded once, become integers
//     n = rn(v * inverse), rounded once, with inverse = 127 / most (approximate division) and
//     d = most * (1 / 127).
//   - A block of 32 has the exact integer dot product of n and the weights' integers. With s, s0,
//     s1 the scales and b, b0, b1 the offsets of the block or its halves of 16, sum, sum0 and sum1
//     the columns':
//       one scale     y = rn(s dot)                              then fma(b, sum, y) if it has b
//       two scales    y = fma(s0, dot0, rn(s1 dot1))             then fma(b1, sum1, fma(b0, sum0,
//       y))
//     Weights whose offset is a multiple of the scale are signed integers and have no b.
//   - A chunk of 256 elements has the chain acc = fma(d, y, acc) over its blocks, from 0.
//   - A quarter is ceil(chunks / 4) neighbouring chunks, the last ones what is left. Chunks are
//     added in order from 0 to the quarter's sum, the quarters in order from 0 to the row's sum.
//   - After a norm the sum is multiplied by 1 / sqrtf(squares / k + eps). squares adds the chunks'
//     in order from 0. Lane 4 b + t of a chunk has the chain fma(x, x, .) from 0 over elements
//     32 b + 4 t + {0, 1, 2, 3} and those 16 later, and the lanes are added by warp_reduce.
//
// Columns lie in records of one chunk and eight columns, in the order of mma's fragments:
//   uint2 n[8 blocks][32 lanes]  lane 4 column + t: elements 4 t to 4 t + 3 and those 16 later
//   float d[8][8 columns]
//   float sum[8][8]              of n; in records with SUMS >= 1
//   float sum0[8][8]             of the first 16; in records with SUMS == 2
#pragma once

#include "cuda/four.cuh"

constexpr int kChunkBlocks = 8, kChunkK = 32 * kChunkBlocks;
constexpr int kRecordD = kChunkBlocks * 32 * 8;      // byte at which d lies
constexpr int kRecordFloats = kChunkBlocks * 8 * 4;  // bytes of d, of sum and of sum0

__host__ __device__ constexpr int record_bytes(int sums) {
  return kRecordD + (1 + sums) * kRecordFloats;
}

// What lane 4 b + t of a warp has of a column's chunk: elements 32 b + 4 t to 32 b + 4 t + 3 and
// those 16 later.
struct Octet {
  float4 lo, hi;
};

__device__ __forceinline__ int octet_at(int lane) { return lane / 4 * 32 + lane % 4 * 4; }

// x: of the lane's first element. From memory that another kernel has just written.
__device__ __forceinline__ Octet ask_octet(const float* x) {
  return {__ldcg(reinterpret_cast<const float4*>(x)),
          __ldcg(reinterpret_cast<const float4*>(x + 16))};
}

// Of the whole chunk.
__device__ __forceinline__ float squares_of(const Octet& v) {
  return warp_reduce(add_squares(v.hi, add_squares(v.lo, 0.0f)), Add());
}

// What a column's sums are multiplied by after a norm. of(chunk): its squares.
template <class F>
__device__ __forceinline__ float norm_scale_of(F of, int k, float eps) {
  float sum = 0.0f;
#pragma unroll 16
  for (int c = 0; c < k / kChunkK; ++c) sum += of(c);
  return 1.0f / sqrtf(sum / (float)k + eps);
}
// squares: of its chunks, `step` floats apart, from memory that another kernel has just written.
__device__ __forceinline__ float norm_scale(const float* squares, int step, int k, float eps) {
  return norm_scale_of([=](int c) { return __ldcg(squares + c * step); }, k, eps);
}

__device__ __forceinline__ Octet times(const Octet& v, const Octet& w) {
  return {times(v.lo, w.lo), times(v.hi, w.hi)};
}

// The last byte of 1.5 * 2^23 plus a small integer is that integer.
__device__ __forceinline__ u32 four_bytes(float4 v, float by) {
  const auto bits = [by](float x) { return gf_bits_of(fmaf(x, by, 12582912.0f)); };
  return __byte_perm(__byte_perm(bits(v.x), bits(v.y), 0x0040),
                     __byte_perm(bits(v.z), bits(v.w), 0x0040), 0x5410);
}

__device__ __forceinline__ int sum_of_four_lanes(int x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// A lane's share of a rounded block: its bytes, and what its four lanes have in common.
struct Int8Octet {
  uint2 n;
  float d;

  // Of the block's first and last 16 bytes; the whole warp.
  __device__ __forceinline__ int2 sums() const {
    return {sum_of_four_lanes(__dp4a((int)n.x, 0x01010101, 0)),
            sum_of_four_lanes(__dp4a((int)n.y, 0x01010101, 0))};
  }
};
__device__ __forceinline__ Int8Octet rounded(const Octet& v) {
  float most = fmaxf(largest_of(v.lo), largest_of(v.hi));
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
  const float inverse = most > 1e-30f ? __fdividef(127.0f, most) : 0.0f;
  return {{four_bytes(v.lo, inverse), four_bytes(v.hi, inverse)}, most * (1.0f / 127.0f)};
}

// The whole warp: a column's chunk into a record. n: its bytes; floats: the part that begins at
// kRecordD; column: of the record's eight; sums: how many kinds of sums the record has.
__device__ __forceinline__ void put_column(const Octet& v, int column, int sums, int lane, uint2* n,
                                           float* floats) {
  const int b = lane / 4;
  const Int8Octet r = rounded(v);
  n[b * 32 + column * 4 + lane % 4] = r.n;
  float* const to = floats + b * 8 + column;
  if (lane % 4 == 0) *to = r.d;
  if (sums == 0) return;
  const auto [first, second] = r.sums();
  if (lane % 4 == 0) to[kRecordFloats / 4] = (float)(first + second);
  if (sums > 1 && lane % 4 == 0) to[2 * kRecordFloats / 4] = (float)first;
}
