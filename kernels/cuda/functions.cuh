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
// x Phi(x) = max(x, 0) - a Phi(-a) with a = |x|: the small negative tail is not rounded away.
//
// Phi(-a) exp(a^2 / 2) is smooth and falls like 1 / a: t P(t) with t = 1 / (1 + p a), the form of
// Abramowitz and Stegun 7.1.26. P has the smallest largest relative error over 0 <= a <= 10: 5e-8
// with eight coefficients, 2e-5 with five. From a = 64 on exp is zero; the bound keeps infinities
// out of the products.
struct gelu_erf : Functor {
  static constexpr bool ROUGH = true;
  template <int N>
  static __device__ __forceinline__ float of(float x, float p, const float (&c)[N]) {
    const float a = fminf(fabsf(x), 64.0f);
    const float t = reciprocal_normal(fmaf(p, a, 1.0f));
    float y = c[N - 1];
#pragma unroll
    for (int i = N - 2; i >= 0; --i) y = fmaf(y, t, c[i]);
    y *= exp2_normal(-0.5f * kLog2E * a * a);
    float positive;  // max.NaN: not a number stays so
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(positive) : "f"(x));
    return fmaf(-a * t, y, positive);
  }
  __device__ float operator()(float x) const {
    constexpr float c[] = {0.11960504f,   0.12111121f, 0.09775604f,   0.13549648f,
                           -0.066524521f, 0.2200853f,  -0.165077567f, 0.037548051f};
    return of(x, 0.3f, c);
  }
  __device__ float rough(float x) const {
    constexpr float c[] = {0.14672361f, 0.15907532f, 0.0710701f, 0.21616092f, -0.093039274f};
    return of(x, 0.37f, c);
  }
};
struct sigmoid : Functor {
  static constexpr bool ROUGH = true;
  __device__ float operator()(float x) const { return reciprocal(1.0f + expf(-x)); }
  __device__ float rough(float x) const { return rough_logistic2(-kLog2E * x); }
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
