// Eight neighbouring weights as halves, for the matrix instructions of mul_mat_mma.cu.
#pragma once

#include "cuda/eight.cuh"

struct Halves {
  u32 v[4];  // pairs, lower element in the lower half
};

__device__ __forceinline__ u32 sub2(u32 a, u32 b) {
  u32 y;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

// Bytes i and i + 1 of w as halves of 1024 + byte: 0x6400 is 1024, whose last bit counts one.
template <int I>
__device__ __forceinline__ u32 bytes_as_halves(u32 w) {
  return __byte_perm(w, 0x64646464u, 0x4040 | (I + 1) << 8 | I);
}

// What is taken from 1024 + byte before the scale, and added after it: of signed values the number
// that they were made positive by, which is exact, of others nothing and the offset, rounded.
template <class W>
__device__ __forceinline__ constexpr u32 half_zero() {
  return 0x64006400u + SignedKind<W>::MOST * 0x00010001u;
}
template <class W>
__device__ __forceinline__ u32 half_offset(const Eight& e) {
  return SignedKind<W>::SIGNED ? 0 : Float<f16>::pair(e.offset, e.offset);
}

// Elements [8 c, 8 c + 8) of a block. Scale and offset are rounded to halves.
template <class W>
__device__ __forceinline__ Halves halves(const W* b, int c) {
  const Eight e = eight(b, c);
  const u32 scale = Float<f16>::pair(e.scale, e.scale);
  const u32 offset = half_offset<W>(e);
  const auto two = [scale, offset](u32 bytes) {
    return fma2(sub2(bytes, half_zero<W>()), scale, offset);
  };
  return {{two(bytes_as_halves<0>(e.lo)), two(bytes_as_halves<2>(e.lo)),
           two(bytes_as_halves<0>(e.hi)), two(bytes_as_halves<2>(e.hi))}};
}
