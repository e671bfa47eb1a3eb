// Chunks of weight rows in shared memory times chunks of columns: the inner part of mul_mat_vec.cu
// and mul_mat_sparse.cu.
//
// A chunk of quantized weights is 2048 elements of a row, 64 a lane. Their columns are int8 in
// blocks of 32 with a float32 scale and the sums of both halves of the block (ggml's q8_1, sums by
// 16 because the scales of q6_K, q3_K and q2_K are). They lie so that the lanes of a warp read
// neighbours:
//
//   quads  [4][32 lanes] of 16 int8      unit u = elements [64 u, 64 u + 64) has quads [0..3][u]
//   blocks [32 lanes][2] of XBlock
//
// A chunk of float weights is 512 elements, of wide and compact ones 1024. Their columns stay
// float32: [steps][2][32 lanes] of 4 floats, step s and lane l having the eight from 256 s + 8 l
// on.
#pragma once

#include "cuda/compact.cuh"
#include "cuda/vec_tables.cuh"

// -- a chunk of kRows rows times C columns --------------------------------------------------------

template <class W>
struct Chunk {
  static constexpr bool QUANTIZED = true;
  static constexpr int N = kChunk;
  static constexpr int BYTES = Vec<W>::BYTES;
  static constexpr int X_BYTES = kChunk / 64 * (64 + 2 * sizeof(XBlock));  // of a column

  // w: the rows, BYTES apart; x: this chunk of column 0, the next column x_step bytes further;
  // n: elements of the chunk that there are.
  template <int C>
  static __device__ __forceinline__ void multiply(const char* w, const char* x, int x_step, int n,
                                                  int lane, float (&acc)[kRows][C]) {
    if (lane * 64 >= n) return;
    typename Vec<W>::Raw raw[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) raw[r] = Vec<W>::load(w + r * BYTES, lane);
    half<0, C>(raw, x, x_step, lane, acc);
    half<1, C>(raw, x, x_step, lane, acc);
  }

  template <int H, int C>
  static __device__ __forceinline__ void half(const typename Vec<W>::Raw* raw, const char* x,
                                              int x_step, int lane, float (&acc)[kRows][C]) {
    u32 q[kRows][8];
    Scales s[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) s[r] = Vec<W>::template block<H>(raw[r], lane, q[r]);
    const int unit = Vec<W>::unit(lane, H), part = Vec<W>::half(lane, H);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const char* const column = x + c * x_step;
      const Words4 a = words_at(column + (part * 64 + unit) * 16);
      const Words4 b = words_at(column + (part * 64 + 32 + unit) * 16);
      const XBlock block = reinterpret_cast<const XBlock*>(column + kChunk)[2 * unit + part];
      const float sum0 = block.sum[0], sum1 = block.sum[1];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        int dot0 = 0, dot1 = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          dot0 = __dp4a((int)q[r][i], (int)a.v[i], dot0);
          dot1 = __dp4a((int)q[r][4 + i], (int)b.v[i], dot1);
        }
        float y = Vec<W>::SPLIT ? fmaf(s[r].s0, (float)dot0, s[r].s1 * (float)dot1)
                                : s[r].s0 * (float)(dot0 + dot1);
        if (Vec<W>::SPLIT) {
          y = fmaf(-s[r].m1, sum1, fmaf(-s[r].m0, sum0, y));
        } else if (Vec<W>::MIN) {
          y = fmaf(-s[r].m0, sum0 + sum1, y);
        }
        acc[r][c] = fmaf(block.d, y, acc[r][c]);
      }
    }
  }
};

// Eight float weights from four words.
template <class W>
__device__ __forceinline__ void floats8(const Words4& w, float* y) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = Float<W>::low(w.v[i]);
    y[2 * i + 1] = Float<W>::high(w.v[i]);
  }
}

// Elements in longer chunks, see mul_mat_vec.py.
template <class W>
struct wide {};

// A lane's words of a row in shared memory, step after step.
template <class W>
struct Words {
  const char* row;

  __device__ __forceinline__ Words4 next(int step, int lane) {
    return words_at(row + (step * 256 + lane * 8) * sizeof(W));
  }
};

// The same from the compact form (Along), of whole chunks.
template <class W>
struct Words<compact<W>> {
  const char* row;
  u32 last = 0;

  __device__ __forceinline__ Words4 next(int step, int lane) {
    Words4 w;
    if (step < 3) {
      w = words_at(row + step * 512 + lane * 16);
    } else {
      const uint2 two = *reinterpret_cast<const uint2*>(row + 1536 + lane * 8);
      w = {two.x, two.y, word_at(row + 1792 + lane * 4), 0};
    }
#pragma unroll
    for (int i = 0; i < 4 && 4 * step + i < kSet - 1; ++i) {
      last |= carried(w.v[i], 4 * step + i);
      w.v[i] = without(w.v[i]);
    }
    if (step == 3) w.v[3] = last;
    return w;
  }
};

// S: how the weights of type W are stored.
template <class W, int ELEMENTS, class S = W>
struct FloatChunk {
  static constexpr bool QUANTIZED = false, COMPACT = !is_same<S, W>::value;
  static constexpr int N = ELEMENTS;
  static constexpr int BYTES = N * (int)sizeof(W) / kSet * (kSet - COMPACT);
  static constexpr int X_BYTES = N * 4;

  template <int C>
  static __device__ __forceinline__ void multiply(const char* w, const char* x, int x_step, int n,
                                                  int lane, float (&acc)[kRows][C]) {
    Words<S> rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r].row = w + r * BYTES;
#pragma unroll
    for (int step = 0; step < N / 256; ++step) {
      if (!COMPACT && step * 256 + lane * 8 >= n) break;
      float weights[kRows][8];
#pragma unroll
      for (int r = 0; r < kRows; ++r) floats8<W>(rows[r].next(step, lane), weights[r]);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const char* const column = x + c * x_step + step * 1024 + lane * 16;
        const auto a = *reinterpret_cast<const Pack<float, 4>*>(column);
        const auto b = *reinterpret_cast<const Pack<float, 4>*>(column + 512);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[r][c] = fmaf(weights[r][i], a.v[i], acc[r][c]);
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[r][c] = fmaf(weights[r][4 + i], b.v[i], acc[r][c]);
        }
      }
    }
  }
};
template <>
struct Chunk<f16> : FloatChunk<f16, kFloatChunk> {};
template <>
struct Chunk<bf16> : FloatChunk<bf16, kFloatChunk> {};
template <class W>
struct Chunk<wide<W>> : FloatChunk<W, kWideChunk> {};
template <class W>
struct Chunk<compact<W>> : FloatChunk<W, kWideChunk, compact<W>> {};
