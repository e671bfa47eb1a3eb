// Quantized weights and columns as 16-bit floats that hold whole numbers, for products whose sums
// are exact (mul_mat_integers.cu).
//
// Of each block of 32 elements lane t of the four that share a row has elements 4 t to 4 t + 3, as
// pairs (0, 2) and (1, 3), and those 16 later. So the first 16 are one product's, the last 16
// another's.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/int8_weights.cuh"
#include "cuda/mul_mat_mma.cuh"

struct HalfPairs {
  u32 even, odd;  // of bytes 0 and 2, and of 1 and 3
};

// 0x6400 is 1024, whose last bit counts one; 0x6480 is 1152.
template <bool SIGNED>
__device__ __forceinline__ HalfPairs halves_of_bytes(u32 bytes) {
  const u32 v = SIGNED ? bytes ^ int8::kSigns : bytes;
  const u32 zero = SIGNED ? 0x64806480u : 0x64006400u;
  return {sub2(__byte_perm(v, 0x64646464u, 0x4240), zero),
          sub2(__byte_perm(v, 0x64646464u, 0x4341), zero)};
}

// The low and the high nibbles of bytes, minus OFFSET.
template <int OFFSET>
__device__ __forceinline__ HalfPairs halves_of_low(u32 w, const Masks& m) {
  constexpr u32 ZERO = 0x64006400u + OFFSET * 0x00010001u;
  return {sub2((w & m.low) | 0x64006400u, ZERO), sub2(((w >> 8) & m.low) | 0x64006400u, ZERO)};
}
template <int OFFSET>
__device__ __forceinline__ HalfPairs halves_of_high(u32 w, const Masks& m) {
  static_assert(OFFSET == 0 || OFFSET == 8, "as halves -64 and -72");
  constexpr u32 SIXTEENTH = 0x2C002C00u, ZERO = OFFSET == 0 ? 0xD400D400u : 0xD480D480u;
  return {fma2((w & m.high) | 0x64006400u, SIXTEENTH, ZERO),
          fma2(((w >> 8) & m.high) | 0x64006400u, SIXTEENTH, ZERO)};
}

// A lane's share of a block of two rows: fragments of the two products, and of each row what
// Int8Block has of the two halves of 16.
struct IntegerBlock {
  u32 a[2][4];
  float s[2][2], b[2][2];

  __device__ __forceinline__ void put(int row, int half, HalfPairs v) {
    a[half][row] = v.even;
    a[half][2 + row] = v.odd;
  }
};

// A row's share, from the words of the int8 products.
template <class W>
__device__ __forceinline__ void put_row(IntegerBlock& to, int row, int j,
                                        const typename Int8<W>::Raw& raw,
                                        const typename Int8<W>::Head& head, const ByteMasks& bytes,
                                        const Masks& nibbles) {
  using T = Int8<W>;
  if constexpr (is_same<W, block_q4_0>::value) {
    const u32 w = raw.w[j % 2];
    to.put(row, 0, halves_of_low<8>(w, nibbles));
    to.put(row, 1, halves_of_high<8>(w, nibbles));
    to.s[row][0] = raw.d[j % 2];
  } else if constexpr (is_same<W, block_q4_K>::value) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      to.put(
          row, h,
          j % 2 == 0 ? halves_of_low<0>(raw.w[h], nibbles) : halves_of_high<0>(raw.w[h], nibbles));
    }
    to.s[row][0] = T::scale(head, j);
    to.b[row][0] = T::offset(head, j);
  } else {
    const Int8Block q = T::block(raw, j, head, bytes);
#pragma unroll
    for (int h = 0; h < 2; ++h) to.put(row, h, halves_of_bytes<T::SIGNED>(q.n[h]));
    to.s[row][0] = q.s0;
    to.s[row][1] = q.s1;
    to.b[row][0] = q.b0;
    to.b[row][1] = q.b1;
  }
}

// Two rows' chunks of 256 elements, block by block.
template <class W>
struct IntegerRows {
  using T = Int8<W>;
  const char* rows[2];
  typename T::Head heads[2];
  typename T::Raw raws[2];

  __device__ __forceinline__ void enter(const char* upper, const char* lower, int t) {
    rows[0] = upper;
    rows[1] = lower;
#pragma unroll
    for (int r = 0; r < 2; ++r) heads[r] = T::head(rows[r], t);
  }
  // The words of block j and those that are loaded with it, if it is their first.
  __device__ __forceinline__ void ask(int j, int t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (j % T::SPAN == 0) raws[r] = T::load(rows[r], j / T::SPAN, t, heads[r]);
    }
  }
  // Block j, whose words are there.
  __device__ __forceinline__ void block(IntegerBlock& to, int j, const ByteMasks& bytes,
                                        const Masks& nibbles) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) put_row<W>(to, r, j, raws[r], heads[r], bytes, nibbles);
  }
};

// -- columns -------------------------------------------------------------------------------------

constexpr int kTileK = 64;         // elements of a stage of columns, two blocks
constexpr int kColumnNumbers = 3;  // of a block of a column: d, sum and sum0 of int8_columns.cuh

// Where column p of a group lies among its block's numbers: what a lane has of two tiles of eight
// columns is 16 bytes.
__device__ __forceinline__ int place_of_column(int p) {
  return p / 16 * 16 + p % 8 / 2 * 4 + p / 8 % 2 * 2 + p % 2;
}
