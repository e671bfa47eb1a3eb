// One column times two rows of quantized weights, summed in the order of int8_columns.cuh: the
// inner part of mul_mat_one.cu. How lanes read the weights is vec_weights.cuh's.
//
// A piece of a row is 2048 elements, 64 a lane. The column lies in shared memory as int8, like the
// columns of mul_mat_vec.cuh.
#pragma once

#include "cuda/int8_columns.cuh"
#include "cuda/vec_tables.cuh"

// What is taken from the codes of types whose offset is a multiple of the scale.
template <class W>
constexpr int kBias = 0;
template <>
constexpr int kBias<block_q4_0> = 8;
template <>
constexpr int kBias<block_q5_0> = 16;
template <>
constexpr int kBias<block_q6_K> = 32;
template <>
constexpr int kBias<block_q3_K> = 4;

constexpr int kInt8Bytes = kChunk / 64 * (64 + 2 * sizeof(XBlock));  // of a piece of the column
constexpr int kBatch = 2;  // of 256 elements that a warp asks for at once

// Whether a lane's two blocks are neighbours in k.
template <class W>
constexpr bool kInOrder = !is_same<W, block_q6_K>::value;

// The column as int8, and the squares of its chunks if there is a norm. by: the norm's first
// weights, which were asked for earlier.
__device__ __forceinline__ void load_int8(const float* x, const float* norm, int k, char* to,
                                          float* squares, Octet (&by)[kBatch]) {
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = k / kChunkK, octet = octet_at(lane), b = lane / 4;
#pragma unroll 1
  for (int base = 0; base < chunks; base += kBatch * warps) {
    Octet v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = base + i * warps + warp;
      if (chunk < chunks) v[i] = ask_octet(x + chunk * kChunkK + octet);
      if (chunk < chunks && norm != nullptr && base > 0) {
        by[i] = ask_octet(norm + chunk * kChunkK + octet);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = base + i * warps + warp;
      if (chunk >= chunks) break;
      if (norm != nullptr) {
        const float sum = squares_of(v[i]);
        if (lane == 0) squares[chunk] = sum;
        v[i] = times(v[i], by[i]);
      }
      const Int8Octet r = rounded(v[i]);
      const int2 sums = r.sums();
      char* const piece = to + chunk / 8 * kInt8Bytes;
      const int unit = chunk % 8 * 4 + b / 2, quad = b % 2 * 2;
      char* const quads = piece + (quad * 32 + unit) * 16 + lane % 4 * 4;
      *reinterpret_cast<u32*>(quads) = r.n.x;
      *reinterpret_cast<u32*>(quads + 32 * 16) = r.n.y;
      if (lane % 4 == 0) {
        const XBlock block = {r.d, {(short)sums.x, (short)sums.y}};
        reinterpret_cast<XBlock*>(piece + kChunk)[2 * unit + b % 2] = block;
      }
    }
  }
}

// A block of the column, in two halves.
struct ColumnBlock {
  Words4 a, b;
  int sum0, sum1;
  float d;

  // Block h of a lane.
  template <class W>
  static __device__ __forceinline__ ColumnBlock load(const char* piece, int lane, int h) {
    const int unit = Vec<W>::unit(lane, h), part = Vec<W>::half(lane, h);
    const XBlock block = reinterpret_cast<const XBlock*>(piece + kChunk)[2 * unit + part];
    return {words_at(piece + (part * 64 + unit) * 16),
            words_at(piece + (part * 64 + 32 + unit) * 16), block.sum[0], block.sum[1], block.d};
  }
};

// Sums of chunks of a warp's two rows.
struct Int8Sums {
  static constexpr int N = kChunk;
  float2* of_chunks;  // [whole pieces] of both rows, in shared memory
  int chunks;

  // w: rows W's bytes apart; x: the column; n elements of piece number `piece`.
  template <class W>
  __device__ __forceinline__ void add(const char* w, const char* x, int piece, int n, int lane) {
    float y[kRows][2] = {}, d[2] = {};
    if (lane * 64 < n) {
      const char* const column = x + piece * kInt8Bytes;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const auto raw = Vec<W>::load(w + r * Vec<W>::BYTES, lane);
        const ColumnBlock block0 = ColumnBlock::load<W>(column, lane, 0);
        const ColumnBlock block1 = ColumnBlock::load<W>(column, lane, 1);
        y[r][0] = times<W, 0>(raw, lane, block0);
        y[r][1] = times<W, 1>(raw, lane, block1);
        d[0] = block0.d;
        d[1] = block1.d;
      }
    }
    // A chunk's chain goes from lane to lane. Every lane computes at every step; what counts is the
    // lane that has the step's blocks, and in the end the last of four.
    float acc[kRows] = {};
#pragma unroll
    for (int step = 0; step < (kInOrder<W> ? 4 : 8); ++step) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (kInOrder<W>) {
          if (step > 0) acc[r] = __shfl_up_sync(kAllLanes, acc[r], 1);
          acc[r] = fmaf(d[1], y[r][1], fmaf(d[0], y[r][0], acc[r]));
        } else {  // lanes 0 1 0 1 2 3 2 3 have blocks 0 to 7
          if (step > 0) acc[r] = __shfl_xor_sync(kAllLanes, acc[r], step == 4 ? 3 : 1);
          acc[r] = fmaf(d[step / 2 % 2], y[r][step / 2 % 2], acc[r]);
        }
      }
    }
    if (lane % 4 == 3) of_chunks[piece * (kChunk / kChunkK) + lane / 4] = {acc[0], acc[1]};
  }

  // Block H of this lane: y of int8_columns.cuh.
  template <class W, int H>
  static __device__ __forceinline__ float times(const typename Vec<W>::Raw& raw, int lane,
                                                const ColumnBlock& x) {
    u32 q[8];
    const Scales s = Vec<W>::template block<H>(raw, lane, q);
    int dot0 = -kBias<W> * x.sum0, dot1 = -kBias<W> * x.sum1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      dot0 = __dp4a((int)q[i], (int)x.a.v[i], dot0);
      dot1 = __dp4a((int)q[4 + i], (int)x.b.v[i], dot1);
    }
    const float y = Vec<W>::SPLIT ? fmaf(s.s0, (float)dot0, __fmul_rn(s.s1, (float)dot1))
                                  : __fmul_rn(s.s0, (float)(dot0 + dot1));
    if (kBias<W> != 0 || !Vec<W>::MIN) return y;
    if (Vec<W>::SPLIT) return fmaf(-s.m1, (float)x.sum1, fmaf(-s.m0, (float)x.sum0, y));
    return fmaf(-s.m0, (float)(x.sum0 + x.sum1), y);
  }

  // Both rows' sums; the whole warp.
  __device__ __forceinline__ float2 result(int lane) const {
    __syncwarp();
    const int length = (chunks + 3) / 4, begin = lane % 4 * length;
    const float* const mine = reinterpret_cast<const float*>(of_chunks) + lane / 4 % 2;
    float quarter = 0.0f, total = 0.0f;
#pragma unroll 4
    for (int c = begin; c < min(begin + length, chunks); ++c) quarter += mine[2 * c];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      total += __shfl_sync(kAllLanes, quarter, (lane & ~3) + q);
    }
    __syncwarp();  // the next rows' sums come here
    return {__shfl_sync(kAllLanes, total, 0), __shfl_sync(kAllLanes, total, 4)};
  }
};
