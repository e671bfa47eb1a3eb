// Functions of one float, shared by the element-wise and the gated kernels.
//
// `operator()` is good to a few units in the last place. `rough`, for results of 16 bits, errs by
// less than 1e-4 of the result, a fraction of their rounding, in half the instructions: at two
// bytes an element the arithmetic would otherwise take as long as the memory.
#pragma once

#include "cuda/elementwise.cuh"
#include "cuda/exp2.cuh"

// 1 / x to one unit in the last place, in one instruction instead of a dozen: with a division,
// 16-bit activations are limited by arithmetic and not by memory.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same; subnormal operands and results count as zero.
__device__ __forceinline__ float reciprocal_normal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / (1 + 2^x).
__device__ __forceinline__ float rough_logistic2(float x) {
  return reciprocal_normal(1.0f + exp2_normal(x));
}

struct silu : Functor {
  static constexpr bool ROUGH = true;
  __device__ float operator()(float x) const { return x * reciprocal(1.0f + expf(-x)); }
  __device__ float rough(float x) const { return x * rough_logistic2(-kLog2E * x); }
};
// 0.5 x (1 + tanh(inner)) = x / (1 + exp(-2 inner)), which does not cancel where x is negative.
struct gelu : Functor {
  static constexpr bool ROUGH = true;
  static constexpr float A = 2 * 0.7978845608028654f, B = A * 0.044715f;
  __device__ float operator()(float x) const {
    return x * reciprocal(1.0f + expf(-x * fmaf(B * x, x, A)));
  }
  __device__ float rough(float x) const {
    return x * rough_logistic2(x * fmaf(-kLog2E * B * x, x, -kLog2E * A));
  }
};
struct relu : Functor {  // NaN stays NaN
  static constexpr bool PAIRED = true;
  __device__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
  template <class T>
  __device__ u32 pair(u32 x) const {
    u32 y;
    if constexpr (is_same<T, f16>::value) {
      asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(0u));
    } else {
      asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(0u));
    }
    return y;
  }
};
