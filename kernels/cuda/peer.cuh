// Memory that another device, or the host, writes while a kernel runs: loads and stores that no
// cache answers, and waiting that ends when the other side is gone.
#pragma once

#include "cuda/common.cuh"

__device__ __forceinline__ u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_release(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ u32 load_fresh(const u32* p) {
  u32 v;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_volatile(uint4* p, uint4 v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ i64 clock_ns() {
  i64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Waiting for another device: over once somebody gave the run up, or after timeout_ns, when `code`
// goes to the word that says so. That word lies in the host's memory, so it is looked at seldom,
// and of the lanes that wait together by one: a device that all of whose threads looked would be
// late itself, the other would then look as often, and every exchange of the run took milliseconds.
struct Patience {
  u32* given_up;
  i64 timeout_ns;
  u32 code;
  i64 begin;
  int turn;
  bool over;

  __device__ __forceinline__ Patience(u32* word, i64 ns, u32 number)
      : given_up(word), timeout_ns(ns), code(number), begin(0), turn(0), over(false) {}

  __device__ __forceinline__ bool is_over() {
    if (over || ++turn % 4096 != 0) return over;
    const u32 lanes = __activemask();
    const int first = __ffs(lanes) - 1;
    if (threadIdx.x % 32 == first) {
      if (begin == 0) begin = clock_ns();
      if (load_acquire(given_up) != 0) {
        over = true;
      } else if (clock_ns() - begin > timeout_ns) {
        store_release(given_up, code);
        over = true;
      }
    }
    over = __shfl_sync(lanes, over, first);
    return over;
  }
};
