// Element-wise functions of one operand, f32, f16 and bf16.
#include "cuda/functions.cuh"

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
struct tanh_ : Functor {
  static constexpr bool ROUGH = true;
  __device__ float operator()(float x) const { return tanhf(x); }
  // 1 - 2 / (1 + exp(2 x)), and near zero, where that cancels, two terms of the series.
  __device__ float rough(float x) const {
    const float y = fmaf(-2.0f, rough_logistic2(2 * kLog2E * x), 1.0f);
    return fabsf(x) < 0.0625f ? fmaf(x * x * x, -1.0f / 3, x) : y;
  }
};
struct exp_ : Functor {
  static constexpr bool ROUGH = true;
  __device__ float operator()(float x) const { return expf(x); }
  __device__ float rough(float x) const { return exp2_normal(kLog2E * x); }
};
struct neg : Functor {
  static constexpr bool PAIRED = true;
  __device__ float operator()(float x) const { return -x; }
  template <class T>
  __device__ u32 pair(u32 x) const {
    return x ^ 0x80008000u;
  }
};
struct sqr : Functor {
  __device__ float operator()(float x) const { return x * x; }
};
struct sqrt_ : Functor {
  __device__ float operator()(float x) const { return sqrtf(x); }
};
struct abs_ : Functor {
  static constexpr bool PAIRED = true;
  __device__ float operator()(float x) const { return fabsf(x); }
  template <class T>
  __device__ u32 pair(u32 x) const {
    return x & 0x7FFF7FFFu;
  }
};
