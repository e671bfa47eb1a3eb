// vf on AVX-512: sixteen floats.
#pragma once

#include "cpu/intrinsics.h"

constexpr int VL = 16;
struct vf {
  __m512 v;
};
struct vm {  // one truth value a lane
  __mmask16 m;
};

static inline __mmask16 vf_tail(int n) { return static_cast<__mmask16>((1u << n) - 1); }

static inline vf vf_set(float x) { return {_mm512_set1_ps(x)}; }
static inline vf vf_load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline vf vf_load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(vf_tail(n), p)}; }
static inline void vf_store(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
static inline void vf_store_n(float* p, vf a, int n) { _mm512_mask_storeu_ps(p, vf_tail(n), a.v); }
static inline vf vf_load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline vf vf_load_bf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
static inline vf vf_load_i8(const int8_t* p) {
  const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q))};
}

static inline vf operator+(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline vf operator-(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline vf operator*(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline vf operator/(vf a, vf b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline vf vf_fma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b wherever the comparison is false, NaN included.
static inline vf vf_max(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline vf vf_min(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline vf vf_sqrt(vf a) { return {_mm512_sqrt_ps(a.v)}; }
static inline vf vf_abs(vf a) { return {_mm512_abs_ps(a.v)}; }
static inline vf vf_sign_of(vf magnitude, vf sign) {
  const __m512 bit = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(magnitude.v, _mm512_and_ps(sign.v, bit))};
}
static inline vf vf_round(vf a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
// a * 2^n for integral n; subnormal results and overflow come out right.
static inline vf vf_ldexp(vf a, vf n) { return {_mm512_scalef_ps(a.v, n.v)}; }

// Neighbours exchanged: lanes 1 0 3 2 ...
static inline vf vf_swap_pairs(vf a) { return {_mm512_permute_ps(a.v, 0xB1)}; }

static inline vm vf_lt(vf a, vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
static inline vf vf_select(vm m, vf yes, vf no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }

static inline float vf_sum(vf a) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}

static inline float vf_greatest(vf a) { return _mm512_reduce_max_ps(a.v); }

// Lane i of the result is the sum of r[i]'s lanes, added up in the same tree for every i.
static inline vf vf_sum_each(const vf* r) {
  __m512 a[8], b[4];
  for (int i = 0; i < 8; ++i) {  // lane pairs (0,2) (1,3) of each quarter
    const __m512 lo = _mm512_unpacklo_ps(r[2 * i].v, r[2 * i + 1].v);
    a[i] = _mm512_add_ps(lo, _mm512_unpackhi_ps(r[2 * i].v, r[2 * i + 1].v));
  }
  for (int i = 0; i < 4; ++i) {  // then one number a quarter; b[i] holds r[4i..4i+3]
    const __m512 lo = _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44);
    b[i] = _mm512_add_ps(lo, _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xEE));
  }
  const __m512 c0 =
      _mm512_add_ps(_mm512_shuffle_f32x4(b[0], b[1], 0x88), _mm512_shuffle_f32x4(b[0], b[1], 0xDD));
  const __m512 c1 =
      _mm512_add_ps(_mm512_shuffle_f32x4(b[2], b[3], 0x88), _mm512_shuffle_f32x4(b[2], b[3], 0xDD));
  return {_mm512_add_ps(_mm512_shuffle_f32x4(c0, c1, 0x88), _mm512_shuffle_f32x4(c0, c1, 0xDD))};
}
