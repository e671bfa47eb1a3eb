// vf in the vector extension of GCC and Clang: four floats, SSE2 on x86-64, whatever the compiler
// makes of it elsewhere.
#pragma once

#include <math.h>
#include <string.h>

#if !defined(__GNUC__)
#error "the vector extension is needed: build with GCC, Clang or clang-cl"
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

constexpr int VL = 4;
typedef float gf_float4 __attribute__((vector_size(16)));
typedef int32_t gf_int4 __attribute__((vector_size(16)));
struct vf {
  gf_float4 v;
};
struct vm {  // all bits of a lane set where true
  gf_int4 m;
};

static inline gf_int4 vf_bits(vf a) { return reinterpret_cast<gf_int4>(a.v); }
static inline vf vf_from_bits(gf_int4 a) { return {reinterpret_cast<gf_float4>(a)}; }

static inline vf vf_set(float x) { return {gf_float4{x, x, x, x}}; }
static inline vf vf_load(const float* p) {
  vf a;
  memcpy(&a.v, p, sizeof a.v);
  return a;
}
static inline vf vf_load_n(const float* p, int n) {
  vf a = vf_set(0.0f);
  for (int i = 0; i < n; ++i) a.v[i] = p[i];
  return a;
}
static inline void vf_store(float* p, vf a) { memcpy(p, &a.v, sizeof a.v); }
static inline void vf_store_n(float* p, vf a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
static inline vf vf_load_bf16(const uint16_t* p) {
  return vf_from_bits(gf_int4{p[0], p[1], p[2], p[3]} << 16);
}
static inline vf vf_load_i8(const int8_t* p) {
  return {gf_float4{float(p[0]), float(p[1]), float(p[2]), float(p[3])}};
}
static inline vf vf_load_f16(const uint16_t* p) {
  // Exponent and mantissa in place, then 2^112 corrects the bias, subnormals included.
  const gf_int4 h = {p[0], p[1], p[2], p[3]};
  const vf scaled = {vf_from_bits((h & 0x7FFF) << 13).v * 0x1p112f};
  const gf_int4 special = scaled.v >= 65536.0f;  // infinity and NaN keep a full exponent
  return vf_from_bits(vf_bits(scaled) | (special & 0x7F800000) | ((h & 0x8000) << 16));
}

static inline vf operator+(vf a, vf b) { return {a.v + b.v}; }
static inline vf operator-(vf a, vf b) { return {a.v - b.v}; }
static inline vf operator*(vf a, vf b) { return {a.v * b.v}; }
static inline vf operator/(vf a, vf b) { return {a.v / b.v}; }
static inline vf vf_fma(vf a, vf b, vf c) { return {a.v * b.v + c.v}; }
static inline vm vf_lt(vf a, vf b) { return {a.v < b.v}; }
static inline vf vf_select(vm m, vf yes, vf no) {
  return vf_from_bits((m.m & vf_bits(yes)) | (~m.m & vf_bits(no)));
}
// b wherever the comparison is false, NaN included.
static inline vf vf_max(vf a, vf b) { return vf_select(vf_lt(b, a), a, b); }
static inline vf vf_min(vf a, vf b) { return vf_select(vf_lt(a, b), a, b); }
static inline vf vf_sqrt(vf a) {
#if defined(__SSE2__)
  return {_mm_sqrt_ps(a.v)};
#else
  for (int i = 0; i < 4; ++i) a.v[i] = sqrtf(a.v[i]);
  return a;
#endif
}
static inline vf vf_abs(vf a) { return vf_from_bits(vf_bits(a) & 0x7FFFFFFF); }
static inline vf vf_sign_of(vf magnitude, vf sign) {
  return vf_from_bits(vf_bits(magnitude) | (vf_bits(sign) & INT32_MIN));
}
// To nearest, ties to even, for |a| < 2^22: the sum with 1.5 * 2^23 has no fraction bits left.
static inline vf vf_round(vf a) { return {(a.v + 0x1.8p23f) - 0x1.8p23f}; }
// a * 2^n for integral |n| <= 252, in two steps so that subnormal results come out right.
static inline vf vf_ldexp(vf a, vf n) {
  const gf_int4 k = __builtin_convertvector(n.v, gf_int4), half = k >> 1;
  return a * vf_from_bits((half + 127) << 23) * vf_from_bits((k - half + 127) << 23);
}

// Neighbours exchanged: lanes 1 0 3 2.
static inline vf vf_swap_pairs(vf a) { return {gf_float4{a.v[1], a.v[0], a.v[3], a.v[2]}}; }

static inline float vf_sum(vf a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }

static inline float vf_greatest(vf a) {
  const float x = a.v[0] > a.v[1] ? a.v[0] : a.v[1], y = a.v[2] > a.v[3] ? a.v[2] : a.v[3];
  return x > y ? x : y;
}

// Lane i of the result is the sum of r[i]'s lanes, added up in the same tree for every i.
static inline vf vf_sum_each(const vf* r) {
  const auto add = [&](int i, int j) {
    return gf_float4{r[0].v[i], r[1].v[i], r[2].v[i], r[3].v[i]} +
           gf_float4{r[0].v[j], r[1].v[j], r[2].v[j], r[3].v[j]};
  };
  return {add(0, 2) + add(1, 3)};
}
