// Hopper's product of a warpgroup with both operands in shared memory: 64 rows times N rows, of 16
// elements each. Only for the sm_90a target. Both lie as columns_descriptor (wgmma.cuh) says.
#pragma once

#include "cuda/wgmma.cuh"

#define GF_TEXT8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GF_TEXT16 GF_TEXT8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GF_TEXT24 GF_TEXT16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define GF_TEXT32 GF_TEXT24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define GF_TEXT40 GF_TEXT32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define GF_TEXT48 GF_TEXT40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define GF_TEXT56 GF_TEXT48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define GF_TEXT64 GF_TEXT56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define GF_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GF_SUMS8 GF_FOUR(0), GF_FOUR(4)
#define GF_SUMS16 GF_SUMS8, GF_FOUR(8), GF_FOUR(12)
#define GF_SUMS24 GF_SUMS16, GF_FOUR(16), GF_FOUR(20)
#define GF_SUMS32 GF_SUMS24, GF_FOUR(24), GF_FOUR(28)
#define GF_SUMS40 GF_SUMS32, GF_FOUR(32), GF_FOUR(36)
#define GF_SUMS48 GF_SUMS40, GF_FOUR(40), GF_FOUR(44)
#define GF_SUMS56 GF_SUMS48, GF_FOUR(48), GF_FOUR(52)
#define GF_SUMS64 GF_SUMS56, GF_FOUR(56), GF_FOUR(60)
// Immediates: neither operand is negated, neither is transposed. The sum goes on.
#define GF_PRODUCT(N, TYPE, TEXT, A, B, ...)                                                 \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" N \
               "k16.f32." TYPE "." TYPE " {" TEXT "}, " A ", " B ", p, 1, 1, 0, 0;\n}\n"     \
               : __VA_ARGS__                                                                 \
               : "l"(a), "l"(b))
#define GF_EITHER(N, TEXT, A, B, ...)               \
  if constexpr (is_same<T, f16>::value) {           \
    GF_PRODUCT(N, "f16", TEXT, A, B, __VA_ARGS__);  \
  } else {                                          \
    GF_PRODUCT(N, "bf16", TEXT, A, B, __VA_ARGS__); \
  }

// d += a b^T. d[4 j + i] of lane l, of warp w: row 16 w + l / 4 + 8 (i / 2) of a, row 8 j + 2 (l %
// 4) + i % 2 of b.
template <class T, int N>
__device__ __forceinline__ void product_shared(float (&d)[N / 2], u64 a, u64 b) {
  if constexpr (N == 16) {
    GF_EITHER("16", GF_TEXT8, "%8", "%9", GF_SUMS8);
  } else if constexpr (N == 32) {
    GF_EITHER("32", GF_TEXT16, "%16", "%17", GF_SUMS16);
  } else if constexpr (N == 48) {
    GF_EITHER("48", GF_TEXT24, "%24", "%25", GF_SUMS24);
  } else if constexpr (N == 64) {
    GF_EITHER("64", GF_TEXT32, "%32", "%33", GF_SUMS32);
  } else if constexpr (N == 80) {
    GF_EITHER("80", GF_TEXT40, "%40", "%41", GF_SUMS40);
  } else if constexpr (N == 96) {
    GF_EITHER("96", GF_TEXT48, "%48", "%49", GF_SUMS48);
  } else if constexpr (N == 112) {
    GF_EITHER("112", GF_TEXT56, "%56", "%57", GF_SUMS56);
  } else if constexpr (N == 128) {
    GF_EITHER("128", GF_TEXT64, "%64", "%65", GF_SUMS64);
  } else {
    static_assert(N == 16, "no such number of rows");
  }
}

#undef GF_TEXT8
#undef GF_TEXT16
#undef GF_TEXT24
#undef GF_TEXT32
#undef GF_TEXT40
#undef GF_TEXT48
#undef GF_TEXT56
#undef GF_TEXT64
#undef GF_FOUR
#undef GF_SUMS8
#undef GF_SUMS16
#undef GF_SUMS24
#undef GF_SUMS32
#undef GF_SUMS40
#undef GF_SUMS48
#undef GF_SUMS56
#undef GF_SUMS64
#undef GF_PRODUCT
#undef GF_EITHER
