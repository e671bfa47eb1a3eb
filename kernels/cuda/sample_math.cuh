// The arithmetic of `sample`: engine/ops/sample.py defines it to the bit.
#pragma once

#include "cuda/common.cuh"

struct Settings {  // the operand's layout
  float temp, top_k, top_p, min_p, repeat_penalty, repeat_last_n;
};

// Truncated; out of range goes to the nearest end.
__device__ __forceinline__ i64 whole(float x) {
  return (i64)fminf(fmaxf(x, -2147483648.0f), 2147483648.0f);
}

__device__ __forceinline__ float exp32(float x) {
  if (!(x >= -87.0f)) return 0.0f;
  const float n = rintf(gf_mul(x, 1.44269504f));
  const float r = gf_add(gf_add(x, -gf_mul(n, 0.693359375f)), -gf_mul(n, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = gf_add(gf_mul(p, r), 1.3981999507e-3f);
  p = gf_add(gf_mul(p, r), 8.3334519073e-3f);
  p = gf_add(gf_mul(p, r), 4.1665795894e-2f);
  p = gf_add(gf_mul(p, r), 1.6666665459e-1f);
  p = gf_add(gf_mul(p, r), 5.0000001201e-1f);
  const float y = gf_add(gf_add(gf_mul(p, gf_mul(r, r)), r), 1.0f);
  return gf_mul(y, gf_float_of((u32)((int)n + 127) << 23));
}

__device__ __forceinline__ float uniform(u64 seed, u64 step) {
  u64 z = seed + (step + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return (float)(z >> 40) * 5.9604644775390625e-8f;
}
