// Quantized weights as tensor cores want them: eight rows lie together, 256 elements of each at a
// time, so that what a warp asks for is one run of bytes and a lane's share of it whole words. The
// values are those of columns_weights.cuh to the bit, and so is the order of elements.
//
// A unit has every lane's codes first, lane 4 r + t's of row r, then the scales and offsets of its
// rows as halves: those that K types pack are unpacked when fragments are made.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"

constexpr int kUnit = 256, kEight = 8;  // elements of each row of a unit, and rows

// How a value is made of a code: (code - ZERO) scale, code scale + offset, or the same with scale
// and offset the row's times an integer of sixteen elements.
enum { SCALES, OFFSETS, SIXTEENS };

template <int B, int Z, int F>
struct FragmentKindOf {
  static constexpr int BITS = B, ZERO = Z, FORM = F;
};
template <class W>
struct FragmentKind;
template <>
struct FragmentKind<block_q4_0> : FragmentKindOf<4, 8, SCALES> {};
template <>
struct FragmentKind<block_q4_1> : FragmentKindOf<4, 0, OFFSETS> {};
template <>
struct FragmentKind<block_q4_K> : FragmentKindOf<4, 0, OFFSETS> {};
template <>
struct FragmentKind<block_q5_0> : FragmentKindOf<5, 16, SCALES> {};
template <>
struct FragmentKind<block_q5_1> : FragmentKindOf<5, 0, OFFSETS> {};
template <>
struct FragmentKind<block_q5_K> : FragmentKindOf<5, 0, OFFSETS> {};
template <>
struct FragmentKind<block_q6_K> : FragmentKindOf<6, 0, SIXTEENS> {};
template <>
struct FragmentKind<block_q8_0> : FragmentKindOf<8, 128, SCALES> {};

// Of every 32 elements of a row lane t of four has eight, e0 to e7, as the pairs (e0, e2), (e1,
// e3), (e4, e6), (e5, e7): elements 4 t and following of both halves of Q4_0, else 8 t and
// following.
template <class W>
constexpr bool kOfHalves = is_same<W, block_q4_0>::value;

template <class W>
struct FragmentUnit {
  typedef FragmentKind<W> Kind;
  static constexpr int BLOCKS = kUnit / 32, BITS = Kind::BITS, FORM = Kind::FORM;
  static constexpr int WORDS = BLOCKS * BITS / 4;  // of a lane's codes
  static constexpr int FOURS = WORDS / 4;          // of these, all but those of a fifth bit
  static constexpr int SCALES_AT = 32 * 4 * WORDS;
  static constexpr int OFFSETS_AT = SCALES_AT + kEight * 16;  // or of the other lanes' sixteens
  static constexpr int ROWS_AT = OFFSETS_AT + kEight * 16;    // pairs of halves, of SIXTEENS
  static constexpr int BYTES = FORM == SCALES    ? OFFSETS_AT
                               : FORM == OFFSETS ? ROWS_AT
                                                 : ROWS_AT + kEight * 4;

  // A lane's share of a unit, of its row.
  static __device__ __forceinline__ void make(const char* row, char* unit, int lane) {
    const int t = lane % 4, r = lane / 4;
    u32 made[WORDS] = {};
    for (int b = 0; b < BLOCKS; ++b) {
      const Eight e = eight_of(row, b, t);
      if constexpr (BITS == 8) {
        made[2 * b] = e.lo;
        made[2 * b + 1] = e.hi;
      } else {
        made[b] = (e.lo & 0x0F0F0F0Fu) | (e.hi & 0x0F0F0F0Fu) << 4;
        put_high(made, b, e);
      }
      gf_u16* const scales = reinterpret_cast<gf_u16*>(unit + SCALES_AT + r * 16);
      gf_u16* const offsets = reinterpret_cast<gf_u16*>(unit + OFFSETS_AT + r * 16);
      if constexpr (FORM == SIXTEENS) {
        const block_q6_K* const block = reinterpret_cast<const block_q6_K*>(row);
        if (t % 2 == 0) {
          (t / 2 ? offsets : scales)[b] = half_of((float)block->scales[2 * b + t / 2]);
        }
      } else if (t == 0) {
        scales[b] = half_of(e.scale);
        if (FORM == OFFSETS) offsets[b] = half_of(e.offset);
      }
    }
    if constexpr (FORM == SIXTEENS) {
      const float d = gf_f16_to_f32(reinterpret_cast<const block_q6_K*>(row)->d);
      if (t == 0) reinterpret_cast<u32*>(unit + ROWS_AT)[r] = Float<f16>::pair(d, -32.0f * d);
    }
    for (int i = 0; i < 4 * FOURS; ++i) {
      reinterpret_cast<u32*>(unit + i / 4 * 512 + lane * 16)[i % 4] = made[i];
    }
    for (int i = 4 * FOURS; i < WORDS; ++i) {
      reinterpret_cast<u32*>(unit + FOURS * 512 + lane * 8)[i - 4 * FOURS] = made[i];
    }
  }
  static __device__ __forceinline__ gf_u16 half_of(float x) {
    return (gf_u16)Float<f16>::pair(x, x);
  }
  static __device__ __forceinline__ Eight eight_of(const char* row, int b, int t) {
    if constexpr (kOfHalves<W>) {
      const W* const block = reinterpret_cast<const W*>(row) + b;
      const u32 w = word_at2(block->qs + 4 * t);
      return {nibbles(w, 0), nibbles(w, 4), gf_f16_to_f32(block->d), 0.0f};
    } else {
      constexpr int EIGHTS = W::QK / 8;
      const int piece = b * 4 + t;
      return eight(reinterpret_cast<const W*>(row) + piece / EIGHTS, piece % EIGHTS);
    }
  }
  // The bits above the fourth, where `code` looks for them.
  static __device__ __forceinline__ void put_high(u32* made, int b, const Eight& e) {
    for (int i = 0; i < 8; ++i) {
      const u32 high = (i < 4 ? e.lo : e.hi) >> (i % 4 * 8 + 4) & 15, half = i % 4 / 2 * 16;
      const bool second = i % 2, later = i >= 4;  // pairs 1 and 3; 2 and 3
      if (BITS == 5) {
        made[BLOCKS + b / 4] |= high << (half + (second ? 8 : 0) + (later ? 4 : 0) + b % 4);
      } else if (BITS == 6) {
        const int at = second ? (later ? 0 : 12) : later ? 8 : 4;
        made[BLOCKS + b / 2] |= high << (half + at + b % 2 * 2);
      }
    }
  }
};

// What a lane has of half a unit, so that few registers hold it.
template <class W>
struct FragmentHalf {
  typedef FragmentUnit<W> Unit;
  typedef FragmentKind<W> Kind;
  static constexpr int BLOCKS = Unit::BLOCKS / 2, BITS = Unit::BITS, FORM = Unit::FORM;
  static constexpr int WORDS = Unit::WORDS / 2;

  u32 codes[WORDS], scales[2], offsets[FORM == OFFSETS ? 2 : 1], row;

  static __device__ __forceinline__ FragmentHalf load(const char* unit, int half, int lane) {
    constexpr int FOURS = WORDS / 4;
    FragmentHalf u;
#pragma unroll
    for (int i = 0; i < FOURS; ++i) {
      const char* const from = unit + (half * FOURS + i) * 512 + lane * 16;
      const uint4 w = *reinterpret_cast<const uint4*>(from);
      u.codes[4 * i] = w.x;
      u.codes[4 * i + 1] = w.y;
      u.codes[4 * i + 2] = w.z;
      u.codes[4 * i + 3] = w.w;
    }
    // The bits above the fourth of both halves lie together.
    const char* const high = unit + 2 * FOURS * 512 + lane * (WORDS % 4 * 8);
    if constexpr (WORDS % 4 == 1) {
      u.codes[4 * FOURS] = *reinterpret_cast<const u32*>(high + half * 4);
    } else if constexpr (WORDS % 4 == 2) {
      two(high + half * 8, u.codes + 4 * FOURS);
    }
    const char* const rows = unit + Unit::SCALES_AT + lane / 4 * 16 + half * 8;
    two(rows + (FORM == SIXTEENS ? lane % 4 / 2 * (kEight * 16) : 0), u.scales);
    if constexpr (FORM == OFFSETS) two(rows + kEight * 16, u.offsets);
    if constexpr (FORM == SIXTEENS) {
      u.row = *reinterpret_cast<const u32*>(unit + Unit::ROWS_AT + lane / 4 * 4);
    }
    return u;
  }
  static __device__ __forceinline__ void two(const char* from, u32* to) {
    const uint2 w = *reinterpret_cast<const uint2*>(from);
    to[0] = w.x;
    to[1] = w.y;
  }

  static __device__ __forceinline__ u32 twice(const u32* halves, int i) {
    return __byte_perm(halves[i / 2], 0, i % 2 ? 0x3232 : 0x1010);
  }

  // The codes of pair p of block b as halves, less ZERO. Those of four to six bits become 1024 +
  // code or 1024 + 16 code first.
  __device__ __forceinline__ u32 code(int b, int p, const Masks& masks) const {
    constexpr u32 MORE = 0x64006400u, LESS = MORE + Kind::ZERO * 0x00010001u;
    if constexpr (BITS == 8) {
      return sub2(__byte_perm(codes[2 * b + p / 2], 0x64646464u, p % 2 ? 0x4341 : 0x4240), LESS);
    } else {
      const u32 w = p % 2 ? codes[b] >> 8 : codes[b];
      u32 n = (w & (p < 2 ? masks.low : masks.high)) | MORE;
      if constexpr (BITS == 5) {
        const u32 h = codes[BLOCKS];
        // Bits b and b + 4 of each half, or eight further, to bits 4 and 8.
        const u32 at = p % 2 ? h >> (4 + b) : h << (4 - b);
        n |= at & (p < 2 ? 0x00100010u : 0x01000100u);
      } else if constexpr (BITS == 6) {
        const u32 h = codes[BLOCKS + b / 2];
        const u32 swapped = p % 2 ? __byte_perm(h, 0, 0x2301) : h;
        n |= (b % 2 ? swapped >> 2 : swapped) & (p < 2 ? 0x00300030u : 0x03000300u);
      }
      constexpr u32 SIXTEENTH = 0x2C002C00u;                        // what 1024 becomes is 64
      constexpr u32 THEN = 0xD400D400u + Kind::ZERO * 0x00100010u;  // -64 - ZERO, whose ulp is 1/16
      static_assert(Kind::ZERO < 64, "up to 128 the exponent is that of 64");
      return p < 2 ? sub2(n, LESS) : fma2(n, SIXTEENTH, THEN);
    }
  }

  __device__ __forceinline__ Pairs pairs(int b, const Masks& masks) const {
    Pairs y;
    u32 scale = twice(scales, b), offset = 0;
    if constexpr (FORM == OFFSETS) offset = twice(offsets, b);
    if constexpr (FORM == SIXTEENS) {
      offset = mul2(scale, __byte_perm(row, 0, 0x3232));
      scale = mul2(scale, __byte_perm(row, 0, 0x1010));
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const u32 n = code(b, p, masks);
      y.v[p] = FORM == SCALES ? mul2(n, scale) : fma2(n, scale, offset);
    }
    return y;
  }
};
