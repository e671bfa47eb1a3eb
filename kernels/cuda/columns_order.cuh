// Columns as 16-bit floats in the order that the fragments of weights have: what columns_round.cu
// and mul_mat_stream.cu share, which must do it alike to the last bit.
#pragma once

#include "cuda/common.cuh"

struct ColumnsOrder {
  float factor;    // of a lane's second four
  float zeros[2];  // corrections are - zeros[0] times the sum of a lane's first four and so on
  int lane, half;  // elements from lane to lane, and to a lane's second four
  int split;       // whether the pairs of four are (0, 2) and (1, 3), or (0, 1) and (2, 3)
};

// Power of two by which a row with this largest magnitude is divided, as in mul_mat_rows.cu.
__device__ __forceinline__ float scale_of(float largest) {
  if (!(largest > 32768.0f || (largest < 0.00390625f && largest > 0.0f))) return 1.0f;
  return gf_float_of((max(gf_bits_of(largest) >> 23, 29u) - 14) << 23);
}

__device__ __forceinline__ float sum2(u32 halves) {
  return gf_f16_to_f32((gf_u16)halves) + gf_f16_to_f32((gf_u16)(halves >> 16));
}
__device__ __forceinline__ float square_sum(float4 v) {
  return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}
__device__ __forceinline__ float largest_of(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}
__device__ __forceinline__ float4 times(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
__device__ __forceinline__ float4 times(float4 a, float b) { return times(a, {b, b, b, b}); }

// A lane's eight elements of 32, times scale, and its share of the correction.
template <class T>
__device__ __forceinline__ uint4 rounded(const ColumnsOrder& o, const float4 (&v)[2], float scale,
                                         float* correction) {
  u32 w[4];
  *correction = 0.0f;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float4 y = times(v[h], h == 0 ? scale : scale * o.factor);
    w[2 * h] = Float<T>::pair(y.x, o.split ? y.z : y.y);
    w[2 * h + 1] = Float<T>::pair(o.split ? y.y : y.z, y.w);
    *correction = fmaf(-o.zeros[h], sum2(w[2 * h]) + sum2(w[2 * h + 1]), *correction);
  }
  return {w[0], w[1], w[2], w[3]};
}

// Over the four lanes that share 32 elements.
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
