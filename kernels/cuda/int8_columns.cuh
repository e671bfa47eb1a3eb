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
//     in order from 0. Of a block of 32 there are four chains s[t] of fma(x, x, .) from 0 over
//     elements 4 t + {0, 1, 2, 3} and those 16 later, and its sum is (s[0] + s[1]) + (s[2] + s[3]);
//     a chunk's is of its eight blocks, neighbours first, then neighbouring twos, then both fours.
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

template <class T>
__device__ __forceinline__ T sum_of_four_lanes(T x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
// Of the lanes that are multiples of four apart, neighbours first.
template <class T, class F>
__device__ __forceinline__ T of_eight_lanes(T x, F f) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = f(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// Of a block, whose four lanes get it.
__device__ __forceinline__ float block_squares(const Octet& v) {
  return sum_of_four_lanes(add_squares(v.hi, add_squares(v.lo, 0.0f)));
}
// Of the whole chunk.
__device__ __forceinline__ float squares_of(const Octet& v) {
  return of_eight_lanes(block_squares(v), Add());
}

// What a column's sums are multiplied by after a norm.
__device__ __forceinline__ float norm_scale(float squares, int k, float eps) {
  return 1.0f / sqrtf(squares / (float)k + eps);
}
// The same of chunks. of(chunk): its squares.
template <class F>
__device__ __forceinline__ float norm_scale_of(F of, int k, float eps) {
  float sum = 0.0f;
#pragma unroll 16
  for (int c = 0; c < k / kChunkK; ++c) sum += of(c);
  return norm_scale(sum, k, eps);
}
// The same of squares of blocks, from memory that another kernel has just written. The whole warp:
// lane 4 p + c has a column, one of four, and chunks p, p + 8 and so on of it.
__device__ __forceinline__ float norm_scale_of_blocks(const float* squares, int k, float eps,
                                                      int lane) {
  const int chunks = k / kChunkK;
  float sum = 0.0f;
#pragma unroll 2
  for (int first = 0; first < chunks; first += 8) {
    const int chunk = min(first + lane / 4, chunks - 1);
    const float4* const blocks = reinterpret_cast<const float4*>(squares + chunk * kChunkBlocks);
    const float4 a = __ldcg(blocks), b = __ldcg(blocks + 1);
    const float mine = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const float of = __shfl_sync(kAllLanes, mine, 4 * p + lane % 4);
      if (first + p < chunks) sum += of;
    }
  }
  return norm_scale(sum, k, eps);
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

// By what a block is multiplied whose largest element is `most`, and what undoes it.
__device__ __forceinline__ float inverse_of(float most) {
  return most > 1e-30f ? __fdividef(127.0f, most) : 0.0f;
}
__device__ __forceinline__ float scale_of(float most) { return most * (1.0f / 127.0f); }

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
  const float inverse = inverse_of(most);
  return {{four_bytes(v.lo, inverse), four_bytes(v.hi, inverse)}, scale_of(most)};
}

// What a record has of block b of a column beside its bytes. of: the sums of its halves.
__device__ __forceinline__ void put_numbers(float* floats, int b, int column, int sums, float d,
                                            int2 of) {
  float* const to = floats + b * 8 + column;
  *to = d;
  if (sums > 0) to[kRecordFloats / 4] = (float)(of.x + of.y);
  if (sums > 1) to[2 * kRecordFloats / 4] = (float)of.x;
}

// The whole warp: a column's chunk into a record. n: its bytes; floats: the part that begins at
// kRecordD; column: of the record's eight; sums: how many kinds of sums the record has.
__device__ __forceinline__ void put_column(const Octet& v, int column, int sums, int lane, uint2* n,
                                           float* floats) {
  const int b = lane / 4;
  const Int8Octet r = rounded(v);
  n[b * 32 + column * 4 + lane % 4] = r.n;
  const int2 of = sums > 0 ? r.sums() : int2{};
  if (lane % 4 == 0) put_numbers(floats, b, column, sums, r.d, of);
}
