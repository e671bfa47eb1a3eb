// Element-wise functions of one operand, f32, f16 and bf16.
#include "cuda/functions.cuh"

struct gelu_erf : Functor {
  // erfc keeps the small negative tail that 1 + erf rounds away.
  __device__ float operator()(float x) const { return 0.5f * x * erfcf(-0.70710678118654752f * x); }
};
struct sigmoid : Functor {
  __device__ float operator()(float x) const { return reciprocal(1.0f + expf(-x)); }
};
struct tanh_ : Functor {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct exp_ : Functor {
  __device__ float operator()(float x) const { return expf(x); }
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
