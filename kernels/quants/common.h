// Integer names, float16 and bfloat16 conversion, and exactly rounded float arithmetic for the
// block layouts of this directory. Serves C++ and CUDA, NVRTC included, so nothing here needs a std
// header.
#pragma once

#if defined(__CUDACC__)
#define GF_HD __host__ __device__ __forceinline__
#define GF_MEMBER __host__ __device__
#else
#define GF_HD static inline
#define GF_MEMBER
#if defined(__F16C__)
#include <immintrin.h>
#endif
#endif

// Of constants at file scope.
#if defined(__CUDACC__)
#define GF_TABLE static __device__ const
#else
#define GF_TABLE static const
#endif

typedef unsigned char gf_u8;
typedef signed char gf_i8;
typedef unsigned short gf_u16;
typedef short gf_i16;
typedef unsigned int gf_u32;
typedef long long gf_i64;

union gf_float_bits {
  float f;
  gf_u32 u;
};

GF_HD gf_u32 gf_bits_of(float f) {
  gf_float_bits b;
  b.f = f;
  return b.u;
}

GF_HD float gf_float_of(gf_u32 u) {
  gf_float_bits b;
  b.u = u;
  return b.f;
}

GF_HD gf_u32 gf_load_u16(const gf_u8* p) { return (gf_u32)p[0] | (gf_u32)p[1] << 8; }

GF_HD gf_u32 gf_load_u32(const gf_u8* p) {
  return (gf_u32)p[0] | (gf_u32)p[1] << 8 | (gf_u32)p[2] << 16 | (gf_u32)p[3] << 24;
}

GF_HD void gf_store_u32(gf_u8* p, gf_u32 v) {
  for (int i = 0; i < 4; ++i) p[i] = (gf_u8)(v >> (8 * i));
}

// -- arithmetic that no compiler flag may contract or approximate
// ---------------------------------- NVCC fuses a*b+c by default; quantizers must round as the
// numpy codecs do.

#if defined(__CUDA_ARCH__)
GF_HD float gf_mul(float a, float b) { return __fmul_rn(a, b); }
GF_HD float gf_add(float a, float b) { return __fadd_rn(a, b); }
GF_HD float gf_div(float a, float b) { return __fdiv_rn(a, b); }
GF_HD float gf_sqrt(float x) { return __fsqrt_rn(x); }
GF_HD double gf_log2(double x) { return log2(x); }
#else
GF_HD float gf_mul(float a, float b) { return a * b; }
GF_HD float gf_add(float a, float b) { return a + b; }
GF_HD float gf_div(float a, float b) { return a / b; }
GF_HD float gf_sqrt(float x) { return __builtin_sqrtf(x); }
GF_HD double gf_log2(double x) { return __builtin_log2(x); }
#endif

GF_HD float gf_abs(float x) { return gf_float_of(gf_bits_of(x) & 0x7FFFFFFFu); }

// 1/d for a block scale; 0 when d is 0 or so small that the quotient would be infinite.
GF_HD float gf_inverse(float d) {
  const float r = d != 0.0f ? gf_div(1.0f, d) : 0.0f;
  return gf_abs(r) <= 3.402823466e+38f ? r : 0.0f;
}

// -- float16 and bfloat16
// --------------------------------------------------------------------------

GF_HD float gf_f16_to_f32_soft(gf_u16 h) {
  const gf_u32 sign = (gf_u32)(h & 0x8000u) << 16;
  const gf_u32 exponent = (h >> 10) & 0x1Fu;
  const gf_u32 mantissa = h & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in float32
    const float f = (float)mantissa * 5.9604644775390625e-8f;
    return gf_float_of(gf_bits_of(f) | sign);
  }
  if (exponent == 31) return gf_float_of(sign | 0x7F800000u | (mantissa << 13));
  return gf_float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

GF_HD gf_u16 gf_f32_to_f16_soft(float f) {
  const gf_u32 bits = gf_bits_of(f);
  const gf_u32 sign = (bits >> 16) & 0x8000u;
  const gf_u32 a = bits & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return (gf_u16)(sign | 0x7E00u | ((a >> 13) & 0x1FFu));  // quiet NaN
  if (a >= 0x477FF000u) return (gf_u16)(sign | 0x7C00u);  // 65520 and above round to infinity
  if (a < 0x38800000u) {
    // Below 2^-14: adding 0.5 moves the float16 grid (steps of 2^-24) to the last bits of a
    // float32, and the addition rounds to nearest even.
    const float shifted = gf_add(gf_float_of(a), 0.5f);
    return (gf_u16)(sign | (gf_bits_of(shifted) - 0x3F000000u));
  }
  const gf_u32 round = 0xFFFu + ((a >> 13) & 1u);
  return (gf_u16)(sign | ((a + round - 0x38000000u) >> 13));
}

GF_HD float gf_f16_to_f32(gf_u16 h) {
#if defined(__CUDA_ARCH__)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#elif !defined(__CUDACC__) && defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
#elif !defined(__CUDACC__) && defined(__aarch64__) && defined(__ARM_FP16_FORMAT_IEEE)
  __fp16 x;
  __builtin_memcpy(&x, &h, 2);
  return (float)x;
#else
  return gf_f16_to_f32_soft(h);
#endif
}

GF_HD gf_u16 gf_f32_to_f16(float f) {
#if defined(__CUDA_ARCH__)
  gf_u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
#elif !defined(__CUDACC__) && defined(__F16C__)
  return (gf_u16)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), 0));
#elif !defined(__CUDACC__) && defined(__aarch64__) && defined(__ARM_FP16_FORMAT_IEEE)
  const __fp16 x = (__fp16)f;
  gf_u16 h;
  __builtin_memcpy(&h, &x, 2);
  return h;
#else
  return gf_f32_to_f16_soft(f);
#endif
}

GF_HD float gf_bf16_to_f32(gf_u16 h) { return gf_float_of((gf_u32)h << 16); }

GF_HD gf_u16 gf_f32_to_bf16(float f) {
  const gf_u32 u = gf_bits_of(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (gf_u16)((u >> 16) | 0x40u);  // quiet NaN
  return (gf_u16)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
