// One column as 16-bit floats in shared memory, made by every block for itself: a launch less than
// columns_round.cu, and the same bits. Where these need not be the same, what rounding takes off is
// kept too, rounded itself, so that both together are the column in 22 bits (bf16: 16).
//
// All warps of a block wait for it, once a product, so that what counts is how long one thread
// takes. Threads ask for all their elements at once, up to 8,192 with a norm and 16,384 without.
// Lanes' largest magnitudes are compared as integers, which takes one instruction.
#pragma once

#include "cuda/float_columns.cuh"

constexpr int kColumnWarps = 16;  // that make it

// How a column lies, and which eight elements of a chunk of 256 a lane has: in order, neighbours;
// or as columns_weights.cuh has them: neighbours as pairs (0, 2), (1, 3), (4, 6), (5, 7), or fours
// of both halves of 32 so.
enum { IN_ORDER, EIGHTS_APART, FOURS_APART };

// Two times four neighbouring elements.
struct Eight32 {
  float4 lo, hi;
};
// The e / 8-th eight.
template <int ORDER>
__device__ __forceinline__ Eight32 ask_eight(const float* x, int e) {
  constexpr bool FOURS = ORDER == FOURS_APART;
  const float* const lo = x + (FOURS ? e / 32 * 32 + e / 8 % 4 * 4 : e);
  return {__ldcg(reinterpret_cast<const float4*>(lo)),
          __ldcg(reinterpret_cast<const float4*>(lo + (FOURS ? 16 : 4)))};
}

template <class T, int ORDER = IN_ORDER>
__device__ __forceinline__ uint4 rounded(const Eight32& v) {
  if constexpr (ORDER != IN_ORDER) {
    return {Float<T>::pair(v.lo.x, v.lo.z), Float<T>::pair(v.lo.y, v.lo.w),
            Float<T>::pair(v.hi.x, v.hi.z), Float<T>::pair(v.hi.y, v.hi.w)};
  }
  return {Float<T>::pair(v.lo.x, v.lo.y), Float<T>::pair(v.lo.z, v.lo.w),
          Float<T>::pair(v.hi.x, v.hi.y), Float<T>::pair(v.hi.z, v.hi.w)};
}
// What rounding to these takes off.
template <class T>
__device__ __forceinline__ Eight32 rest_of(const Eight32& v, const uint4& r) {
  typedef Float<T> F;
  return {
      {v.lo.x - F::low(r.x), v.lo.y - F::high(r.x), v.lo.z - F::low(r.y), v.lo.w - F::high(r.y)},
      {v.hi.x - F::low(r.z), v.hi.y - F::high(r.z), v.hi.z - F::low(r.w), v.hi.w - F::high(r.w)}};
}

// A barrier of the warps that make the column.
__device__ __forceinline__ void column_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kColumnWarps) : "memory");
}

// The largest of a warp's numbers, none of which is negative.
__device__ __forceinline__ float warp_largest(float x) {
  return gf_float_of(__reduce_max_sync(kAllLanes, gf_bits_of(x)));
}

// Bytes from a column of k elements to what rounding takes off, in other banks.
__device__ __forceinline__ int rest_at(int k) { return (2 * k + 127) / 128 * 128 + 64; }

// What makes a column: the first kColumnWarps warps, which then see it. T: f16 or bf16. NORM:
// whether it gets a norm first. REST: whether what rounding takes off is kept. ORDER: how it
// lies.
template <class T, bool NORM, bool REST = false, int ORDER = IN_ORDER>
struct FloatColumn {
  static constexpr bool SCALED = is_same<T, f16>::value;
  static constexpr int AT_ONCE = NORM ? 2 : 4;  // chunks that a warp asks for at once
  static constexpr int STEP = AT_ONCE * kColumnWarps;

  const float *x, *norm;  // norm: its weights
  const int k, chunks;
  char* const to;        // 16 bytes of each eight
  float* const squares;  // room for those of the chunks, and a float a warp behind them
  Eight32 v[AT_ONCE], by[NORM ? AT_ONCE : 1];

  __device__ __forceinline__ FloatColumn(const float* x, const float* norm, int k, char* to,
                                         float* squares)
      : x(x),
        norm(norm),
        k(k),
        chunks((k + kSquaresChunk - 1) / kSquaresChunk),
        to(to),
        squares(squares) {
    if (NORM) ask_norm(0);
  }

  static __device__ __forceinline__ int chunk_at(int base, int i) {
    return base + i * kColumnWarps + (int)threadIdx.x / 32;
  }
  static __device__ __forceinline__ int element_at(int base, int i) {
    return chunk_at(base, i) * kSquaresChunk + (int)threadIdx.x % 32 * 8;
  }

  // Of the weights, which do not depend on the kernels before this one.
  __device__ __forceinline__ void ask_norm(int base) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int e = element_at(base, i);
      if (e < k) by[NORM ? i : 0] = ask_eight<ORDER>(norm, e);
    }
  }
  __device__ __forceinline__ void ask(int base) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int e = element_at(base, i);
      v[i] = {};
      if (e < k) v[i] = ask_eight<ORDER>(x, e);
    }
    if (NORM && chunks > STEP) ask_norm(base);
  }
  static __device__ __forceinline__ void put_eight(char* to, int k, int e, const Eight32& x,
                                                   float scale) {
    const Eight32 y = {times(x.lo, scale), times(x.hi, scale)};
    const uint4 r = rounded<T, ORDER>(y);
    *reinterpret_cast<uint4*>(to + 2 * e) = r;
    if (REST) *reinterpret_cast<uint4*>(to + rest_at(k) + 2 * e) = rounded<T>(rest_of<T>(y, r));
  }
  __device__ __forceinline__ void put(int base, float scale) const {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int e = element_at(base, i);
      if (e < k) put_eight(to, k, e, v[i], scale);
    }
  }

  // What is asked for, times the norm's weights; squares are left for sum_of_chunks.
  __device__ __forceinline__ void weigh(int base, bool with_squares) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (!NORM || chunk_at(base, i) >= chunks) break;
      if (with_squares) {
        const float sum = warp_reduce(add_squares(v[i].hi, add_squares(v[i].lo, 0.0f)), Add());
        if (threadIdx.x % 32 == 0) squares[chunk_at(base, i)] = sum;
      }
      v[i] = {times(v[i].lo, by[NORM ? i : 0].lo), times(v[i].hi, by[NORM ? i : 0].hi)};
    }
  }

  // Once more, of a column that gets no norm. Not inlined: code that is jumped over is slow to
  // come.
  static __device__ __noinline__ void put_anew(const float* x, int k, char* to, float scale) {
#pragma unroll 1
    for (int e = threadIdx.x * 8; e < k; e += 8 * 32 * kColumnWarps) {
      put_eight(to, k, e, ask_eight<ORDER>(x, e), scale);
    }
  }

  __device__ __forceinline__ void put_all(float scale) {
#pragma unroll 1
    for (int base = 0; base < chunks; base += STEP) {
      if (chunks > STEP) {
        ask(base);
        weigh(base, false);
      }
      put(base, scale);
    }
    column_barrier();
  }

  // Returns what the column's sums are multiplied by. After the kernels before this one. f: called
  // while the first elements are on their way.
  template <class F>
  __device__ __forceinline__ float make(float eps, F f) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const largest_of_warps = squares + chunks;
    float largest = 0.0f;
#pragma unroll 1
    for (int base = 0; base < chunks; base += STEP) {
      ask(base);
      if (base == 0) f();
      weigh(base, true);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        largest = fmaxf(largest, fmaxf(largest_of(v[i].lo), largest_of(v[i].hi)));
      }
      if (!NORM) put(base, 1.0f);  // which is the scale but for a few columns
    }
    if (SCALED) {
      largest = warp_largest(largest);
      if (lane == 0) largest_of_warps[warp] = largest;
    }
    column_barrier();
    if (!SCALED && !NORM) return 1.0f;
    float scale = 1.0f, power = 1.0f;
    if (NORM) scale = float_norm_scale(sum_of_chunks(squares, chunks), k, eps);
    if (SCALED) {
      largest = warp_largest(lane < kColumnWarps ? largest_of_warps[lane] : 0.0f);
      power = power_of(largest * scale);
      if (power != 1.0f) scale *= 1.0f / power;
    }
    if (NORM) {
      put_all(scale);
    } else if (power != 1.0f) {
      put_anew(x, k, to, scale);
      column_barrier();
    }
    return power;
  }
};
