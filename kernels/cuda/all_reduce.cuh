// What kernels of exchanges share: one device's side of one that adds parts, and its number.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/four.cuh"
#include "cuda/sent_words.cuh"

constexpr int kDevices = 8;     // DEVICES of all_reduce.py
constexpr int kCounters = 256;  // COUNTERS: blocks, at most

// residual: added in the end, or null.
struct ReduceArgs {
  char* channels[kDevices];
  const char* part;
  const char* residual;
  char* to;
  u32* given_up;
  i64 timeout_ns, nbytes;
  i64 room;    // where rooms begin in a channel
  i64 stride;  // from one device's to the next one's
  u32 code;
  i32 rank, n;
  i32 early;  // whether the next kernel's blocks may come while this one's wait
};

// The number of this exchange. Every block has a counter of its own: a common one could only be
// changed by the last block to end, which all would have to tell that they did. Counters of blocks
// that this exchange has not are set too, so that all stay equal.
__device__ __forceinline__ u32* counters(const ReduceArgs& a) {
  return reinterpret_cast<u32*>(a.channels[a.rank]);
}
__device__ __forceinline__ u32 next_exchange(const ReduceArgs& a) {
  return load_fresh(counters(a) + blockIdx.x) + 1;
}
__device__ __forceinline__ void end_exchange(const ReduceArgs& a, u32 e) {
  __syncthreads();
  const int i = blockIdx.x + threadIdx.x * gridDim.x;
  if (i < kCounters) counters(a)[i] = e;
}

__device__ __forceinline__ float4 floats(uint4 w) {
  return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                     __uint_as_float(w.w));
}
