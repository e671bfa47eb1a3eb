// 16-bit weights below 2 in magnitude in 15 bits each: the exponent's highest bit is 0 in all of
// them and is left out. Of each set of sixteen words, of two weights each, fifteen are kept, and
// carry the bits of the last one where their own zeros were. So what a row is read by decides which
// words make a set: one lane has them all.
#pragma once

#include "cuda/common.cuh"

// Weights of type W in that form.
template <class W>
struct compact {};

constexpr int kSet = 16;  // words
constexpr u32 kZeros = 0x40004000u;

// The bits of a set's last word that word i carries, at their places in it. In it these are 0.
__device__ __forceinline__ u32 carried(u32 word, int i) {
  return i < 14 ? (word >> (14 - i)) & (0x00010001u << i) : (word << 1) & 0x80008000u;
}
// The other way: what word i carries of the last one.
__device__ __forceinline__ u32 to_carry(u32 last, int i) {
  return (i < 14 ? last << (14 - i) : last >> 1) & kZeros;
}
__device__ __forceinline__ u32 without(u32 word) { return word & ~kZeros; }

// How sets lie in units of 1024 weights, a set for each lane of a warp. ROWS, WORDS: of a unit.
// row, word: where word i of a set is; kept: where it is in the unit's compact form, of kKept
// words.
constexpr int kKept = 512 - 32;

// Of one row each lane has 8 neighbouring weights of each 256 (mul_mat_vec.cuh).
struct Along {
  static constexpr int ROWS = 1, WORDS = 512;
  static __device__ __forceinline__ int row(int) { return 0; }
  static __device__ __forceinline__ int word(int lane, int i) {
    return i / 4 * 128 + lane * 4 + i % 4;
  }
  static __device__ __forceinline__ int kept(int lane, int i) {
    return i < 12 ? word(lane, i) : i < 14 ? 384 + 2 * lane + i - 12 : 448 + lane;
  }
};

// Of eight rows each lane has 4 neighbouring weights of each 16 of one, as tensor cores want them
// (mul_mat_one_float.cu). Words lie as the lanes read them, two at a time.
struct Eights {
  static constexpr int ROWS = 8, WORDS = 64;
  static __device__ __forceinline__ int row(int lane) { return lane / 4; }
  static __device__ __forceinline__ int word(int lane, int i) {
    return i / 2 * 8 + lane % 4 * 2 + i % 2;
  }
  static __device__ __forceinline__ int kept(int lane, int i) {
    return i < 14 ? i / 2 * 64 + lane * 2 + i % 2 : 448 + lane;
  }
};
