// 64-bit ARM: a register holds 4 bytes of each of 4 rows, so sixteen rows are taken in four parts.
// With the dot product instructions one sdot advances 4 sums by 4 elements, the activation's 4
// bytes picked from a register of 16; with those of int8 matrices one smmla advances 2 rows of 2
// columns by 8 elements; without either, products of bytes are added up in 16 bits for as long as
// the weight type's range allows. The integers are exact, so all three give the same bits.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/simd.h"

namespace gf {

constexpr int kVecRows = 4;  // rows in a VecW or VecF
#if defined(__ARM_FEATURE_DOTPROD)
constexpr int kMaxTile = 16;  // columns an unpacked block of weights is used for
#else
constexpr int kMaxTile = 8;
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kPairs = true;  // two columns' activations interleaved by 8 bytes
#else
constexpr bool kPairs = false;
#endif
constexpr bool kSignedDot = true;   // weights are signed bytes; unsigned ones stay below 128
constexpr bool kSignedFree = true;  // small signed weights cost nothing more
constexpr int kFloatRows = 2, kFloatCols = 4, kLastCols = 4;
constexpr int kFewColumns = 16;  // up to here converting rows beforehand does not pay
// Several rows at a time even where columns stay in the L1 cache: one has too few independent sums.
constexpr int64_t kStayingBytes = 0;

using VecW = uint8x16_t;   // 4 rows x 4 bytes
using VecF = float32x4_t;  // 4 rows

GF_INLINE VecW load_w(const uint8_t* p) { return vld1q_u8(p); }

// `bits` bits of each byte from bit `from` on; the others zero.
template <int bits, int from>
GF_INLINE VecW field(VecW a) {
  const VecW mask = vdupq_n_u8((1 << bits) - 1);
  if constexpr (from == 0) return vandq_u8(a, mask);
  if constexpr (from + bits == 8) return vshrq_n_u8(a, from);
  return vandq_u8(vshrq_n_u8(a, from > 0 ? from : 1), mask);
}
// The same put into w from bit `to` on, where w is zero.
template <int bits, int from, int to>
GF_INLINE VecW add_field(VecW w, VecW a) {
  if constexpr (from == to) return vorrq_u8(w, vandq_u8(a, vdupq_n_u8(((1 << bits) - 1) << to)));
  const VecW low = field<bits, from>(a);
  return vsliq_n_u8(w, low, to);
}

// Each byte of codes, below 16, replaced by that entry of the table.
GF_INLINE VecW look_up(const uint8_t (&table)[16], VecW codes) {
  return vqtbl1q_u8(vld1q_u8(table), codes);
}

GF_INLINE VecF splat_f(float x) { return vdupq_n_f32(x); }
GF_INLINE VecF zero_f() { return splat_f(0.0f); }
GF_INLINE VecF mul_f(VecF a, VecF b) { return vmulq_f32(a, b); }
GF_INLINE VecF fma_f(VecF a, VecF b, VecF c) { return vfmaq_f32(c, a, b); }
GF_INLINE VecF load_f(const float* p) { return vld1q_f32(p); }
GF_INLINE void store_f(float* p, VecF a) { vst1q_f32(p, a); }
GF_INLINE VecF f16_rows(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
// Four bytes, by one load: intrinsics for it come with a second instruction.
GF_INLINE uint8x16_t four_bytes(const uint8_t* p) {
  uint8x16_t v;
  __asm__("ldr %s0, %1" : "=w"(v) : "m"(*reinterpret_cast<const uint8_t (*)[4]>(p)));
  return v;
}
// Bytes to the lowest, or the highest, bytes of 32-bit lanes by one look-up.
GF_INLINE VecF u8_rows(const uint8_t* p) {
  static constexpr uint8_t lowest[16] = {0, 255, 255, 255, 1, 255, 255, 255,
                                         2, 255, 255, 255, 3, 255, 255, 255};
  return vcvtq_f32_u32(vreinterpretq_u32_u8(vqtbl1q_u8(four_bytes(p), vld1q_u8(lowest))));
}
GF_INLINE VecF i8_rows(const uint8_t* p) {
  static constexpr uint8_t highest[16] = {255, 255, 255, 0, 255, 255, 255, 1,
                                          255, 255, 255, 2, 255, 255, 255, 3};
  const uint8x16_t bytes = vqtbl1q_u8(four_bytes(p), vld1q_u8(highest));
  return vcvtq_n_f32_s32(vreinterpretq_s32_u8(bytes), 24);
}

// How many products of a weight of `bits` bits and an activation add up in 16 bits.
constexpr int products_in_16_bits(int bits) {
  return 32767 / ((bits >= 8 ? 128 : (1 << bits) - 1) * 127);
}

// start + the dot products of 4 rows with one column, elements 4 * begin .. 4 * (begin + n) - 1.
template <class L, int begin, int n>
GF_INLINE int32x4_t dot_rows(const VecW (&w)[8], const int8_t* a, int32_t start) {
  int32x4_t sum = vdupq_n_s32(start);
#if defined(__ARM_FEATURE_DOTPROD)
  static_for<n / 4>([&](auto j) GF_LAMBDA_INLINE {
    const int8x16_t x = vld1q_s8(a + 4 * begin + 16 * j);
    static_for<4>([&](auto i) GF_LAMBDA_INLINE {
      sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[begin + 4 * j + i]), x, i);
    });
  });
#else
  constexpr int most = products_in_16_bits(L::kBits), run = most < n ? most : n;
  int16x8_t low, high;  // rows 0 and 1, rows 2 and 3
  int32x4_t q[n / 4];
  for (int i = 0; i < n / 4; ++i) q[i] = vreinterpretq_s32_s8(vld1q_s8(a + 4 * begin + 16 * i));
  static_for<n>([&](auto i) GF_LAMBDA_INLINE {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_laneq_s32(q[i / 4], i % 4));
    const int8x16_t wi = vreinterpretq_s8_u8(w[begin + i]);
    if constexpr (i % run == 0) {
      low = vmull_s8(vget_low_s8(wi), vget_low_s8(x));
      high = vmull_high_s8(wi, x);
    } else {
      low = vmlal_s8(low, vget_low_s8(wi), vget_low_s8(x));
      high = vmlal_high_s8(high, wi, x);
    }
    if constexpr (i % run == run - 1 || i == n - 1) {
      sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
    }
  });
#endif
  return sum;
}

GF_INLINE uint32x4_t magnitudes(float32x4_t x) { return vreinterpretq_u32_f32(vabsq_f32(x)); }

// q = round(x / d) of 32 floats to nearest even; sums of q over the two halves. Returns d.
GF_INLINE float quantize_32(const float* x, int8_t* q, int32_t sums[2]) {
  float32x4_t v[8];
  uint32x4_t m[8];
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    m[i] = magnitudes(v[i]);
  }
  for (int n = 4; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) m[i] = vmaxq_u32(m[i], m[i + n]);
  }
  const uint32_t greatest = vmaxvq_u32(m[0]);
  if (greatest >= kInfinity) return not_finite(q, sums);
  const float amax = float_of(greatest);
  const float32x4_t id = vdupq_n_f32(inverse_step(amax));
  for (int h = 0; h < 2; ++h) {
    int32x4_t r[4];
    for (int i = 0; i < 4; ++i) r[i] = vcvtnq_s32_f32(vmulq_f32(v[4 * h + i], id));
    const int16x8_t low = vqmovn_high_s32(vqmovn_s32(r[0]), r[1]);
    const int16x8_t high = vqmovn_high_s32(vqmovn_s32(r[2]), r[3]);
    vst1q_s8(q + 16 * h, vqmovn_high_s16(vqmovn_s16(low), high));
    sums[h] = vaddlvq_s16(vaddq_s16(low, high));
  }
  return step(amax);
}

// -- 8 consecutive elements of a row of plain floats, and the sums over them

struct VecL {
  float32x4_t v[2];
};

// Row::load_next(p) is Row::load(p), and p then stands behind what was loaded: by one instruction
// for one or two registers, which compilers do not find for several rows side by side.
#define GF_LOADS_MOVE_ON 1
template <class V, class E>
GF_INLINE void take_next(V& a, V& b, const E*& p) {
  const auto* from = reinterpret_cast<const char (*)[32]>(p);
  __asm__("ldp %q0, %q1, [%2], #32" : "=w"(a), "=w"(b), "+r"(p) : "m"(*from));
}
template <class V, class E>
GF_INLINE void take_next(V& a, const E*& p) {
  const auto* from = reinterpret_cast<const char (*)[16]>(p);
  __asm__("ldr %q0, [%1], #16" : "=w"(a), "+r"(p) : "m"(*from));
}
GF_INLINE VecL mul_add(VecL w, VecL x, VecL acc) {
  return {{vfmaq_f32(acc.v[0], w.v[0], x.v[0]), vfmaq_f32(acc.v[1], w.v[1], x.v[1])}};
}

// The first n < 8 elements, zeros after them.
template <class Row>
GF_INLINE VecL load_padded(const typename Row::Elem* p, int64_t n) {
  typename Row::Elem padded[8] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return Row::load(padded);
}

struct RowF32 {
  using Elem = float;
  using Vec = VecL;
  using Column = RowF32;
  static constexpr int kStep = 8;
  static GF_INLINE VecL load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4)}}; }
  static GF_INLINE VecL load_next(const float*& p) {
    VecL v;
    take_next(v.v[0], v.v[1], p);
    return v;
  }
  static GF_INLINE VecL load_first(const float* p, int64_t n) { return load_padded<RowF32>(p, n); }
};
struct RowF16 {
  using Elem = uint16_t;
  using Vec = VecL;
  using Column = RowF32;
  static constexpr int kStep = 8;
  static GF_INLINE VecL widen(uint16x8_t bits) {
    const float16x8_t h = vreinterpretq_f16_u16(bits);
    return {{vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)}};
  }
  static GF_INLINE VecL load(const uint16_t* p) { return widen(vld1q_u16(p)); }
  static GF_INLINE VecL load_next(const uint16_t*& p) {
    uint16x8_t h;
    take_next(h, p);
    return widen(h);
  }
  static GF_INLINE VecL load_first(const uint16_t* p, int64_t n) {
    return load_padded<RowF16>(p, n);
  }
};
struct RowBF16 {
  using Elem = uint16_t;
  using Vec = VecL;
  using Column = RowF32;
  static constexpr int kStep = 8;
  static GF_INLINE VecL widen(uint16x8_t h) {
    return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
             vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))}};
  }
  static GF_INLINE VecL load(const uint16_t* p) { return widen(vld1q_u16(p)); }
  static GF_INLINE VecL load_next(const uint16_t*& p) {
    uint16x8_t h;
    take_next(h, p);
    return widen(h);
  }
  static GF_INLINE VecL load_first(const uint16_t* p, int64_t n) {
    return load_padded<RowBF16>(p, n);
  }
};

#if defined(__ARM_FEATURE_FP16_FML)
// Rows and columns as float16, whose products are exact and added up in float32. A column is
// rounded to 11 bits, for which it is brought near the largest numbers there are by a power of two:
// so none overflows, and only what is 2^28 times smaller than the largest one loses more bits.
#define GF_F16_DOT 1

struct VecH {  // 16 float16
  float16x8_t v[2];
};
GF_INLINE VecL mul_add(VecH w, VecH x, VecL acc) {
  for (int i = 0; i < 2; ++i) acc.v[i] = vfmlalq_low_f16(acc.v[i], w.v[i], x.v[i]);
  for (int i = 0; i < 2; ++i) acc.v[i] = vfmlalq_high_f16(acc.v[i], w.v[i], x.v[i]);
  return acc;
}

struct RowDotF16 {
  using Elem = uint16_t;
  using Vec = VecH;
  using Column = RowDotF16;
  static constexpr int kStep = 16;
  static GF_INLINE VecH load(const uint16_t* p) {
    return {{vreinterpretq_f16_u16(vld1q_u16(p)), vreinterpretq_f16_u16(vld1q_u16(p + 8))}};
  }
  static GF_INLINE VecH load_next(const uint16_t*& p) {
    VecH h;
    take_next(h.v[0], h.v[1], p);
    return h;
  }
  static GF_INLINE VecH load_first(const uint16_t* p, int64_t n) {
    uint16_t padded[kStep] = {};
    for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
    return load(padded);
  }
};

// Writes x * 2^s as float16, and 2^-s behind it. s follows from the column alone.
inline void f32_row_to_f16(const float* x, int64_t k, uint16_t* out) {
  uint32x4_t m = vdupq_n_u32(0);
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) m = vmaxq_u32(m, magnitudes(vld1q_f32(x + i)));
  float last[4] = {};
  for (int64_t j = i; j < k; ++j) last[j - i] = x[j];
  const uint32_t greatest = vmaxvq_u32(vmaxq_u32(m, magnitudes(vld1q_f32(last))));
  // The largest one becomes at least 2^14 and less than 2^15, where its exponent is no extreme one;
  // with NaN or infinity in it a column stays as it is.
  const int exponent = static_cast<int>(greatest >> 23);
  const int up = greatest >= kInfinity ? 0 : 127 + 14 - (exponent < 27 ? 27 : exponent);
  const float scale = float_of(static_cast<uint32_t>(127 + up) << 23);
  for (i = 0; i + 4 <= k; i += 4) {
    vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(x + i), scale))));
  }
  const int64_t padded = (k + 31) / 32 * 32;
  if (i < padded) std::memset(out + i, 0, (padded - i) * sizeof *out);
  if (i < k) {
    vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(last), scale))));
  }
  const float down = float_of(static_cast<uint32_t>(127 - up) << 23);
  std::memcpy(out + padded, &down, sizeof down);
}
#endif

// out[r] = the sum of the lanes of rows[r], 16 rows.
GF_INLINE void sum_lanes(const VecL* rows, float* out) {
  for (int r = 0; r < 16; r += 4) {
    vf s[4];
    for (int i = 0; i < 4; ++i) s[i].v = vaddq_f32(rows[r + i].v[0], rows[r + i].v[1]);
    vf_store(out + r, vf_sum_each(s));
  }
}

}  // namespace gf
