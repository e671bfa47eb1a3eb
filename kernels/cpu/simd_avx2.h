// vf on AVX2 with FMA and F16C: eight floats.
#pragma once

#include "cpu/intrinsics.h"

constexpr int VL = 8;
struct vf {
  __m256 v;
};
struct vm {  // all bits of a lane set where true
  __m256 m;
};

static inline __m256i vf_tail(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_set(float x) { return {_mm256_set1_ps(x)}; }
static inline vf vf_load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline vf vf_load_n(const float* p, int n) { return {_mm256_maskload_ps(p, vf_tail(n))}; }
static inline void vf_store(float* p, vf a) { _mm256_storeu_ps(p, a.v); }
static inline void vf_store_n(float* p, vf a, int n) { _mm256_maskstore_ps(p, vf_tail(n), a.v); }
static inline vf vf_load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline vf vf_load_bf16(const uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
static inline vf vf_load_i8(const int8_t* p) {
  const __m128i q = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q))};
}

static inline vf operator+(vf a, vf b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline vf operator-(vf a, vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline vf operator*(vf a, vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline vf operator/(vf a, vf b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline vf vf_fma(vf a, vf b, vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// b wherever the comparison is false, NaN included.
static inline vf vf_max(vf a, vf b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline vf vf_min(vf a, vf b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline vf vf_sqrt(vf a) { return {_mm256_sqrt_ps(a.v)}; }
static inline vf vf_abs(vf a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
static inline vf vf_sign_of(vf magnitude, vf sign) {
  return {_mm256_or_ps(magnitude.v, _mm256_and_ps(sign.v, _mm256_set1_ps(-0.0f)))};
}
static inline vf vf_round(vf a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral |n| <= 252, in two steps so that subnormal results come out right.
static inline vf vf_ldexp(vf a, vf n) {
  const __m256i k = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(k, 1);
  const auto pow2 = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, pow2(half)), pow2(_mm256_sub_epi32(k, half)))};
}

// Neighbours exchanged: lanes 1 0 3 2 ...
static inline vf vf_swap_pairs(vf a) { return {_mm256_permute_ps(a.v, 0xB1)}; }

static inline vm vf_lt(vf a, vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
static inline vf vf_select(vm m, vf yes, vf no) { return {_mm256_blendv_ps(no.v, yes.v, m.m)}; }

static inline float vf_sum(vf a) {
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}

static inline float vf_greatest(vf a) {
  const __m128 q = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

// Lane i of the result is the sum of r[i]'s lanes, added up in the same tree for every i.
static inline vf vf_sum_each(const vf* r) {
  __m256 a[4], b[2];
  for (int i = 0; i < 4; ++i) {  // lane pairs (0,2) (1,3) of each half
    const __m256 lo = _mm256_unpacklo_ps(r[2 * i].v, r[2 * i + 1].v);
    a[i] = _mm256_add_ps(lo, _mm256_unpackhi_ps(r[2 * i].v, r[2 * i + 1].v));
  }
  for (int i = 0; i < 2; ++i) {
    const __m256 lo = _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44);
    b[i] = _mm256_add_ps(lo, _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xEE));
  }
  return {_mm256_add_ps(_mm256_permute2f128_ps(b[0], b[1], 0x20),
                        _mm256_permute2f128_ps(b[0], b[1], 0x31))};
}
