// Powers of two, and of e by them.
#pragma once

#include "cuda/common.cuh"

constexpr float kLog2E = 1.4426950408889634f;

// 2^x in one instruction; subnormal operands and results count as zero.
__device__ __forceinline__ float exp2_normal(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
