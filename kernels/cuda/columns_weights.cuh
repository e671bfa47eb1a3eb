// Weights of mul_mat_columns.cu: how a chunk of a row lies in a stage of shared memory, and how a
// lane makes 16-bit fragments of it.
//
// Of every 32 elements lane t of the four that share a row holds eight, as four pairs. Which ones
// is the type's choice, for a sum may be taken in any order: round_columns puts the columns into
// the same one (`ORDERS` in mul_mat_columns.py).
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/mul_mat_mma.cuh"

struct Pairs {
  u32 v[4];
};

// Weights before their scales and offsets, as halves that are exact and too large by a constant:
// round_columns knows which (`_ZEROS` in columns.py). A weight is scale * (half - zero) + offset.
struct Raw {
  Pairs pairs;
  float scale, offset;
};

// Whether 32 elements have one scale, and whether they have an offset that is not a multiple of it.
template <class W>
struct RawKind {
  static constexpr bool RAW = false, OFFSET = false;
};
template <bool B>
struct RawKindOf {
  static constexpr bool RAW = true, OFFSET = B;
};
template <>
struct RawKind<block_q4_0> : RawKindOf<false> {};
template <>
struct RawKind<block_q5_0> : RawKindOf<false> {};
template <>
struct RawKind<block_q8_0> : RawKindOf<false> {};
template <>
struct RawKind<block_q4_1> : RawKindOf<true> {};
template <>
struct RawKind<block_q5_1> : RawKindOf<true> {};
template <>
struct RawKind<block_q4_K> : RawKindOf<true> {};
template <>
struct RawKind<block_q5_K> : RawKindOf<true> {};
// Quantized blocks. A chunk whose bytes are no multiple of 16 may start between two such multiples:
// everything it touches is copied, and it starts `offset` bytes later. Rows are an odd number of 16
// bytes apart, against conflicts.
template <class W>
struct Weights {
  using T = f16;
  static constexpr int CHUNK = 256;  // elements
  static constexpr int BYTES = CHUNK / W::QK * (int)sizeof(W);
  static constexpr bool ALIGNED = BYTES % 16 == 0;
  static constexpr int PIECES = ALIGNED ? BYTES / 16 : (BYTES + 15 + 15) / 16;
  static constexpr int STRIDE = (PIECES | 1) * 16;

  // Bytes of so many blocks of 32 elements.
  static __device__ __forceinline__ int bytes_of(int blocks32) {
    return blocks32 * 32 / W::QK * (int)sizeof(W);
  }
  // Byte at which piece p of a row lies.
  static __device__ __forceinline__ int place(int row, int p) { return row * STRIDE + p * 16; }
  static __device__ __forceinline__ int offset(const char* start) {
    return ALIGNED ? 0 : (int)(reinterpret_cast<u64>(start) & 15);
  }
  // Elements 8 t and following of the block32-th 32 of a chunk; pairs (0, 2), (1, 3), (4, 6), (5,
  // 7).
  static __device__ __forceinline__ Pairs pairs(const char* row, int block32, int t, int,
                                                const Masks&) {
    constexpr int EIGHTS = W::QK / 8;
    const int piece = block32 * 4 + t;
    const Eight e = eight(reinterpret_cast<const W*>(row) + piece / EIGHTS, piece % EIGHTS);
    const u32 scale = Float<f16>::pair(e.scale, e.scale);
    const u32 offset = Float<f16>::pair(e.offset, e.offset);
    const auto two = [scale, offset](u32 w, u32 bytes) {
      return fma2(sub2(__byte_perm(w, 0x64646464u, bytes), 0x64006400u), scale, offset);
    };
    return {two(e.lo, 0x4240), two(e.lo, 0x4341), two(e.hi, 0x4240), two(e.hi, 0x4341)};
  }
  static __device__ __forceinline__ Raw raw(const char* row, int block32, int t, const Masks&) {
    constexpr int EIGHTS = W::QK / 8;
    const int piece = block32 * 4 + t;
    const Eight e = eight(reinterpret_cast<const W*>(row) + piece / EIGHTS, piece % EIGHTS);
    const auto two = [](u32 w, u32 bytes) { return __byte_perm(w, 0x64646464u, bytes); };
    return {{two(e.lo, 0x4240), two(e.lo, 0x4341), two(e.hi, 0x4240), two(e.hi, 0x4341)},
            e.scale,
            e.offset};
  }
};

__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
  u32 y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

// Elements 4 t + {0, 2}, 4 t + {1, 3}, and those 16 later: a lane's nibbles are one word, which
// becomes halves of 1024 + q and 1024 + 16 q.
template <>
__device__ __forceinline__ Raw Weights<block_q4_0>::raw(const char* row, int block32, int t,
                                                        const Masks& masks) {
  const char* const block = row + block32 * (int)sizeof(block_q4_0);
  u32 w;
  if (block32 % 2 == 0) {
    const u32* const words = reinterpret_cast<const u32*>(block) + t;
    w = __funnelshift_r(words[0], words[1], 16);
  } else {
    w = reinterpret_cast<const u32*>(block + 2)[t];
  }
  const u32 v = w >> 8;
  return {{(w & masks.low) | 0x64006400u, (v & masks.low) | 0x64006400u,
           (w & masks.high) | 0x64006400u, (v & masks.high) | 0x64006400u},
          gf_f16_to_f32(*reinterpret_cast<const gf_u16*>(block)),
          0.0f};
}

template <>
__device__ __forceinline__ Pairs Weights<block_q4_0>::pairs(const char* row, int block32, int t,
                                                            int, const Masks& masks) {
  const Raw r = raw(row, block32, t, masks);
  const u32 d = Float<f16>::pair(r.scale, r.scale);
  const auto low = [d](u32 w) { return mul2(sub2(w, 0x64086408u), d); };
  const auto high = [d](u32 w) {  // / 16 - 72
    return mul2(fma2(w, 0x2C002C00u, 0xD480D480u), d);
  };
  return {low(r.pairs.v[0]), low(r.pairs.v[1]), high(r.pairs.v[2]), high(r.pairs.v[3])};
}

// 16-bit floats as they are: elements 8 t and following, neighbours as pairs. Odd rows have the
// halves of 128 bytes exchanged, against conflicts.
template <class F>
struct FloatWeights {
  using T = F;
  static constexpr int CHUNK = 128;
  static constexpr int BYTES = 2 * CHUNK;
  static constexpr bool ALIGNED = true;
  static constexpr int PIECES = BYTES / 16, STRIDE = BYTES;

  static __device__ __forceinline__ int bytes_of(int blocks32) { return blocks32 * 64; }
  static __device__ __forceinline__ int place(int row, int p) {
    return row * STRIDE + (p ^ (row % 2 * 4)) * 16;
  }
  static __device__ __forceinline__ int offset(const char*) { return 0; }
  static __device__ __forceinline__ Pairs pairs(const char* row, int block32, int t, int odd,
                                                const Masks&) {
    const int piece = (block32 * 4 + t) ^ (odd * 4);
    const uint4 v = *reinterpret_cast<const uint4*>(row + piece * 16);
    return {v.x, v.y, v.z, v.w};
  }
};
template <>
struct Weights<f16> : FloatWeights<f16> {};
template <>
struct Weights<bf16> : FloatWeights<bf16> {};
