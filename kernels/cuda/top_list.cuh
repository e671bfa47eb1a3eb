// The 64 smallest keys, sorted: one list a warp, element i in lane i % 32, in registers. Lists are
// made by a bitonic sort (Batcher 1968) and merged two by two: of an ascending and a descending
// list the smaller of each pair are the 64 smallest of both, and a bitonic merge sorts them.
#pragma once

#include "cuda/select.cuh"

constexpr int kList = 64;

struct TopList {
  u64 lo, hi;  // elements lane and lane + 32
};

__device__ __forceinline__ u64 smaller(u64 a, u64 b) { return b < a ? b : a; }

__device__ __forceinline__ u64 exchange(u64 x, int step, bool ascending) {
  const u64 y = __shfl_xor_sync(kAllLanes, x, step);
  const bool first = (threadIdx.x & step) == 0;
  return (x < y) == (first == ascending) ? x : y;
}

// Sorts 64 keys of which the steps above `step` are done; element 32 and after as `hi_ascending`.
__device__ __forceinline__ void merge_down(TopList& t, int step, bool lo_ascending,
                                           bool hi_ascending) {
#pragma unroll
  for (; step > 0; step /= 2) {
    t.lo = exchange(t.lo, step, lo_ascending);
    t.hi = exchange(t.hi, step, hi_ascending);
  }
}

__device__ __forceinline__ void merge_all(TopList& t) {
  const u64 a = t.lo, b = t.hi;
  t.lo = smaller(a, b);
  t.hi = a < b ? b : a;
  merge_down(t, 16, true, true);
}

__device__ __forceinline__ void sort_list(TopList& t) {
#pragma unroll
  for (int run = 2; run < 32; run *= 2) {
    const bool ascending = (threadIdx.x & run) == 0;
    merge_down(t, run / 2, ascending, ascending);
  }
  merge_down(t, 16, true, false);
  merge_all(t);
}

// The smallest of t and of the list at `other`, in memory in ascending order.
template <class Load>
__device__ __forceinline__ void merge_list(TopList& t, const u64* other, Load load) {
  const int lane = threadIdx.x % 32;
  t.lo = smaller(t.lo, load(other + 63 - lane));
  t.hi = smaller(t.hi, load(other + 31 - lane));
  merge_all(t);
}

// Warp 0 gets the smallest of all `warps` lists (a power of two); shared: warps / 2 lists.
__device__ __forceinline__ void merge_warps(TopList& t, int warps, u64* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int half = warps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp >= half && warp < 2 * half) {
      u64* const mine = shared + (warp - half) * kList;
      mine[lane] = t.lo;
      mine[lane + 32] = t.hi;
    }
    __syncthreads();
    if (warp < half) {
      merge_list(t, shared + warp * kList, [](const u64* p) { return *p; });
    }
  }
}

// Every thread gets the smallest key of the block, one a thread; shared: 32 keys.
__device__ __forceinline__ u64 block_smallest(u64 key, u64* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    key = smaller(key, __shfl_xor_sync(kAllLanes, key, step));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = key;
  __syncthreads();
  key = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : ~0ull;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    key = smaller(key, __shfl_xor_sync(kAllLanes, key, step));
  }
  return key;
}
