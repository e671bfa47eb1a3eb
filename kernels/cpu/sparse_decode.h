// Blocks of 32 elements of the tuned types, decoded to bytes and to vectors of floats (AVX2 and
// up).
#pragma once

#if defined(__AVX2__)
#include "cpu/mul_mat_vec.h"
#include "cpu/simd.h"
#include "quants/traits.h"

namespace gf {

GF_INLINE __m128i load_bytes16(const void* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
GF_INLINE __m256i load_bytes32(const void* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Eight floats from eight unsigned bytes.
GF_INLINE __m256 floats_of_u8(gf_u32 low, gf_u32 high) {
  const __m128i bytes =
      _mm_insert_epi32(_mm_cvtsi32_si128(static_cast<int>(low)), static_cast<int>(high), 1);
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

// v[i] = the 16 or 8 elements from VL * i on of 32 bytes, as floats.
template <bool kSigned>
GF_INLINE void widen_bytes(__m256i bytes, vf (&v)[32 / VL]) {
  const __m128i half[2] = {_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)};
#if defined(__AVX512F__)
  for (int i = 0; i < 2; ++i) {
    v[i].v =
        _mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(half[i]) : _mm512_cvtepu8_epi32(half[i]));
  }
#else
  for (int i = 0; i < 4; ++i) {
    const __m128i b = i % 2 ? _mm_srli_si128(half[i / 2], 8) : half[i / 2];
    v[i].v = _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
  }
#endif
}

#if defined(__AVX512F__)
// v = table[q] for 16 bytes whose low halves are elements 0..15 and high halves 16..31.
GF_INLINE void look_up_halves(__m512 table, __m128i q, vf& low, vf& high) {
  const __m512i index = _mm512_cvtepu8_epi32(q);  // the low four bits count
  low.v = _mm512_permutexvar_ps(index, table);
  high.v = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), table);
}
GF_INLINE __m512 count_up() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif

// Each type: bytes(b, s), sub-block s as 32 bytes, kSigned or less kBias; its Scales; and
// values(b, s, scales, v), the floats.

// Of blocks with one scale.
template <class B>
struct DecodeOneScale {
  using Block = B;
  struct Scales {
    float d;
  };
  static GF_INLINE Scales scales(const Block* b) { return {gf_f16_to_f32(b->d)}; }
};

struct DecodeQ8_0 : DecodeOneScale<block_q8_0> {
  static constexpr bool kSigned = true;
  static constexpr int kBias = 0;
  static GF_INLINE __m256i bytes(const Block* b, int) { return load_bytes32(b->qs); }
  static GF_INLINE void values(const Block* b, int, const Scales& s, vf (&v)[32 / VL]) {
    widen_bytes<true>(bytes(b, 0), v);
    for (vf& x : v) x = x * vf_set(s.d);
  }
};

struct DecodeQ4_0 : DecodeOneScale<block_q4_0> {
  static constexpr bool kSigned = false;
  static constexpr int kBias = 8;
  static GF_INLINE __m256i bytes(const Block* b, int) {
    const __m128i q = load_bytes16(b->qs);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(q, 4), q), _mm256_set1_epi8(15));
  }
  static GF_INLINE void values(const Block* b, int, const Scales& s, vf (&v)[32 / VL]) {
#if defined(__AVX512F__)
    const __m512 steps = _mm512_sub_ps(count_up(), _mm512_set1_ps(8));
    look_up_halves(_mm512_mul_ps(steps, _mm512_set1_ps(s.d)), load_bytes16(b->qs), v[0], v[1]);
#else
    widen_bytes<true>(_mm256_sub_epi8(bytes(b, 0), _mm256_set1_epi8(8)), v);
    for (vf& x : v) x = x * vf_set(s.d);
#endif
  }
};

struct DecodeQ4_K {
  using Block = block_q4_K;
  static constexpr bool kSigned = false;
  static constexpr int kBias = 0;
  struct Scales {
    float scale[8], min[8];
  };
  static GF_INLINE Scales scales(const Block* b) {
    gf_u32 p[3];
    std::memcpy(p, b->scales, sizeof p);
    const gf_u32 high_scales = (p[2] & 0x0F0F0F0F) | (p[0] >> 6 & 0x03030303) << 4;
    const gf_u32 high_mins = (p[2] >> 4 & 0x0F0F0F0F) | (p[1] >> 6 & 0x03030303) << 4;
    const __m256 scale = floats_of_u8(p[0] & 0x3F3F3F3F, high_scales);
    const __m256 min = floats_of_u8(p[1] & 0x3F3F3F3F, high_mins);
    Scales s;
    _mm256_storeu_ps(s.scale, _mm256_mul_ps(scale, _mm256_set1_ps(gf_f16_to_f32(b->d))));
    _mm256_storeu_ps(s.min, _mm256_mul_ps(min, _mm256_set1_ps(gf_f16_to_f32(b->dmin))));
    return s;
  }
  static GF_INLINE __m256i bytes(const Block* b, int s) {
    const __m256i q = load_bytes32(b->qs + s / 2 * 32);
    return _mm256_and_si256(s % 2 ? _mm256_srli_epi16(q, 4) : q, _mm256_set1_epi8(15));
  }
  static GF_INLINE void values(const Block* b, int s, const Scales& at, vf (&v)[32 / VL]) {
#if defined(__AVX512F__)
    const __m512 table =
        _mm512_fmsub_ps(count_up(), _mm512_set1_ps(at.scale[s]), _mm512_set1_ps(at.min[s]));
    for (int i = 0; i < 2; ++i) {
      const __m512i q = _mm512_cvtepu8_epi32(load_bytes16(b->qs + s / 2 * 32 + 16 * i));
      v[i].v = _mm512_permutexvar_ps(s % 2 ? _mm512_srli_epi32(q, 4) : q, table);
    }
#else
    widen_bytes<false>(bytes(b, s), v);
    for (vf& x : v) x = vf_fma(x, vf_set(at.scale[s]), vf_set(-at.min[s]));
#endif
  }
};

struct DecodeQ6_K {
  using Block = block_q6_K;
  static constexpr bool kSigned = false;
  static constexpr int kBias = 32;
  struct Scales {
    float scale[16];  // of 16 elements each
  };
  static GF_INLINE Scales scales(const Block* b) {
    const __m128i q = load_bytes16(b->scales);
    const __m256 d = _mm256_set1_ps(gf_f16_to_f32(b->d));
    const auto floats = [&](__m128i bytes) GF_LAMBDA_INLINE {
      return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d);
    };
    Scales s;
    _mm256_storeu_ps(s.scale, floats(q));
    _mm256_storeu_ps(s.scale + 8, floats(_mm_srli_si128(q, 8)));
    return s;
  }
  static GF_INLINE __m256i bytes(const Block* b, int s) {
    const __m256i low = load_bytes32(b->ql + s / 4 * 64 + s % 2 * 32);
    const __m256i high = load_bytes32(b->qh + s / 4 * 32);
    const __m256i four = s / 2 % 2 ? _mm256_srli_epi16(low, 4) : low;
    // The two bits of this sub-block moved to bits 4 and 5.
    const __m256i two = s % 4 == 0   ? _mm256_slli_epi16(high, 4)
                        : s % 4 == 1 ? _mm256_slli_epi16(high, 2)
                        : s % 4 == 2 ? high
                                     : _mm256_srli_epi16(high, 2);
    return _mm256_or_si256(_mm256_and_si256(four, _mm256_set1_epi8(15)),
                           _mm256_and_si256(two, _mm256_set1_epi8(48)));
  }
  static GF_INLINE void values(const Block* b, int s, const Scales& at, vf (&v)[32 / VL]) {
    widen_bytes<true>(_mm256_sub_epi8(bytes(b, s), _mm256_set1_epi8(32)), v);
    for (int i = 0; i < 32 / VL; ++i) v[i] = v[i] * vf_set(at.scale[2 * s + i * VL / 16]);
  }
};

}  // namespace gf
#endif
