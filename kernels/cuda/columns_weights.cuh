// Weights of mul_mat_columns.cu and mul_mat_stream.cu: how a chunk of a row lies in a stage of
// shared memory, and how a lane makes 16-bit fragments of it.
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
// What two products take of 32 elements of an upper and a lower row.
__device__ __forceinline__ void to_fragments(const Pairs& upper, const Pairs& lower, u32 (*to)[4]) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    to[s][0] = upper.v[2 * s];
    to[s][1] = lower.v[2 * s];
    to[s][2] = upper.v[2 * s + 1];
    to[s][3] = lower.v[2 * s + 1];
  }
}

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
  // 7). Read first, and made into pairs by what touches registers alone.
  struct Raw {
    u32 lo, hi, scale, offset;
  };
  static __device__ __forceinline__ Raw raw(const char* row, int block32, int t, int) {
    constexpr int EIGHTS = W::QK / 8;
    const int piece = block32 * 4 + t;
    const Eight e = eight(reinterpret_cast<const W*>(row) + piece / EIGHTS, piece % EIGHTS);
    return {e.lo, e.hi, Float<f16>::pair(e.scale, e.scale), half_offset<W>(e)};
  }
  static __device__ __forceinline__ Pairs pairs(const Raw& r, const Masks&) {
    const auto two = [&r](u32 w, u32 bytes) {
      return fma2(sub2(__byte_perm(w, 0x64646464u, bytes), half_zero<W>()), r.scale, r.offset);
    };
    return {two(r.lo, 0x4240), two(r.lo, 0x4341), two(r.hi, 0x4240), two(r.hi, 0x4341)};
  }
  static __device__ __forceinline__ Pairs pairs(const char* row, int block32, int t, int odd,
                                                const Masks& masks) {
    return pairs(raw(row, block32, t, odd), masks);
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
__device__ __forceinline__ Weights<block_q4_0>::Raw Weights<block_q4_0>::raw(const char* row,
                                                                             int block32, int t,
                                                                             int) {
  const char* const block = row + block32 * (int)sizeof(block_q4_0);
  u32 w;
  if (block32 % 2 == 0) {
    const u32* const words = reinterpret_cast<const u32*>(block) + t;
    w = __funnelshift_r(words[0], words[1], 16);
  } else {
    w = reinterpret_cast<const u32*>(block + 2)[t];
  }
  const u32 scale = *reinterpret_cast<const gf_u16*>(block);
  return {w, 0, scale | scale << 16, 0};
}
template <>
__device__ __forceinline__ Pairs Weights<block_q4_0>::pairs(const Raw& r, const Masks& masks) {
  const u32 w = r.lo, v = w >> 8, d = r.scale;
  const auto low = [d](u32 nibbles) { return mul2(sub2(nibbles | 0x64006400u, 0x64086408u), d); };
  const auto high = [d](u32 nibbles) {  // / 16 - 72
    return mul2(fma2(nibbles | 0x64006400u, 0x2C002C00u, 0xD480D480u), d);
  };
  return {low(w & masks.low), low(v & masks.low), high(w & masks.high), high(v & masks.high)};
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
  using Raw = uint4;
  static __device__ __forceinline__ Raw raw(const char* row, int block32, int t, int odd) {
    const int piece = (block32 * 4 + t) ^ (odd * 4);
    return *reinterpret_cast<const uint4*>(row + piece * 16);
  }
  static __device__ __forceinline__ Pairs pairs(const Raw& v, const Masks&) {
    return {v.x, v.y, v.z, v.w};
  }
  static __device__ __forceinline__ Pairs pairs(const char* row, int block32, int t, int odd,
                                                const Masks& masks) {
    return pairs(raw(row, block32, t, odd), masks);
  }
};
template <>
struct Weights<f16> : FloatWeights<f16> {};
template <>
struct Weights<bf16> : FloatWeights<bf16> {};
