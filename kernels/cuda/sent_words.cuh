// Words that say by themselves that they are there: sent inverted, none of them zero, into memory
// of another device that holds zeros; who takes them puts the zeros back. No fence is waited for
// and no flag follows the data, so that what comes first is used while the rest is on its way.
//
// Two exchanges use memory in turn. Who comes to exchange e + 1 has put back the zeros of e, and
// has something to send in e + 1 for which the others wait before they come to e + 2.
#pragma once

#include "cuda/peer.cuh"

// Never zero. What would be is a NaN, as which another one serves.
__device__ __forceinline__ u32 sent(u32 bits) { return bits == ~0u ? 0x80000000u : ~bits; }
__device__ __forceinline__ uint2 sent(uint2 w) { return make_uint2(sent(w.x), sent(w.y)); }
__device__ __forceinline__ uint4 sent(uint4 w) {
  return make_uint4(sent(w.x), sent(w.y), sent(w.z), sent(w.w));
}
__device__ __forceinline__ uint2 taken(uint2 w) { return make_uint2(~w.x, ~w.y); }
__device__ __forceinline__ uint4 taken(uint4 w) { return make_uint4(~w.x, ~w.y, ~w.z, ~w.w); }
__device__ __forceinline__ bool is_there(uint2 w) { return w.x != 0 && w.y != 0; }
__device__ __forceinline__ bool is_there(uint4 w) {
  return w.x != 0 && w.y != 0 && w.z != 0 && w.w != 0;
}

__device__ __forceinline__ u32 load_volatile(const u32* p) { return load_fresh(p); }
__device__ __forceinline__ uint2 load_volatile(const uint2* p) {
  uint2 v;
  asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_volatile(u32* p, u32 v) {
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_volatile(uint2* p, uint2 v) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}

// f(word, turn) for the words, of n, of a thread of B that has W at most.
template <int B, int W, class F>
__device__ __forceinline__ void each_word(int n, F f) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const int i = threadIdx.x + j * B;
    if (i < n) f(i, j);
  }
}

// Takes a thread's words of n once all of them are there. The last one is looked at until it is.
template <int B, int W, class Word>
__device__ __forceinline__ void take_words(Word* from, int n, Word (&v)[W], Patience& patience) {
  if (threadIdx.x < n) {
    const int last = (n - 1 - (int)threadIdx.x) / B * B + threadIdx.x;
    while (!is_there(load_volatile(from + last)) && !patience.is_over()) {
    }
  }
  bool all = false;
  while (!all && !patience.over) {
    all = true;
    each_word<B, W>(n, [&](int i, int j) { v[j] = load_volatile(from + i); });
    each_word<B, W>(n, [&](int, int j) { all = is_there(v[j]) && all; });
    if (!all) patience.is_over();
  }
  each_word<B, W>(n, [&](int i, int j) {
    from[i] = Word{};
    v[j] = taken(v[j]);
  });
}
