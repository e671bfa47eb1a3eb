// One column times two weight rows, summed in the orders of int8_columns.cuh and float_columns.cuh:
// the inner part of mul_mat_one.cu. How lanes read quantized weights is vec_weights.cuh's.
//
// A piece of a row is 2048 elements of quantized weights, 64 a lane, or 512 of 16-bit ones. The
// column lies in shared memory: as int8 like the columns of mul_mat_vec.cuh, or as 16-bit floats in
// their own order.
#pragma once

#include "cuda/float_columns.cuh"
#include "cuda/int8_columns.cuh"
#include "cuda/mma.cuh"
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

// -- quantized weights ---------------------------------------------------------------------------

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
  __device__ __forceinline__ void add(const char* w, const char* x, int, int piece, int n,
                                      int lane) {
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

  __device__ __forceinline__ void end_slice(bool, int) {}

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

// -- 16-bit weights ------------------------------------------------------------------------------

constexpr int kFloatPiece = 512;  // elements

// Eight neighbouring elements: lane l of a chunk of 256 has elements 8 l and following.
struct Eight32 {
  float4 lo, hi;
};
__device__ __forceinline__ Eight32 ask_eight(const float* x) {
  return {__ldcg(reinterpret_cast<const float4*>(x)),
          __ldcg(reinterpret_cast<const float4*>(x + 4))};
}

template <class T>
__device__ __forceinline__ uint4 rounded(const Eight32& v, float scale) {
  const float4 lo = times(v.lo, scale), hi = times(v.hi, scale);
  return {Float<T>::pair(lo.x, lo.y), Float<T>::pair(lo.z, lo.w), Float<T>::pair(hi.x, hi.y),
          Float<T>::pair(hi.z, hi.w)};
}

// The column as 16-bit floats. Returns what its sums are multiplied by. squares: room for those of
// the chunks, and a float a warp behind them; by: as for load_int8. The whole block, which then
// sees the column.
template <class T>
__device__ __forceinline__ float load_floats(const float* x, const float* norm, int k, float eps,
                                             char* to, float* squares, Eight32 (&by)[kBatch]) {
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = (k + kSquaresChunk - 1) / kSquaresChunk, step = kBatch * warps;
  constexpr bool SCALED = is_same<T, f16>::value;
  float* const largest_of_warps = squares + chunks;
  Eight32 v[kBatch];
  const auto element = [&](int base, int i) {
    return (base + i * warps + warp) * kSquaresChunk + lane * 8;
  };
  // Of the columns' elements from `base` on, times the norm's weights.
  const auto ask = [&](int base, bool with_squares) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int e = element(base, i);
      v[i] = {};
      if (e < k) v[i] = ask_eight(x + e);
      if (e < k && norm != nullptr && chunks > step) by[i] = ask_eight(norm + e);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = base + i * warps + warp;
      if (norm == nullptr || chunk >= chunks) break;
      if (with_squares) {
        const float sum = warp_reduce(add_squares(v[i].hi, add_squares(v[i].lo, 0.0f)), Add());
        if (lane == 0) squares[chunk] = sum;
      }
      v[i] = {times(v[i].lo, by[i].lo), times(v[i].hi, by[i].hi)};
    }
  };
  const auto put = [&](int base, float scale) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int e = element(base, i);
      if (e < k) *reinterpret_cast<uint4*>(to + 2 * e) = rounded<T>(v[i], scale);
    }
  };

  // Without a norm, the scale is one but for a few columns: these are read again.
  float largest = 0.0f;
#pragma unroll 1
  for (int base = 0; base < chunks; base += step) {
    ask(base, true);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      largest = fmaxf(largest, fmaxf(largest_of(v[i].lo), largest_of(v[i].hi)));
    }
    if (norm == nullptr) put(base, 1.0f);
  }
  if (SCALED) {
    largest = warp_reduce(largest, Max());
    if (lane == 0) largest_of_warps[warp] = largest;
  }
  __syncthreads();
  if (!SCALED && norm == nullptr) return 1.0f;
  float scale = 1.0f, power = 1.0f;
  if (norm != nullptr) scale = float_norm_scale(sum_of_chunks(squares, chunks), k, eps);
  if (SCALED) {
    largest = warp_reduce(lane < warps ? largest_of_warps[lane] : 0.0f, Max());
    power = power_of(largest * scale);
    scale *= 1.0f / power;
    if (norm == nullptr && power == 1.0f) return 1.0f;
  }
#pragma unroll 1
  for (int base = 0; base < chunks; base += step) {
    if (chunks > step) ask(base, false);
    put(base, scale);
  }
  __syncthreads();
  return power;
}

// Sums of the parts of a slice. A product of 16 by 8 by 16 has eight parts of both rows as its rows
// and the same parts of the column as its columns: what counts is where both are the same part's.
template <class T>
struct FloatSums {
  static constexpr int N = kFloatPiece;
  bool two;              // whether a part takes blocks by twos
  float acc[2][4] = {};  // parts 0 to 7 and 8 to 15
  float2 total = {};

  struct Operands {
    uint4 upper, lower, x;
  };

  __device__ __forceinline__ Operands load(const char* w, const char* x, int block, int n,
                                           int lane) const {
    const int at = block * 64 + lane % 4 * 16;
    if (block * 32 >= n) return {};
    return {*reinterpret_cast<const uint4*>(w + at),
            *reinterpret_cast<const uint4*>(w + 2 * N + at),
            *reinterpret_cast<const uint4*>(x + at)};
  }
  __device__ __forceinline__ void multiply(float (&to)[4], const Operands& o) {
    mma<T>(to, {o.upper.x, o.lower.x, o.upper.y, o.lower.y}, o.x.x, o.x.y);
    mma<T>(to, {o.upper.z, o.lower.z, o.upper.w, o.lower.w}, o.x.z, o.x.w);
  }

  // w: rows N elements apart; x: the column; n elements from `at` on, the slice's piece number
  // `piece`.
  template <class W>
  __device__ __forceinline__ void add(const char* w, const char* x, int at, int piece, int n,
                                      int lane) {
    const int g = lane / 4;
    const char* const column = x + 2 * at;
    if (!two) {
#pragma unroll
      for (int h = 0; h < 2; ++h) multiply(acc[h], load(w, column, 8 * h + g, n, lane));
      return;
    }
    // Every other lane of eight reads its second block first, against bank conflicts.
    const bool odd = g % 2;
    const Operands a = load(w, column, 2 * g + odd, n, lane);
    const Operands b = load(w, column, 2 * g + !odd, n, lane);
    const Operands first = odd ? b : a, second = odd ? a : b;
    if (piece % 2 == 0) {
      multiply(acc[0], first);
      multiply(acc[0], second);
    } else {
      multiply(acc[1], first);
      multiply(acc[1], second);
    }
  }

  // The whole warp. first: of the row's slices.
  __device__ __forceinline__ void end_slice(bool first, int lane) {
    float2 sum = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool odd =
          lane / 4 % 2;  // the lane of part p that counts has columns p - p % 2 and next
      const float upper = odd ? acc[h][1] : acc[h][0], lower = odd ? acc[h][3] : acc[h][2];
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        sum.x += __shfl_sync(kAllLanes, upper, 4 * p + p / 2);
        sum.y += __shfl_sync(kAllLanes, lower, 4 * p + p / 2);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[h][i] = 0.0f;
    }
    total = first ? sum : float2{total.x + sum.x, total.y + sum.y};
  }

  __device__ __forceinline__ float2 result(int) const { return total; }
};
