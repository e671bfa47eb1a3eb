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
};

template <class Row, const auto& kCodes, uint64_t kValues>
const Row* written_out() {
  static const GridRows<Row> rows(kCodes, sizeof kCodes / sizeof kCodes[0], kValues);
  return rows.rows;
}

// By seven bits that stand for eight signs: all bits of a byte set where it is negative.
struct EvenSigns {
  uint64_t masks[128] = {};

  EvenSigns() {
    for (uint32_t i = 0; i < 128 * 8; ++i) {
      if (gf_even_signs(i / 8) >> i % 8 & 1) masks[i / 8] |= uint64_t{255} << i % 8 * 8;
    }
  }
  static const uint64_t* table() {
    static const EvenSigns signs;
    return signs.masks;
  }
};

// The tables of a type, found once a product: two where codes say which.
template <class B>
struct Tables {};
struct WithEvenSigns {
#if defined(GF_NEON)  // elsewhere all 32 signs at once cost less
  const uint64_t* negative = EvenSigns::table();
#endif
};
template <>
struct Tables<block_iq2_xxs> : WithEvenSigns {
  const uint64_t* rows = written_out<uint64_t, gf_grid_iq2_xxs, GF_IQ2_VALUES>();
};
template <>
struct Tables<block_iq2_xs> : WithEvenSigns {
  const uint64_t* rows = written_out<uint64_t, gf_grid_iq2_xs, GF_IQ2_VALUES>();
};
template <>
struct Tables<block_iq2_s> {
  const uint64_t* rows = written_out<uint64_t, gf_grid_iq2_s, GF_IQ2_VALUES>();
};
template <>
struct Tables<block_iq3_xxs> : WithEvenSigns {
  const uint32_t* rows = written_out<uint32_t, gf_grid_iq3_xxs, GF_IQ3_XXS_VALUES>();
};
template <>
struct Tables<block_iq3_s> {
  const uint32_t* rows = written_out<uint32_t, gf_grid_iq3_s, GF_IQ3_S_VALUES>();
};
struct AboveBelow {
  const uint64_t* rows[2] = {written_out<uint64_t, gf_grid_iq1, GF_IQ1_ABOVE>(),
                             written_out<uint64_t, gf_grid_iq1, GF_IQ1_BELOW>()};
};
template <>
struct Tables<block_iq1_s> : AboveBelow {};
template <>
struct Tables<block_iq1_m> : AboveBelow {};

// Whether elements have signs beside their rows, and whether both halves of 32 have one scale.
template <class B>
constexpr bool kSigned = !std::is_base_of_v<AboveBelow, Tables<B>>;
template <class B>
constexpr bool kEvenSigns = std::is_base_of_v<WithEvenSigns, Tables<B>>;
template <class B>
constexpr bool kOneScale = std::is_same_v<B, block_iq2_xxs> || std::is_same_v<B, block_iq3_xxs> ||
                           std::is_same_v<B, block_iq3_s> || std::is_same_v<B, block_iq1_s> ||
                           std::is_same_v<B, block_tq1_0>;

// Eight elements as they lie in memory, without their signs.
GF_INLINE uint64_t two_rows(const uint32_t* g, uint32_t a, uint32_t b) {
  return g[a] | static_cast<uint64_t>(g[b]) << 32;
}

struct Eights {
  uint64_t v[4];   // rows
  uint32_t signs;  // a bit an element, set where negative; where they are even, see seven
  float s0, s1;    // of the first and second 16
  uint32_t seven[4] = {};
};

GF_INLINE uint32_t even_signs(uint32_t seven) {  // gf_even_signs of four bytes
  uint32_t x = seven ^ (seven >> 4 & 0x07070707);
  x ^= x >> 2 & 0x03030303;
  x ^= x >> 1;
  return seven | (x & 0x01010101) << 7;
}
template <class B>
GF_INLINE uint32_t signs_of(const Eights& e) {
  if constexpr (!kEvenSigns<B>) return e.signs;
  return even_signs(e.seven[0] | e.seven[1] << 8 | e.seven[2] << 16 | e.seven[3] << 24);
}

GF_INLINE Eights eights(const block_iq2_xxs* b, int s, const Tables<block_iq2_xxs>& t) {
  const uint32_t tail = gf_tail_iq2_xxs(b, s);
  Eights e = {{}, 0, gf_scale_iq2_xxs(b, tail), 0.0f};
  for (int i = 0; i < 4; ++i) {
    e.v[i] = t.rows[gf_row_iq2_xxs(b, 4 * s + i)];
    e.seven[i] = tail >> (7 * i) & 127;
  }
  e.s1 = e.s0;
  return e;
}
GF_INLINE Eights eights(const block_iq2_xs* b, int s, const Tables<block_iq2_xs>& t) {
  Eights e = {{},
              0,
              gf_quarter_scale(b->d, b->scales, 2 * s),
              gf_quarter_scale(b->d, b->scales, 2 * s + 1)};
  for (int i = 0; i < 4; ++i) {
    const uint32_t q = b->qs[4 * s + i];
    e.v[i] = t.rows[q & 511];
    e.seven[i] = q >> 9;
  }
  return e;
}
GF_INLINE Eights eights(const block_iq2_s* b, int s, const Tables<block_iq2_s>& t) {
  Eights e = {{},
              gf_load_u32(b->signs + 4 * s),
              gf_quarter_scale(b->d, b->scales, 2 * s),
              gf_quarter_scale(b->d, b->scales, 2 * s + 1)};
  for (int i = 0; i < 4; ++i) e.v[i] = t.rows[gf_row_iq2_s(b, 4 * s + i)];
  return e;
}
GF_INLINE Eights eights(const block_iq3_xxs* b, int s, const Tables<block_iq3_xxs>& t) {
  const uint32_t tail = gf_tail_iq3_xxs(b, s);
  Eights e = {{}, 0, gf_scale_iq3_xxs(b, tail), 0.0f};
  for (int i = 0; i < 4; ++i) {
    e.v[i] = two_rows(t.rows, b->qs[8 * s + 2 * i], b->qs[8 * s + 2 * i + 1]);
    e.seven[i] = tail >> (7 * i) & 127;
  }
  e.s1 = e.s0;
  return e;
}
GF_INLINE Eights eights(const block_iq3_s* b, int s, const Tables<block_iq3_s>& t) {
  const float d = gf_scale_iq3_s(b, s);
  Eights e = {{}, gf_load_u32(b->signs + 4 * s), d, d};
  for (int i = 0; i < 4; ++i) {
    const int row = 8 * s + 2 * i;
    e.v[i] = two_rows(t.rows, gf_row_iq3_s(b, row), gf_row_iq3_s(b, row + 1));
  }
  return e;
}
GF_INLINE Eights eights(const block_iq1_s* b, int s, const Tables<block_iq1_s>& t) {
  const uint64_t* const rows = t.rows[b->qh[s] >> 15];
  const float d = gf_scale_iq1_s(b, s);
  Eights e = {{}, 0, d, d};
  for (int i = 0; i < 4; ++i) e.v[i] = rows[gf_row_iq1_s(b, 4 * s + i)];
  return e;
}
GF_INLINE Eights eights(const block_iq1_m* b, int s, const Tables<block_iq1_m>& t) {
  Eights e = {{}, 0, gf_scale_iq1_m(b, 2 * s), gf_scale_iq1_m(b, 2 * s + 1)};
  for (int i = 0; i < 4; ++i) {
    const int c = 4 * s + i;
    e.v[i] = t.rows[b->qh[c / 2] >> (c % 2 * 4 + 3) & 1][gf_row_iq1_m(b, c)];
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
GF_INLINE Signed32 signed_32(const B* b, int s, const Tables<B>& tables) {
  const Eights e = eights(b, s, tables);
  __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(e.v));
  // Byte i of `negative` is set where bit i of the signs is: byte i / 8 of them, masked.
  const __m256i each =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i spread =
      _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(signs_of<B>(e))), each);
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
GF_INLINE Signed32 signed_32(const block_tq1_0* b, int s, const Tables<block_tq1_0>&) {
  const __m256i q = _mm256_set_m128i(digits_16(b, 2 * s + 1), digits_16(b, 2 * s));
  return {_mm256_sub_epi8(q, _mm256_set1_epi8(1)), _mm256_set1_ps(gf_f16_to_f32(b->d))};
}

struct GridSum {
  __m256 sum = _mm256_setzero_ps();

  template <bool one_scale>
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

GF_INLINE int8x16_t side_by_side(uint64_t a, uint64_t b) {
  return vreinterpretq_s8_u64(vcombine_u64(vcreate_u64(a), vcreate_u64(b)));
}

template <class B>
GF_INLINE Signed32 signed_32(const B* b, int s, const Tables<B>& tables) {
  const Eights e = eights(b, s, tables);
  Signed32 w = {{side_by_side(e.v[0], e.v[1]), side_by_side(e.v[2], e.v[3])}, e.s0, e.s1};
  const auto negate = [](int8x16_t v, int8x16_t where) {
    return vsubq_s8(veorq_s8(v, where), where);
  };
  if constexpr (kEvenSigns<B>) {
    const uint64_t* const m = tables.negative;
    w.v[0] = negate(w.v[0], side_by_side(m[e.seven[0]], m[e.seven[1]]));
    w.v[1] = negate(w.v[1], side_by_side(m[e.seven[2]], m[e.seven[3]]));
  } else if constexpr (kSigned<B>) {
    // Byte i is negative where bit i of the signs is set: byte i / 8 of them, masked.
    static constexpr uint8_t each[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                         2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
    const uint8x16_t signs = vreinterpretq_u8_u32(vdupq_n_u32(e.signs));
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    for (int h = 0; h < 2; ++h) {
      const uint8x16_t own = vqtbl1q_u8(signs, vld1q_u8(each + 16 * h));
      w.v[h] = negate(w.v[h], vreinterpretq_s8_u8(vtstq_u8(own, bit)));
    }
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
    static constexpr uint8_t each[16] = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
    const uint8x16_t four = vreinterpretq_u8_u32(vdupq_n_u32(gf_load_u32(b->qs + 48)));
    rest = vmulq_u8(four, vld1q_u8(each));
  }
  // rest * 3 / 256 as (rest + rest / 2) / 128: what rounding down loses never reaches a digit.
  const uint8x16_t digit = vshrq_n_u8(vhaddq_u8(rest, vshrq_n_u8(rest, 1)), 6);
  return vsubq_s8(vreinterpretq_s8_u8(digit), vdupq_n_s8(1));
}
GF_INLINE Signed32 signed_32(const block_tq1_0* b, int s, const Tables<block_tq1_0>&) {
  const float d = gf_f16_to_f32(b->d);
  return {{digits_16(b, 2 * s), digits_16(b, 2 * s + 1)}, d, d};
}

// Four sums of four products each, added to `to`.
GF_INLINE int32x4_t dot_16(int32x4_t to, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(to, w, x);
#else  // sums of two fit 16 bits: no weight is above 64
  return vpadalq_s16(to, vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x));
#endif
}

struct GridSum {
  float32x4_t sum = vdupq_n_f32(0.0f);

  template <bool one_scale>
  GF_INLINE void add(const Signed32& w, const int8_t* q, float d) {
    const int32x4_t zero = vdupq_n_s32(0), first = dot_16(zero, w.v[0], vld1q_s8(q));
    const int32x4_t second = dot_16(one_scale ? first : zero, w.v[1], vld1q_s8(q + 16));
    if constexpr (!one_scale) sum = vfmaq_n_f32(sum, vcvtq_f32_s32(first), w.s0 * d);
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
GF_INLINE Signed32 signed_32(const B* b, int s, const Tables<B>& tables) {
  const Eights e = eights(b, s, tables);
  Signed32 w = {{}, e.s0, e.s1};
  std::memcpy(w.v, e.v, sizeof w.v);
  const uint32_t signs = signs_of<B>(e);
  for (int i = 0; i < 32; ++i) {
    w.v[i] = static_cast<int8_t>(signs >> i & 1 ? -w.v[i] : w.v[i]);
  }
  return w;
}
GF_INLINE Signed32 signed_32(const block_tq1_0* b, int s, const Tables<block_tq1_0>&) {
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

  template <bool one_scale>
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
