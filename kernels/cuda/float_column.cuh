// One column as 16-bit floats in shared memory, made by every block for itself: a launch less than
// columns_round.cu, and the same bits.
#pragma once

#include "cuda/float_columns.cuh"

constexpr int kColumnWarps = 16;  // that make it
constexpr int kAtOnce = 2;        // chunks of 256 elements that a warp asks for at once

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

// A barrier of the warps that make the column.
__device__ __forceinline__ void column_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kColumnWarps) : "memory");
}

// First elements of this thread's chunks, for whoever asks for the norm's weights early.
__device__ __forceinline__ int column_element(int base, int i) {
  return (base + i * kColumnWarps + (int)threadIdx.x / 32) * kSquaresChunk + threadIdx.x % 32 * 8;
}

// The column to `to`, in order. Returns what its sums are multiplied by. squares: room for those of
// the chunks, and a float a warp behind them; by: the norm's first weights. The first kColumnWarps
// warps, which then see the column.
template <class T>
__device__ __forceinline__ float make_column(const float* x, const float* norm, int k, float eps,
                                             char* to, float* squares, Eight32 (&by)[kAtOnce]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = (k + kSquaresChunk - 1) / kSquaresChunk;
  constexpr int STEP = kAtOnce * kColumnWarps;
  constexpr bool SCALED = is_same<T, f16>::value;
  float* const largest_of_warps = squares + chunks;
  Eight32 v[kAtOnce];
  // The elements from chunk `base` on, times the norm's weights.
  const auto ask = [&](int base, bool with_squares) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int e = column_element(base, i);
      v[i] = {};
      if (e < k) v[i] = ask_eight(x + e);
      if (e < k && norm != nullptr && chunks > STEP) by[i] = ask_eight(norm + e);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = base + i * kColumnWarps + warp;
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
    for (int i = 0; i < kAtOnce; ++i) {
      const int e = column_element(base, i);
      if (e < k) *reinterpret_cast<uint4*>(to + 2 * e) = rounded<T>(v[i], scale);
    }
  };

  // Without a norm, the scale is one but for a few columns: these are read again.
  float largest = 0.0f;
#pragma unroll 1
  for (int base = 0; base < chunks; base += STEP) {
    ask(base, true);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      largest = fmaxf(largest, fmaxf(largest_of(v[i].lo), largest_of(v[i].hi)));
    }
    if (norm == nullptr) put(base, 1.0f);
  }
  if (SCALED) {
    largest = warp_reduce(largest, Max());
    if (lane == 0) largest_of_warps[warp] = largest;
  }
  column_barrier();
  if (!SCALED && norm == nullptr) return 1.0f;
  float scale = 1.0f, power = 1.0f;
  if (norm != nullptr) scale = float_norm_scale(sum_of_chunks(squares, chunks), k, eps);
  if (SCALED) {
    largest = warp_reduce(lane < kColumnWarps ? largest_of_warps[lane] : 0.0f, Max());
    power = power_of(largest * scale);
    scale *= 1.0f / power;
    if (norm == nullptr && power == 1.0f) return 1.0f;
  }
#pragma unroll 1
  for (int base = 0; base < chunks; base += STEP) {
    if (chunks > STEP) ask(base, false);
    put(base, scale);
  }
  column_barrier();
  return power;
}
