// Quantized weights as fragments of int8 products: how a lane reads them from rows in shared
// memory, and what becomes of a block's integer sums. The order is that of int8_columns.cuh.
//
// Of 16 rows lane 4 g + t has rows g and g + 8, elements 4 t to 4 t + 3 and those 16 later of each
// block of 32.
#pragma once

#include "cuda/dequant.cuh"
#include "cuda/int8_columns.cuh"

// Masks that the compiler must not know: as constants they would be moved into registers at every
// use.
struct ByteMasks {
  u32 high, low;  // 0xF0F0F0F0 and 0x0F0F0F0F
};

// A block of a row: eight bytes, a scale and an offset for each half. The bytes of some types are
// the integers times a power of two, and their scales are divided by it.
struct Int8Block {
  u32 n[2];
  float s0, s1, b0, b1;
};

namespace int8 {

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: bits plus a small integer are a float sum
constexpr u32 kMagicBits = 0x4B400000u, kSigns = 0x80808080u;

__device__ __forceinline__ u32 word(const char* p) { return *reinterpret_cast<const u32*>(p); }
// At a multiple of two.
__device__ __forceinline__ u32 word2(const char* p) {
  const gf_u16* const h = reinterpret_cast<const gf_u16*>(p);
  return h[0] | (u32)h[1] << 16;
}
__device__ __forceinline__ float half(const char* p) {
  return gf_f16_to_f32(*reinterpret_cast<const gf_u16*>(p));
}
// The word two bytes into (a, b).
__device__ __forceinline__ u32 straddle(u32 a, u32 b) { return __byte_perm(a, b, 0x5432); }
// Byte i of w plus 2^23.
__device__ __forceinline__ float byte_plus(u32 w, int i) {
  return gf_float_of(__byte_perm(w, 0x4B000000u, 0x7440 + i));
}
// Byte i of w.
__device__ __forceinline__ float byte(u32 w, int i) { return byte_plus(w, i) - 8388608.0f; }
// Bits 0..3 of b as bit 4, or bit 7, of each byte.
__device__ __forceinline__ u32 spread4(u32 b) { return ((b & 15) * 0x02040810u) & 0x10101010u; }
__device__ __forceinline__ u32 spread7(u32 b) { return ((b & 15) * 0x10204080u) & kSigns; }

}  // namespace int8

// Int8<W> reads the chunks of 256 elements of a row:
//   SIGNED       whether the bytes are
//   SPLIT, MIN   whether halves of 16 have their own scales; whether there are offsets
//   SPAN         blocks of 32 that are loaded together
//   Head, head   what all blocks of a chunk share
//   Raw, load    the words of blocks [SPAN i, SPAN i + SPAN)
//   block        block j of the chunk, one of those
// chunk: in shared memory, aligned as the type allows: 4 bytes, or 2 for q3_K and q6_K.
template <class W>
struct Int8;

struct NoHead {
  struct Head {};
  static __device__ __forceinline__ Head head(const char*, int) { return {}; }
};

template <>
struct Int8<block_q4_0> : NoHead {
  static constexpr bool SIGNED = true, SPLIT = false, MIN = false;
  static constexpr int SPAN = 2;
  struct Raw {
    u32 w[2];
    float d[2];
  };
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char* const p = chunk + 36 * i;
    return {{int8::straddle(int8::word(p + 4 * t), int8::word(p + 4 * t + 4)),
             int8::word(p + 20 + 4 * t)},
            {int8::half(p), int8::half(p + 18)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head&,
                                                    const ByteMasks& m) {
    const u32 w = r.w[j % 2];
    const float s = r.d[j % 2] * (1.0f / 16.0f);
    return {{((w << 4) & m.high) ^ int8::kSigns, (w & m.high) ^ int8::kSigns}, s, s, 0.0f, 0.0f};
  }
};

template <>
struct Int8<block_q4_1> : NoHead {
  static constexpr bool SIGNED = false, SPLIT = false, MIN = true;
  static constexpr int SPAN = 2;
  struct Raw {
    u32 w[2], d[2];
  };
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char* const p = chunk + 40 * i;
    return {{int8::word(p + 4 + 4 * t), int8::word(p + 24 + 4 * t)},
            {int8::word(p), int8::word(p + 20)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head&,
                                                    const ByteMasks&) {
    const u32 w = r.w[j % 2];
    const float s = Float<f16>::low(r.d[j % 2]), b = Float<f16>::high(r.d[j % 2]);
    return {{w & 0x0F0F0F0Fu, (w >> 4) & 0x0F0F0F0Fu}, s, s, b, b};
  }
};

template <>
struct Int8<block_q5_0> : NoHead {
  static constexpr bool SIGNED = true, SPLIT = false, MIN = false;
  static constexpr int SPAN = 2;
  struct Raw {
    u32 w[2], h[2];
    float d[2];
  };
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char* const p = chunk + 44 * i;
    const u32 a = int8::word(p), b = int8::word(p + 4);
    return {{int8::straddle(int8::word(p + 4 + 4 * t), int8::word(p + 8 + 4 * t)),
             int8::word(p + 28 + 4 * t)},
            {int8::straddle(a, b) >> (4 * t), int8::word(p + 24) >> (4 * t)},
            {Float<f16>::low(a), int8::half(p + 22)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head&,
                                                    const ByteMasks&) {
    const u32 w = r.w[j % 2], h = r.h[j % 2];
    const float s = r.d[j % 2] * (1.0f / 8.0f);
    return {{(((w << 3) & 0x78787878u) | int8::spread7(h)) ^ int8::kSigns,
             (((w >> 1) & 0x78787878u) | int8::spread7(h >> 16)) ^ int8::kSigns},
            s,
            s,
            0.0f,
            0.0f};
  }
};

template <>
struct Int8<block_q5_1> : NoHead {
  static constexpr bool SIGNED = false, SPLIT = false, MIN = true;
  static constexpr int SPAN = 2;
  struct Raw {
    u32 w[2], h[2], d[2];
  };
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char* const p = chunk + 48 * i;
    return {{int8::word(p + 8 + 4 * t), int8::word(p + 32 + 4 * t)},
            {int8::word(p + 4) >> (4 * t), int8::word(p + 28) >> (4 * t)},
            {int8::word(p), int8::word(p + 24)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head&,
                                                    const ByteMasks&) {
    const u32 w = r.w[j % 2], h = r.h[j % 2];
    const float s = Float<f16>::low(r.d[j % 2]), b = Float<f16>::high(r.d[j % 2]);
    return {
        {(w & 0x0F0F0F0Fu) | int8::spread4(h), ((w >> 4) & 0x0F0F0F0Fu) | int8::spread4(h >> 16)},
        s,
        s,
        b,
        b};
  }
};

template <>
struct Int8<block_q8_0> : NoHead {
  static constexpr bool SIGNED = true, SPLIT = false, MIN = false;
  static constexpr int SPAN = 2;
  struct Raw {
    u32 w[2][2];
    float d[2];
  };
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char *const p = chunk + 68 * i, *const q = p + 4 * t;
    return {{{int8::straddle(int8::word(q), int8::word(q + 4)),
              int8::straddle(int8::word(q + 16), int8::word(q + 20))},
             {int8::word(q + 36), int8::word(q + 52)}},
            {int8::half(p), int8::half(p + 34)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head&,
                                                    const ByteMasks&) {
    const float s = r.d[j % 2];
    return {{r.w[j % 2][0], r.w[j % 2][1]}, s, s, 0.0f, 0.0f};
  }
};

// Scales and mins of the eight blocks of q4_K and q5_K, a byte each.
struct HeadK4 {
  struct Head {
    u32 scales[2], mins[2];
    float d, dmin;  // of the scales and, negative, of the mins
  };
  static __device__ __forceinline__ Head head(const char* chunk, int) {
    const u32 d = int8::word(chunk), a = int8::word(chunk + 4), b = int8::word(chunk + 8),
              c = int8::word(chunk + 12);
    return {{a & 0x3F3F3F3Fu, (c & 0x0F0F0F0Fu) | ((a >> 2) & 0x30303030u)},
            {b & 0x3F3F3F3Fu, ((c >> 4) & 0x0F0F0F0Fu) | ((b >> 2) & 0x30303030u)},
            Float<f16>::low(d),
            -Float<f16>::high(d)};
  }
  static __device__ __forceinline__ float scale(const Head& h, int j) {
    return h.d * int8::byte(h.scales[j / 4], j % 4);
  }
  static __device__ __forceinline__ float offset(const Head& h, int j) {
    return h.dmin * int8::byte(h.mins[j / 4], j % 4);
  }
};

template <>
struct Int8<block_q4_K> : HeadK4 {
  static constexpr bool SIGNED = false, SPLIT = false, MIN = true;
  static constexpr int SPAN = 2;
  struct Raw {
    u32 w[2];
  };
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char* const p = chunk + 16 + 32 * i + 4 * t;
    return {{int8::word(p), int8::word(p + 16)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head& h,
                                                    const ByteMasks&) {
    const float s = scale(h, j), b = offset(h, j);
    const int shift = j % 2 * 4;
    return {{(r.w[0] >> shift) & 0x0F0F0F0Fu, (r.w[1] >> shift) & 0x0F0F0F0Fu}, s, s, b, b};
  }
};

template <>
struct Int8<block_q5_K> : HeadK4 {
  static constexpr bool SIGNED = false, SPLIT = false, MIN = true;
  static constexpr int SPAN = 2;
  struct Raw {
    u32 w[2], h[2];
  };
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char *const p = chunk + 48 + 32 * i + 4 * t, *const q = chunk + 16 + 4 * t;
    return {{int8::word(p), int8::word(p + 16)}, {int8::word(q), int8::word(q + 16)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head& h,
                                                    const ByteMasks&) {
    const float s = scale(h, j), b = offset(h, j);
    const int shift = j % 2 * 4;
    const auto five = [&](int i) {
      const u32 bit = j < 4 ? r.h[i] << (4 - j) : r.h[i] >> (j - 4);
      return ((r.w[i] >> shift) & 0x0F0F0F0Fu) | (bit & 0x10101010u);
    };
    return {{five(0), five(1)}, s, s, b, b};
  }
};

template <>
struct Int8<block_q6_K> {
  static constexpr bool SIGNED = true, SPLIT = true, MIN = false;
  static constexpr int SPAN = 4;
  struct Head {
    float d;
  };
  struct Raw {
    u32 w[4], h[2], s[2];  // s: of each block, a byte more for each half
  };
  static __device__ __forceinline__ Head head(const char* chunk, int) {
    return {int8::half(chunk + 208) * 0.25f};
  }
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char *const p = chunk + 64 * i + 4 * t, *const q = chunk + 128 + 32 * i + 4 * t;
    const char* const s = chunk + 192 + 8 * i;
    return {{int8::word2(p), int8::word2(p + 16), int8::word2(p + 32), int8::word2(p + 48)},
            {int8::word2(q), int8::word2(q + 16)},
            {int8::word2(s) ^ int8::kSigns, int8::word2(s + 4) ^ int8::kSigns}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head& h,
                                                    const ByteMasks&) {
    const int in = j % 4;
    const auto six = [&](int i) {
      const u32 w = r.w[in % 2 * 2 + i];
      const u32 low = (in < 2 ? w << 2 : w >> 2) & 0x3C3C3C3Cu;
      return (low | ((r.h[i] << (6 - 2 * in)) & 0xC0C0C0C0u)) ^ int8::kSigns;
    };
    const auto scale = [&](int i) {
      return h.d * (int8::byte_plus(r.s[in / 2], in % 2 * 2 + i) - (8388608.0f + 128.0f));
    };
    return {{six(0), six(1)}, scale(0), scale(1), 0.0f, 0.0f};
  }
};

template <>
struct Int8<block_q3_K> {
  static constexpr bool SIGNED = true, SPLIT = true, MIN = false;
  static constexpr int SPAN = 4;
  struct Head {
    u32 s[4], h[2];  // s: of each 16, 32 too large; h: the third bits
    float d;
  };
  struct Raw {
    u32 w[2];
  };
  static __device__ __forceinline__ Head head(const char* chunk, int t) {
    const u32 a = int8::word2(chunk + 96), b = int8::word2(chunk + 100);
    const u32 c = int8::word2(chunk + 104);
    const auto six = [c](u32 low, int shift) {
      return (low & 0x0F0F0F0Fu) | (((c >> shift) & 0x03030303u) << 4);
    };
    return {{six(a, 0), six(b, 2), six(a >> 4, 4), six(b >> 4, 6)},
            {int8::word2(chunk + 4 * t), int8::word2(chunk + 16 + 4 * t)},
            int8::half(chunk + 108) * (1.0f / 32.0f)};
  }
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char* const p = chunk + 32 + 32 * i + 4 * t;
    return {{int8::word2(p), int8::word2(p + 16)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head& h,
                                                    const ByteMasks&) {
    const auto three = [&](int i) {
      const int shift = 5 - j % 4 * 2;
      const u32 low = (shift > 0 ? r.w[i] << shift : r.w[i] >> -shift) & 0x60606060u;
      return (low | ((h.h[i] << (7 - j)) & int8::kSigns)) ^ int8::kSigns;
    };
    const auto scale = [&](int i) {
      return h.d * (int8::byte_plus(h.s[j / 2], j % 2 * 2 + i) - (8388608.0f + 32.0f));
    };
    return {{three(0), three(1)}, scale(0), scale(1), 0.0f, 0.0f};
  }
};

template <>
struct Int8<block_q2_K> {
  static constexpr bool SIGNED = false, SPLIT = true, MIN = true;
  static constexpr int SPAN = 4;
  struct Head {
    float d, dmin;  // of the scales and, negative, of the mins
  };
  struct Raw {
    u32 w[2], s[2];
  };
  static __device__ __forceinline__ Head head(const char* chunk, int) {
    const u32 d = int8::word(chunk + 80);
    return {Float<f16>::low(d), -Float<f16>::high(d)};
  }
  static __device__ __forceinline__ Raw load(const char* chunk, int i, int t, const Head&) {
    const char* const p = chunk + 16 + 32 * i + 4 * t;
    return {{int8::word(p), int8::word(p + 16)},
            {int8::word(chunk + 8 * i), int8::word(chunk + 8 * i + 4)}};
  }
  static __device__ __forceinline__ Int8Block block(const Raw& r, int j, const Head& h,
                                                    const ByteMasks&) {
    const int shift = j % 4 * 2, in = j % 2 * 2;
    const u32 scales = r.s[j % 4 / 2] & 0x0F0F0F0Fu, mins = (r.s[j % 4 / 2] >> 4) & 0x0F0F0F0Fu;
    return {{(r.w[0] >> shift) & 0x03030303u, (r.w[1] >> shift) & 0x03030303u},
            h.d * int8::byte(scales, in),
            h.d * int8::byte(scales, in + 1),
            h.dmin * int8::byte(mins, in),
            h.dmin * int8::byte(mins, in + 1)};
  }
};

// Of the columns' sums a record must have for these weights.
template <class W>
constexpr int kSumsOf = !Int8<W>::MIN    ? 0
                        : Int8<W>::SPLIT ? 2
                                         : 1;

// -- products ------------------------------------------------------------------------------------

// y = kMagicBits + 16 rows of 32 bytes times 8 columns.
template <bool SIGNED>
__device__ __forceinline__ void dot32(u32 (&y)[4], const u32 (&upper)[2], const u32 (&lower)[2],
                                      uint2 x) {
#define GF_DOT32(TYPE)                                                                  \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." TYPE                                     \
      ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "                                          \
      "{%8,%9}, {%10,%10,%10,%10};"                                                     \
      : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])                                  \
      : "r"(upper[0]), "r"(lower[0]), "r"(upper[1]), "r"(lower[1]), "r"(x.x), "r"(x.y), \
        "r"(int8::kMagicBits))
  if constexpr (SIGNED) {
    GF_DOT32("s8");
  } else {
    GF_DOT32("u8");
  }
#undef GF_DOT32
}

// The same of 16 bytes.
template <bool SIGNED>
__device__ __forceinline__ void dot16(u32 (&y)[4], u32 upper, u32 lower, u32 x) {
#define GF_DOT16(TYPE)                                 \
  asm("mma.sync.aligned.m16n8k16.row.col.s32." TYPE    \
      ".s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "         \
      "{%7,%7,%7,%7};"                                 \
      : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) \
      : "r"(upper), "r"(lower), "r"(x), "r"(int8::kMagicBits))
  if constexpr (SIGNED) {
    GF_DOT16("s8");
  } else {
    GF_DOT16("u8");
  }
#undef GF_DOT16
}

// What a lane needs of a block of its columns 2 t and 2 t + 1 beside their bytes.
struct BlockColumns {
  float2 d, sum, sum0;  // the last two where the weights have offsets
};

// floats: the part of a record that begins at kRecordD; j: which block.
template <class W>
__device__ __forceinline__ BlockColumns block_columns(const float* floats, int j, int t) {
  const float* const at = floats + j * 8 + 2 * t;
  BlockColumns c = {};
  c.d = *reinterpret_cast<const float2*>(at);
  if (kSumsOf<W> >= 1) c.sum = *reinterpret_cast<const float2*>(at + kRecordFloats / 4);
  if (kSumsOf<W> == 2) c.sum0 = *reinterpret_cast<const float2*>(at + 2 * kRecordFloats / 4);
  return c;
}

// acc: of rows g and g + 8 and columns 2 t and 2 t + 1, as mma has them.
template <class W>
__device__ __forceinline__ void multiply_block(float (&acc)[4], const Int8Block& upper,
                                               const Int8Block& lower, uint2 x,
                                               const BlockColumns& c) {
  using T = Int8<W>;
  u32 y0[4], y1[4];
  if (T::SPLIT) {
    dot16<T::SIGNED>(y0, upper.n[0], lower.n[0], x.x);
    dot16<T::SIGNED>(y1, upper.n[1], lower.n[1], x.y);
  } else {
    dot32<T::SIGNED>(y0, upper.n, lower.n, x);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Int8Block& w = i < 2 ? upper : lower;
    const float d = i % 2 == 0 ? c.d.x : c.d.y, sum = i % 2 == 0 ? c.sum.x : c.sum.y;
    float y;
    // A scale has at most 19 bits and the magic number two, so that the fma rounds once: s * dot.
    if (T::SPLIT) {
      y = fmaf(gf_float_of(y1[i]), w.s1, -int8::kMagic * w.s1);
      y = fmaf(w.s0, gf_float_of(y0[i]) - int8::kMagic, y);
    } else {
      y = fmaf(gf_float_of(y0[i]), w.s0, -int8::kMagic * w.s0);
    }
    if (T::MIN && T::SPLIT) {
      const float sum0 = i % 2 == 0 ? c.sum0.x : c.sum0.y;
      y = fmaf(w.b1, sum - sum0, fmaf(w.b0, sum0, y));
    } else if (T::MIN) {
      y = fmaf(w.b0, sum, y);
    }
    acc[i] = fmaf(d, y, acc[i]);
  }
}
