// Functions of one float, shared by the element-wise and the gated kernels.
#pragma once

#include "cuda/elementwise.cuh"

// 1 / x to one unit in the last place, in one instruction instead of a dozen: with a division,
// 16-bit activations are limited by arithmetic and not by memory.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct silu : Functor {
  __device__ float operator()(float x) const { return x * reciprocal(1.0f + expf(-x)); }
};
struct gelu : Functor {
  __device__ float operator()(float x) const {
    const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
  }
};
struct relu : Functor {
  static constexpr bool PAIRED = true;
  __device__ float operator()(float x) const { return x > 0.0f ? x : 0.0f; }
  template <class T>
  __device__ u32 pair(u32 x) const {  // a negative element has its top bit set
    return x & ~(((x >> 15) & 0x00010001u) * 0xFFFFu);
  }
};
