// Element-wise functions of one operand, f32, f16 and bf16.
#include "cuda/functions.cuh"

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
