// What every CUDA kernel includes: tensors, element types, index arithmetic, block-wide reductions.
// NVRTC compiles it without any std or CUDA header.
#pragma once

#include "quants/common.h"

typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;

// ggml's convention: ne[0] is the innermost dimension, nb[] are strides in bytes. Mirrored by
// `pack` in launch.py; an absent operand has data == nullptr.
struct gf_tensor {
  char* data;
  i64 ne[4];
  i64 nb[4];

  __device__ char* row(i64 i1, i64 i2, i64 i3) const {
    return data + i1 * nb[1] + i2 * nb[2] + i3 * nb[3];
  }
  // Row r of all rows, counted innermost dimension first.
  __device__ char* row(i64 r) const {
    const i64 i1 = r % ne[1], q = r / ne[1];
    return row(i1, q % ne[2], q / ne[2]);
  }
};
static_assert(sizeof(gf_tensor) == 72, "TENSOR_BYTES of launch.py");

// -- element types -------------------------------------------------------------------------------

typedef float f32;
typedef int i32;
struct f16 {
  gf_u16 bits;
};
struct bf16 {
  gf_u16 bits;
};

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(f16 x) { return gf_f16_to_f32(x.bits); }
__device__ __forceinline__ float to_f32(bf16 x) { return gf_bf16_to_f32(x.bits); }

template <class T>
struct Float;  // T::from(float), rounding to nearest even
template <>
struct Float<f32> {
  static __device__ __forceinline__ f32 from(float x) { return x; }
};
template <>
struct Float<f16> {
  static __device__ __forceinline__ f16 from(float x) { return {gf_f32_to_f16(x)}; }
  // Two at once: one instruction.
  static __device__ __forceinline__ u32 pair(float lo, float hi) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
    return w;
  }
  static __device__ __forceinline__ float low(u32 w) { return gf_f16_to_f32((gf_u16)w); }
  static __device__ __forceinline__ float high(u32 w) { return gf_f16_to_f32((gf_u16)(w >> 16)); }
};
template <>
struct Float<bf16> {
  static __device__ __forceinline__ bf16 from(float x) { return {gf_f32_to_bf16(x)}; }
  static __device__ __forceinline__ u32 pair(float lo, float hi) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
    return w;
  }
  static __device__ __forceinline__ float low(u32 w) { return gf_float_of(w << 16); }
  static __device__ __forceinline__ float high(u32 w) { return gf_float_of(w & 0xFFFF0000u); }
};

constexpr int larger(int a, int b) { return a > b ? a : b; }

template <class A, class B>
struct is_same {
  static constexpr bool value = false;
};
template <class A>
struct is_same<A, A> {
  static constexpr bool value = true;
};

// N elements that are read or written in one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

// A pack from memory in one instruction. The compiler makes V of `*p` where the elements are then
// used one by one.
template <class T, int V>
__device__ __forceinline__ Pack<T, V> load_pack(const Pack<T, V>* p) {
  if constexpr (sizeof(Pack<T, V>) == 16) {
    union {
      uint4 words;
      Pack<T, V> pack;
    } u = {*reinterpret_cast<const uint4*>(p)};
    return u.pack;
  } else if constexpr (sizeof(Pack<T, V>) == 8) {
    union {
      uint2 words;
      Pack<T, V> pack;
    } u = {*reinterpret_cast<const uint2*>(p)};
    return u.pack;
  } else {
    return *p;
  }
}

template <class T, int V>
__device__ __forceinline__ float element_f32(const Pack<T, V>& p, int k) {
  if constexpr (is_same<T, bf16>::value && V % 2 == 0) {  // of a whole word: one instruction
    const u32 word = reinterpret_cast<const u32*>(&p)[k / 2];
    return gf_float_of(k % 2 ? word & 0xFFFF0000u : word << 16);
  } else {
    return to_f32(p.v[k]);
  }
}

// 16 bytes that another device may write: no cache answers.
__device__ __forceinline__ uint4 load_volatile(const uint4* p) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// -- indices -------------------------------------------------------------------------------------

// Division of n < 2^31 by a constant of the launch; built by `fast_div` in launch.py.
struct FastDiv {
  u32 multiplier, shift, divisor;

  __device__ __forceinline__ u32 div(u32 n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};
static_assert(sizeof(FastDiv) == 12, "packed by fast_div in launch.py");

struct Index {
  i64 i0, i1, i2, i3;
};

// Element i of a tensor of extents ne, innermost first. WIDE: i may reach 2^31.
template <bool WIDE>
__device__ __forceinline__ Index unravel(i64 i, const i64* ne, const FastDiv* by) {
  if (WIDE) {
    const i64 q = i / ne[0], r = q / ne[1];
    return {i - q * ne[0], q - r * ne[1], r % ne[2], r / ne[2]};
  }
  const u32 n = (u32)i, q = by[0].div(n), r = by[1].div(q), s = by[2].div(r);
  return {n - q * by[0].divisor, q - r * by[1].divisor, r - s * by[2].divisor, s};
}

__device__ __forceinline__ i64 global_thread() {
  return (i64)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ i64 global_threads() { return (i64)gridDim.x * blockDim.x; }

// -- reductions over a warp and a block, in one fixed order --------------------------------------

__device__ __forceinline__ float infinity() { return gf_float_of(0x7F800000u); }
constexpr u32 kAllLanes = 0xFFFFFFFFu;

struct Add {
  static __device__ __forceinline__ float identity() { return 0.0f; }
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  static __device__ __forceinline__ float identity() { return -infinity(); }
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class F>
__device__ __forceinline__ float warp_reduce(float x, F f) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = f(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// All threads get the result. Blocks of whole warps.
template <class F>
__device__ float block_reduce(float x, F f) {
  __shared__ float partial[32];
  x = warp_reduce(x, f);
  __syncthreads();  // `partial` may still be read from the call before
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : F::identity();
  return warp_reduce(x, f);
}
