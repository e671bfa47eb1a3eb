// Rows that become float16, which ends at 65504 and loses digits below 2^-14. A row whose largest
// element is beyond 2^15 or below 2^-8 is divided by a power of two first, which loses nothing, and
// its results are multiplied again. bfloat16 has float32's range and needs no scale.
#pragma once

#include "cuda/common.cuh"

// Power of two by which a row with this largest magnitude is divided; the quotient is below 2^15.
// The largest scale is 2^114 and the smallest 2^-112: both have an inverse.
__device__ __forceinline__ float scale_of(float largest) {
  if (!(largest > 32768.0f || (largest < 0.00390625f && largest > 0.0f))) return 1.0f;
  return gf_float_of((max(gf_bits_of(largest) >> 23, 29u) - 14) << 23);
}
