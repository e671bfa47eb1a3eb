// Tensor-core pieces of attention: m16n8k16 products of 16-bit floats summed in float, and the
// cache's elements as such floats.
#pragma once

#include "cuda/attention.cuh"
#include "cuda/dequant.cuh"
#include "cuda/mma.cuh"

// Transpose of the 8x8 matrix of 16-bit elements whose row lane/4 lies in four lanes.
__device__ __forceinline__ u32 transpose8x8(u32 x) {
  u32 y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Eight elements [d, d + 8) of a cache row, d % 8 == 0, as the products take them.
template <class T>
struct CacheRow {
  typedef T Half;
  static constexpr bool kPlain = true;  // memory already holds what the products take
  static __device__ __forceinline__ uint4 read8(const char* row, int d) {
    return *reinterpret_cast<const uint4*>(row + 2 * d);
  }
};

template <>
struct CacheRow<block_q8_0> {
  typedef f16 Half;
  static constexpr bool kPlain = false;
  // Byte q + 128 behind a high byte of 0x64 is the float16 number 1152 + q.
  static __device__ __forceinline__ u32 pair(u32 biased, u32 selector, u32 scale) {
    u32 x = __byte_perm(biased, 0x64646464u, selector);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(x) : "r"(0x64806480u));
    asm("mul.f16x2 %0, %0, %1;" : "+r"(x) : "r"(scale));
    return x;
  }
  static __device__ __forceinline__ uint4 read8(const char* row, int d) {
    const block_q8_0* const b = reinterpret_cast<const block_q8_0*>(row) + d / 32;
    const gf_u16* const q = reinterpret_cast<const gf_u16*>(b->qs + d % 32);  // blocks: 34 bytes
    const u32 scale = b->d * 0x10001u;
    const u32 lo = (q[0] | (u32)q[1] << 16) ^ 0x80808080u;
    const u32 hi = (q[2] | (u32)q[3] << 16) ^ 0x80808080u;
    return make_uint4(pair(lo, 0x4140, scale), pair(lo, 0x4342, scale), pair(hi, 0x4140, scale),
                      pair(hi, 0x4342, scale));
  }
};

// Eight floats of a query rounded to the products' type.
template <class T>
__device__ __forceinline__ uint4 round8(const float* x) {
  const float4 a = reinterpret_cast<const float4*>(x)[0];
  const float4 b = reinterpret_cast<const float4*>(x)[1];
  return make_uint4(Float<T>::pair(a.x, a.y), Float<T>::pair(a.z, a.w), Float<T>::pair(b.x, b.y),
                    Float<T>::pair(b.z, b.w));
}
