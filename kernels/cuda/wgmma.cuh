// Hopper's product of a warpgroup: 64 weight rows, as 16-bit fragments in registers, times N
// columns that lie in shared memory. Only for the sm_90a target.
#pragma once

#include "cuda/common.cuh"

// Columns of 64 elements: rows of 128 bytes, eight of which repeat the 128-byte swizzle. The
// address is a multiple of 1024 plus 32 bytes for each 16 elements.
__device__ __forceinline__ u64 columns_descriptor(u32 address) {
  return (u64)((address & 0x3FFFFu) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
// Of its lower word, to which 16 bytes are one.
__device__ __forceinline__ u64 descriptor_of(u32 low) {
  return (u64)low | columns_descriptor(0) >> 32 << 32;
}

// Before a product reads registers that other instructions have written.
__device__ __forceinline__ void products_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all but the last G groups are done.
template <int G>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(G) : "memory");
}

#define GF_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GF_8(i) GF_4(i), GF_4(i + 4)
#define GF_16(i) GF_8(i), GF_8(i + 8)
#define GF_32(i) GF_16(i), GF_16(i + 16)
#define GF_64(i) GF_32(i), GF_32(i + 32)
#define GF_128(i) GF_64(i), GF_64(i + 64)
// GOES_ON: "eq" if d is added to, "ne" if it is written. Immediates: neither operand is negated,
// the columns are not transposed.
#define GF_PRODUCT(N, TYPE, D, A, B, GOES_ON, REGISTERS)                                     \
  asm volatile("{\n.reg .pred p;\nsetp." GOES_ON                                             \
               ".u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE \
               " {" D "}, {" A "}, " B ", p, 1, 1, 0;\n}\n"                                  \
               : REGISTERS                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define GF_D8 "%0, %1, %2, %3"
#define GF_A8 "%4, %5, %6, %7"
#define GF_D16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GF_A16 "%8, %9, %10, %11"
#define GF_D32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define GF_A32 "%16, %17, %18, %19"
#define GF_D64                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GF_A64 "%32, %33, %34, %35"
#define GF_D128                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GF_A128 "%64, %65, %66, %67"
#define GF_D256                                                                                \
  GF_D128                                                                                      \
  ", "                                                                                         \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
  "%111, "                                                                                     \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define GF_A256 "%128, %129, %130, %131"

// d += a b. d[4 j + i] of lane l, of warp w: row 16 w + l / 4 + 8 (i / 2), column 8 j + 2 (l % 4) +
// i % 2; a as for mma.m16n8k16.
template <class T, int N>
__device__ __forceinline__ void product(float (&d)[N / 2], const u32 (&a)[4], u64 b) {
  constexpr bool HALF = is_same<T, f16>::value;
  if constexpr (N == 8) {
    if constexpr (HALF) {
      GF_PRODUCT("8", "f16", GF_D8, GF_A8, "%8", "eq", GF_4(0));
    } else {
      GF_PRODUCT("8", "bf16", GF_D8, GF_A8, "%8", "eq", GF_4(0));
    }
  } else if constexpr (N == 16) {
    if constexpr (HALF) {
      GF_PRODUCT("16", "f16", GF_D16, GF_A16, "%12", "eq", GF_8(0));
    } else {
      GF_PRODUCT("16", "bf16", GF_D16, GF_A16, "%12", "eq", GF_8(0));
    }
  } else if constexpr (N == 32) {
    if constexpr (HALF) {
      GF_PRODUCT("32", "f16", GF_D32, GF_A32, "%20", "eq", GF_16(0));
    } else {
      GF_PRODUCT("32", "bf16", GF_D32, GF_A32, "%20", "eq", GF_16(0));
    }
  } else if constexpr (N == 64) {
    if constexpr (HALF) {
      GF_PRODUCT("64", "f16", GF_D64, GF_A64, "%36", "eq", GF_32(0));
    } else {
      GF_PRODUCT("64", "bf16", GF_D64, GF_A64, "%36", "eq", GF_32(0));
    }
  } else if constexpr (N == 128) {
    if constexpr (HALF) {
      GF_PRODUCT("128", "f16", GF_D128, GF_A128, "%68", "eq", GF_64(0));
    } else {
      GF_PRODUCT("128", "bf16", GF_D128, GF_A128, "%68", "eq", GF_64(0));
    }
  } else if constexpr (N == 256) {
    static_assert(HALF, "only quantized weights have so many columns at once");
    GF_PRODUCT("256", "f16", GF_D256, GF_A256, "%132", "eq", GF_128(0));
  } else {
    static_assert(N == 8, "no such number of columns");
  }
}

// d = a b, whatever d was: no register has to be cleared.
#define GF_NEW_4(i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define GF_NEW_8(i) GF_NEW_4(i), GF_NEW_4(i + 4)
#define GF_NEW_16(i) GF_NEW_8(i), GF_NEW_8(i + 8)
#define GF_NEW_32(i) GF_NEW_16(i), GF_NEW_16(i + 16)
template <int N>
__device__ __forceinline__ void new_product(float (&d)[N / 2], const u32 (&a)[4], u64 b) {
  if constexpr (N == 32) {
    GF_PRODUCT("32", "f16", GF_D32, GF_A32, "%20", "ne", GF_NEW_16(0));
  } else {
    static_assert(N == 64, "no such number of columns");
    GF_PRODUCT("64", "f16", GF_D64, GF_A64, "%36", "ne", GF_NEW_32(0));
  }
}

#undef GF_NEW_4
#undef GF_NEW_8
#undef GF_NEW_16
#undef GF_NEW_32
#undef GF_4
#undef GF_8
#undef GF_16
#undef GF_32
#undef GF_64
#undef GF_128
#undef GF_PRODUCT
#undef GF_D8
#undef GF_A8
#undef GF_D16
#undef GF_A16
#undef GF_D32
#undef GF_A32
#undef GF_D64
#undef GF_A64
#undef GF_D128
#undef GF_A128
#undef GF_D256
#undef GF_A256
