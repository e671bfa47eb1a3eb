// Quantized weights as tensor cores want them: eight rows lie together, 256 elements of each at a
// time, so that what a warp asks for is one run of bytes and a lane's share of it whole words. The
// values are those of columns_weights.cuh to the bit, and so is the order of elements.
//
// A unit has every lane's codes first, lane 4 r + t's of row r, then the scales and offsets of its
// rows as halves: those that K types pack are unpacked when fragments are made.
//
// A code becomes a half by a mask alone: it stands in the highest bits of a half's mantissa, and as
// the exponent is 0 the half is the code times 2^-(14 + BITS), to the bit (a subnormal number). One
// product, added to an offset, is then the value: scales lie in the form times 2^(14 + BITS), which
// takes those below 2^(2 - BITS): values without an offset below 2. Halves' arithmetic is what
// takes longest: beside the tensor cores' an instruction takes two cycles of a scheduler
// (docs/LOG.md).
#pragma once

#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"

constexpr int kUnit = 256, kEight = 8;  // elements of each row of a unit, and rows

// How a value is made of a code of BITS: (code - 2^(BITS - 1)) scale, code scale + offset, or the
// same with scale and offset the row's times an integer of sixteen elements.
enum { SCALES, OFFSETS, SIXTEENS };

template <int B, int F>
struct FragmentKindOf {
  static constexpr int BITS = B, FORM = F;
};
template <class W>
struct FragmentKind;
template <>
struct FragmentKind<block_q4_0> : FragmentKindOf<4, SCALES> {};
template <>
struct FragmentKind<block_q4_1> : FragmentKindOf<4, OFFSETS> {};
template <>
struct FragmentKind<block_q4_K> : FragmentKindOf<4, OFFSETS> {};
template <>
struct FragmentKind<block_q5_0> : FragmentKindOf<5, SCALES> {};
template <>
struct FragmentKind<block_q5_1> : FragmentKindOf<5, OFFSETS> {};
template <>
struct FragmentKind<block_q5_K> : FragmentKindOf<5, OFFSETS> {};
template <>
struct FragmentKind<block_q6_K> : FragmentKindOf<6, SIXTEENS> {};
template <>
struct FragmentKind<block_q8_0> : FragmentKindOf<8, SCALES> {};

// Of every 32 elements of a row lane t of four has eight, e0 to e7, as the pairs (e0, e2), (e1,
// e3), (e4, e6), (e5, e7): elements 4 t and following of both halves of Q4_0, else 8 t and
// following.
template <class W>
constexpr bool kOfHalves = is_same<W, block_q4_0>::value;

constexpr u32 kPair = 0x00010001u;  // what stands in both halves of a word

// Where the codes of a lane lie. A word is a ring: turned right by some bits, or shifted, a pair of
// codes comes to stand at the bits AT and following of both halves. What lies around them does not
// matter, as they are masked.
template <int BITS>
struct CodePlaces {
  static constexpr int AT = 10 - BITS;                // in a half's mantissa
  static constexpr int LOW = BITS == 8 ? 8 : 4;       // bits of a code that lie together
  static constexpr int HIGH = BITS - LOW;             // those above, in words of their own
  static constexpr int PAIRS = BITS == 8 ? 2 : 4;     // of a word
  static constexpr int SHARED = HIGH ? 4 / HIGH : 1;  // blocks that share a word of high bits
  static constexpr u32 MASK = ((1u << BITS) - 1 << AT) * kPair;

  static constexpr __host__ __device__ u32 turned_left(u32 w, int n) {
    return n % 32 == 0 ? w : w << (n & 31) | w >> (-n & 31);
  }
  // Of pair p, to the left of AT.
  static constexpr __host__ __device__ int place(int p) {
    return PAIRS == 2 ? 8 * p : p == 0 ? 0 : p == 1 ? -4 : p == 2 ? 4 : 8;
  }
  // The low bits of pairs p and q.
  static constexpr __host__ __device__ u32 low_mask(int p, int q) {
    const u32 ones = ((1u << LOW) - 1) * kPair;
    return turned_left(ones, AT + place(p)) | turned_left(ones, AT + place(q));
  }
  // A word in which pair p stands at AT.
  static __device__ __forceinline__ u32 turned(u32 w, int p) {
    const int n = place(p);
    return n == 0 ? w : n == 8 ? __funnelshift_r(w, w, 8) : n < 0 ? w << -n : w >> n;
  }
};

template <class W>
struct FragmentUnit {
  typedef FragmentKind<W> Kind;
  static constexpr int BLOCKS = kUnit / 32, BITS = Kind::BITS, FORM = Kind::FORM;
  typedef CodePlaces<BITS> Places;
  static constexpr int WORDS = BLOCKS * BITS / 4;  // of a lane's codes
  static constexpr int FOURS = WORDS / 4;          // of these, all but those of a fifth bit
  static constexpr int SCALES_AT = 32 * 4 * WORDS;
  static constexpr int OFFSETS_AT = SCALES_AT + kEight * 16;  // or of the other lanes' sixteens
  static constexpr int ROWS_AT = OFFSETS_AT + kEight * 16;    // pairs of halves, of SIXTEENS
  static constexpr int BYTES = FORM == SCALES    ? OFFSETS_AT
                               : FORM == OFFSETS ? ROWS_AT
                                                 : ROWS_AT + kEight * 4;

  // A lane's share of a unit, of its row. Returns whether scales are too large.
  static __device__ __forceinline__ bool make(const char* row, char* unit, int lane) {
    const int t = lane % 4, r = lane / 4;
    u32 made[WORDS] = {};
    bool too_large = false;
    for (int b = 0; b < BLOCKS; ++b) {
      const Eight e = eight_of(row, b, t);
      for (int p = 0; p < 4; ++p) put(made, b, p, pair_of(p < 2 ? e.lo : e.hi, p % 2));
      gf_u16* const scales = reinterpret_cast<gf_u16*>(unit + SCALES_AT + r * 16);
      gf_u16* const offsets = reinterpret_cast<gf_u16*>(unit + OFFSETS_AT + r * 16);
      if constexpr (FORM == SIXTEENS) {
        const block_q6_K* const block = reinterpret_cast<const block_q6_K*>(row);
        const float scale = block->scales[2 * b + t / 2];
        if (t % 2 == 0) (t / 2 ? offsets : scales)[b] = half_of(scale);
        too_large |= !is_finite(lifted(scale * gf_f16_to_f32(block->d)));
      } else if (t == 0) {
        scales[b] = lifted(e.scale);
        too_large |= !is_finite(scales[b]);
        if (FORM == OFFSETS) offsets[b] = half_of(e.offset);
      }
    }
    if constexpr (FORM == SIXTEENS) {
      const float d = gf_f16_to_f32(reinterpret_cast<const block_q6_K*>(row)->d);
      if (t == 0) reinterpret_cast<u32*>(unit + ROWS_AT)[r] = Float<f16>::pair(d, -32.0f * d);
      too_large |= !is_finite(half_of(-32.0f * d));  // which would not become 0 with a scale of 0
    }
    for (int i = 0; i < 4 * FOURS; ++i) {
      reinterpret_cast<u32*>(unit + i / 4 * 512 + lane * 16)[i % 4] = made[i];
    }
    for (int i = 4 * FOURS; i < WORDS; ++i) {
      reinterpret_cast<u32*>(unit + FOURS * 512 + lane * 8)[i - 4 * FOURS] = made[i];
    }
    return too_large;
  }
  // Of four codes, bytes: the first and the third, or the second and the fourth, in halves.
  static __device__ __forceinline__ u32 pair_of(u32 bytes, int second) {
    return bytes >> 8 * second & 0x00FF00FFu;
  }
  // Pair p of block b, where `code` looks for it.
  static __device__ __forceinline__ void put(u32* made, int b, int p, u32 pair) {
    constexpr u32 LOW = (1u << Places::LOW) - 1;
    const int at = Places::AT + Places::place(p % Places::PAIRS);
    made[b * 4 / Places::PAIRS + p / Places::PAIRS] |= Places::turned_left(pair & LOW * kPair, at);
    if constexpr (Places::HIGH > 0) {
      const int high = at + Places::LOW + b % Places::SHARED * Places::HIGH;
      const u32 bits = pair >> Places::LOW & ((1u << Places::HIGH) - 1) * kPair;
      made[BLOCKS + b / Places::SHARED] |= Places::turned_left(bits, high);
    }
  }
  // A scale as it lies in the form.
  static __device__ __forceinline__ gf_u16 lifted(float scale) {
    return half_of(gf_f16_to_f32(half_of(scale)) * (float)(1 << (14 + BITS)));
  }
  static __device__ __forceinline__ bool is_finite(gf_u16 x) { return (x & 0x7C00u) != 0x7C00u; }
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
};

// What a lane has of half a unit, so that few registers hold it.
template <class W>
struct FragmentHalf {
  typedef FragmentUnit<W> Unit;
  typedef typename Unit::Places Places;
  static constexpr int BLOCKS = Unit::BLOCKS / 2, FORM = Unit::FORM;
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

  // One of two halves, twice: which one is part of the instruction that takes it.
  static __device__ __forceinline__ u32 twice(u32 halves, int i) {
    u32 y;
    if (i == 0) {
      asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {lo, lo}; }"
          : "=r"(y)
          : "r"(halves));
    } else {
      asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, hi}; }"
          : "=r"(y)
          : "r"(halves));
    }
    return y;
  }

  // Bits of x where the mask has ones, of y elsewhere: one instruction, which the compiler would
  // make several of where it knows what is masked later.
  static __device__ __forceinline__ u32 chosen(u32 x, u32 y, u32 mask) {
    u32 z;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(z) : "r"(x), "r"(y), "r"(mask));
    return z;
  }

  // The codes of pair p of block b as halves, times 2^-(14 + BITS).
  __device__ __forceinline__ u32 code(int b, int p) const {
    constexpr int PAIRS = Places::PAIRS;
    u32 w = codes[b * 4 / PAIRS + p / PAIRS];
    if constexpr (Places::HIGH > 0) {
      // With the bits above those of pairs 0 and 3, or of 1 and 2, for which there is room then.
      const u32 word = codes[BLOCKS + b / Places::SHARED];
      const u32 high = __funnelshift_r(word, word, b % Places::SHARED * Places::HIGH);
      const u32 low = p == 0 || p == 3 ? Places::low_mask(0, 3) : Places::low_mask(1, 2);
      w = chosen(w, high, low);
    }
    return Places::turned(w, p % PAIRS) & Places::MASK;
  }

  __device__ __forceinline__ Pairs pairs(int b) const {
    Pairs y;
    // Of two blocks.
    u32 scale = scales[b / 2], offset;
    if constexpr (FORM == SCALES) {
      offset = mul2(scale, 0x82008200u);  // -2^(BITS - 1) times the scale as it was
    } else if constexpr (FORM == OFFSETS) {
      offset = offsets[b / 2];
    } else {
      offset = mul2(scale, twice(row, 1));
      // 2^20, but as a product with the row's scale first, which may be rounded.
      scale = mul2(mul2(mul2(scale, twice(row, 0)), 0x64006400u), 0x64006400u);
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      y.v[p] = fma2(code(b, p), twice(scale, b % 2), twice(offset, b % 2));
    }
    return y;
  }
};
