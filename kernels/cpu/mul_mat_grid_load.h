// 32 elements of the grid types as signed bytes, with a scale for each half; and their products.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/simd.h"
#include "quants/traits.h"

namespace gf {

// -- rows of grids as eight (or four) bytes, written out once

template <class Row>
struct GridRows {
  static constexpr int kMost = 2048;
  Row rows[kMost];

  template <class Code>
  GridRows(const Code* codes, int n, uint64_t values) {
    for (int i = 0; i < n; ++i) {
      gf_i8 v[8];
      gf_grid_row<sizeof(Row)>(codes[i], values, 0, v);
      std::memcpy(rows + i, v, sizeof(Row));
    }
  }
  Row operator[](uint32_t i) const { return rows[i]; }
};

template <class Row, const auto& kCodes, uint64_t kValues>
const GridRows<Row>& written_out() {
  static const GridRows<Row> rows(kCodes, sizeof kCodes / sizeof kCodes[0], kValues);
  return rows;
}

// Eight elements as they lie in memory, without their signs.
GF_INLINE uint64_t two_rows(const GridRows<uint32_t>& g, uint32_t a, uint32_t b) {
  return g[a] | static_cast<uint64_t>(g[b]) << 32;
}

struct Eights {
  uint64_t v[4];   // rows
  uint32_t signs;  // a bit an element, set where negative
  float s0, s1;    // of the first and second 16
};

GF_INLINE uint32_t even_signs_of(uint32_t tail) {  // four times seven bits
  return gf_even_signs(tail & 127) | gf_even_signs(tail >> 7 & 127) << 8 |
         gf_even_signs(tail >> 14 & 127) << 16 | gf_even_signs(tail >> 21 & 127) << 24;
}

GF_INLINE Eights eights(const block_iq2_xxs* b, int s) {
  static const auto& g = written_out<uint64_t, gf_grid_iq2_xxs, GF_IQ2_VALUES>();
  const uint32_t tail = gf_tail_iq2_xxs(b, s);
  Eights e = {{}, even_signs_of(tail), gf_scale_iq2_xxs(b, tail), 0.0f};
  for (int i = 0; i < 4; ++i) e.v[i] = g[gf_row_iq2_xxs(b, 4 * s + i)];
  e.s1 = e.s0;
  return e;
}
GF_INLINE Eights eights(const block_iq2_xs* b, int s) {
  static const auto& g = written_out<uint64_t, gf_grid_iq2_xs, GF_IQ2_VALUES>();
  Eights e = {{},
              0,
              gf_quarter_scale(b->d, b->scales, 2 * s),
              gf_quarter_scale(b->d, b->scales, 2 * s + 1)};
  for (int i = 0; i < 4; ++i) {
    const uint32_t q = b->qs[4 * s + i];
    e.v[i] = g[q & 511];
    e.signs |= gf_even_signs(q >> 9) << (8 * i);
  }
  return e;
}
GF_INLINE Eights eights(const block_iq2_s* b, int s) {
  static const auto& g = written_out<uint64_t, gf_grid_iq2_s, GF_IQ2_VALUES>();
  Eights e = {{},
              gf_load_u32(b->signs + 4 * s),
              gf_quarter_scale(b->d, b->scales, 2 * s),
              gf_quarter_scale(b->d, b->scales, 2 * s + 1)};
  for (int i = 0; i < 4; ++i) e.v[i] = g[gf_row_iq2_s(b, 4 * s + i)];
  return e;
}
GF_INLINE Eights eights(const block_iq3_xxs* b, int s) {
  static const auto& g = written_out<uint32_t, gf_grid_iq3_xxs, GF_IQ3_XXS_VALUES>();
  const uint32_t tail = gf_tail_iq3_xxs(b, s);
  Eights e = {{}, even_signs_of(tail), gf_scale_iq3_xxs(b, tail), 0.0f};
  for (int i = 0; i < 4; ++i) e.v[i] = two_rows(g, b->qs[8 * s + 2 * i], b->qs[8 * s + 2 * i + 1]);
  e.s1 = e.s0;
  return e;
}
GF_INLINE Eights eights(const block_iq3_s* b, int s) {
  static const auto& g = written_out<uint32_t, gf_grid_iq3_s, GF_IQ3_S_VALUES>();
  const float d = gf_scale_iq3_s(b, s);
  Eights e = {{}, gf_load_u32(b->signs + 4 * s), d, d};
  for (int i = 0; i < 4; ++i) {
    const int row = 8 * s + 2 * i;
    e.v[i] = two_rows(g, gf_row_iq3_s(b, row), gf_row_iq3_s(b, row + 1));
  }
  return e;
}
GF_INLINE Eights eights(const block_iq1_s* b, int s) {
  static const auto& above = written_out<uint64_t, gf_grid_iq1, GF_IQ1_ABOVE>();
  static const auto& below = written_out<uint64_t, gf_grid_iq1, GF_IQ1_BELOW>();
  const auto& g = b->qh[s] >> 15 ? below : above;
  const float d = gf_scale_iq1_s(b, s);
  Eights e = {{}, 0, d, d};
  for (int i = 0; i < 4; ++i) e.v[i] = g[gf_row_iq1_s(b, 4 * s + i)];
  return e;
}
GF_INLINE Eights eights(const block_iq1_m* b, int s) {
  static const auto& above = written_out<uint64_t, gf_grid_iq1, GF_IQ1_ABOVE>();
  static const auto& below = written_out<uint64_t, gf_grid_iq1, GF_IQ1_BELOW>();
  Eights e = {{}, 0, gf_scale_iq1_m(b, 2 * s), gf_scale_iq1_m(b, 2 * s + 1)};
  for (int i = 0; i < 4; ++i) {
    const int c = 4 * s + i;
    e.v[i] = (b->qh[c / 2] >> (c % 2 * 4 + 3) & 1 ? below : above)[gf_row_iq1_m(b, c)];
  }
  return e;
}

#if defined(__AVX2__)

struct Signed32 {
  __m256i v;
  __m256 scales;
};

GF_INLINE __m256 two_scales(float s0, float s1) {
  return _mm256_insertf128_ps(_mm256_set1_ps(s0), _mm_set1_ps(s1), 1);
}

template <class B>
GF_INLINE Signed32 signed_32(const B* b, int s) {
  const Eights e = eights(b, s);
  __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(e.v));
  // Byte i of `negative` is set where bit i of the signs is: byte i / 8 of them, masked.
  const __m256i each =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(e.signs)), each);
  const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
  v = _mm256_sub_epi8(_mm256_xor_si256(v, negative), negative);
  return {v, two_scales(e.s0, e.s1)};
}

// Digits of base three: every 16 elements are the same digit of 16 (the last 16: of 4) bytes.
GF_INLINE __m128i digits_of(__m128i bytes, int power) {
  const __m256i wide = _mm256_cvtepu8_epi16(bytes);
  const __m256i rest =
      _mm256_and_si256(_mm256_mullo_epi16(wide, _mm256_set1_epi16(static_cast<short>(power))),
                       _mm256_set1_epi16(255));
  const __m256i digit = _mm256_srli_epi16(_mm256_mullo_epi16(rest, _mm256_set1_epi16(3)), 8);
  return _mm_packus_epi16(_mm256_castsi256_si128(digit), _mm256_extracti128_si256(digit, 1));
}
GF_INLINE __m128i digits_16(const block_tq1_0* b, int i) {  // elements 16 i to 16 i + 15
  static constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  const auto at = [b](int byte) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(b->qs + byte));
  };
  if (i < 10) return digits_of(at(i % 2 * 16), kPowers[i / 2]);
  if (i < 15) return digits_of(at(32), kPowers[i - 10]);
  uint8_t v[16];
  for (int j = 0; j < 16; ++j) v[j] = static_cast<uint8_t>(b->qs[48 + j % 4] * kPowers[j / 4]);
  return digits_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v)), 1);
}
GF_INLINE Signed32 signed_32(const block_tq1_0* b, int s) {
  const __m256i q = _mm256_set_m128i(digits_16(b, 2 * s + 1), digits_16(b, 2 * s));
  return {_mm256_sub_epi8(q, _mm256_set1_epi8(1)), _mm256_set1_ps(gf_f16_to_f32(b->d))};
}

struct GridSum {
  __m256 sum = _mm256_setzero_ps();

  GF_INLINE void add(const Signed32& w, const int8_t* q, float d) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w.v), _mm256_sign_epi8(x, w.v));
    const __m256i dots = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256 scale = _mm256_mul_ps(w.scales, _mm256_set1_ps(d));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, sum);
  }
  GF_INLINE float total() const {
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
  }
};

#elif defined(GF_NEON)

struct Signed32 {
  int8x16_t v[2];
  float s0, s1;
};

template <class B>
GF_INLINE Signed32 signed_32(const B* b, int s) {
  static constexpr uint8_t each[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                       2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  const Eights e = eights(b, s);
  // Byte i of `negative` is set where bit i of the signs is: byte i / 8 of them, masked.
  const uint8x16_t signs = vreinterpretq_u8_u32(vdupq_n_u32(e.signs));
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  Signed32 w = {{}, e.s0, e.s1};
  for (int h = 0; h < 2; ++h) {
    const int8x16_t v = vreinterpretq_s8_u64(vld1q_u64(e.v + 2 * h));
    const int8x16_t negative =
        vreinterpretq_s8_u8(vtstq_u8(vqtbl1q_u8(signs, vld1q_u8(each + 16 * h)), bit));
    w.v[h] = vsubq_s8(veorq_s8(v, negative), negative);
  }
  return w;
}

// Digits of base three: every 16 elements are the same digit of 16 (the last 16: of 4) bytes.
GF_INLINE int8x16_t digits_16(const block_tq1_0* b, int i) {  // elements 16 i to 16 i + 15
  static constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  uint8x16_t rest;
  if (i < 15) {
    const int byte = i < 10 ? i % 2 * 16 : 32;
    rest = vmulq_u8(vld1q_u8(b->qs + byte), vdupq_n_u8(kPowers[i < 10 ? i / 2 : i - 10]));
  } else {
    uint8_t v[16];
    for (int j = 0; j < 16; ++j) v[j] = static_cast<uint8_t>(b->qs[48 + j % 4] * kPowers[j / 4]);
    rest = vld1q_u8(v);
  }
  // rest * 3 / 256 as (rest + rest / 2) / 128: what rounding down loses never reaches a digit.
  const uint8x16_t digit = vshrq_n_u8(vhaddq_u8(rest, vshrq_n_u8(rest, 1)), 6);
  return vsubq_s8(vreinterpretq_s8_u8(digit), vdupq_n_s8(1));
}
GF_INLINE Signed32 signed_32(const block_tq1_0* b, int s) {
  const float d = gf_f16_to_f32(b->d);
  return {{digits_16(b, 2 * s), digits_16(b, 2 * s + 1)}, d, d};
}

// Four sums of four products each.
GF_INLINE int32x4_t dot_16(int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(vdupq_n_s32(0), w, x);
#else  // sums of two fit 16 bits: no weight is above 64
  return vpaddlq_s16(vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x));
#endif
}

struct GridSum {
  float32x4_t sum = vdupq_n_f32(0.0f);

  GF_INLINE void add(const Signed32& w, const int8_t* q, float d) {
    const int32x4_t first = dot_16(w.v[0], vld1q_s8(q)), second = dot_16(w.v[1], vld1q_s8(q + 16));
    sum = vfmaq_n_f32(sum, vcvtq_f32_s32(first), w.s0 * d);
    sum = vfmaq_n_f32(sum, vcvtq_f32_s32(second), w.s1 * d);
  }
  GF_INLINE float total() const { return vf_sum({sum}); }
};

#else

struct Signed32 {
  int8_t v[32];
  float s0, s1;
};

template <class B>
GF_INLINE Signed32 signed_32(const B* b, int s) {
  const Eights e = eights(b, s);
  Signed32 w = {{}, e.s0, e.s1};
  std::memcpy(w.v, e.v, sizeof w.v);
  for (int i = 0; i < 32; ++i) {
    w.v[i] = static_cast<int8_t>(e.signs >> i & 1 ? -w.v[i] : w.v[i]);
  }
  return w;
}
GF_INLINE Signed32 signed_32(const block_tq1_0* b, int s) {
  const float d = gf_f16_to_f32(b->d);
  Signed32 w = {{}, d, d};
  for (int i = 0; i < 32; ++i) {
    const gf_tq1_place p = gf_place_tq1_0(32 * s + i);
    const uint32_t rest = b->qs[p.byte] * gf_power_of_3(p.digit) & 255;
    w.v[i] = static_cast<int8_t>(static_cast<int>(rest * 3 >> 8) - 1);
  }
  return w;
}

struct GridSum {
  float sum = 0.0f;

  GF_INLINE void add(const Signed32& w, const int8_t* q, float d) {
    int32_t dots[2] = {0, 0};
    for (int i = 0; i < 16; ++i) dots[0] += w.v[i] * q[i];
    for (int i = 16; i < 32; ++i) dots[1] += w.v[i] * q[i];
    sum += d * (w.s0 * static_cast<float>(dots[0]) + w.s1 * static_cast<float>(dots[1]));
  }
  GF_INLINE float total() const { return sum; }
};

#endif

}  // namespace gf
