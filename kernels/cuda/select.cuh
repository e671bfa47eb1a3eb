// The largest of n floats, by one block of 1024 threads: the k first in order, or all in order.
// Order is descending value, then ascending index; zeros are equal, NaN comes last.
//
// A value and its index make one 64-bit key, all keys differ, and ascending keys are the order
// wanted. So the algorithms need not be stable, and nothing depends on the order of the threads.
#pragma once

#include "cuda/common.cuh"

constexpr int kThreads = 1024;
constexpr int kMaxSelect = 1024;  // most values `select_top` finds; beyond, sort everything

// Ascending as the values descend.
__device__ __forceinline__ u32 descending_key(float x) {
  if (x != x) return 0xFFFFFFFFu;
  const u32 bits = x == 0.0f ? 0u : gf_bits_of(x);
  return bits & 0x80000000u ? bits : 0x7FFFFFFFu - bits;
}

__device__ __forceinline__ u64 full_key(float x, i64 i) {
  return (u64)descending_key(x) << 32 | (u32)i;
}

__device__ __forceinline__ i64 index_of(u64 key) { return (i64)(u32)key; }

// But for the sign of zero.
__device__ __forceinline__ float value_of(u64 key) {
  const u32 k = (u32)(key >> 32);
  return gf_float_of(k & 0x80000000u ? k : 0x7FFFFFFFu - k);
}

struct SelectShared {
  u64 keys[kMaxSelect];
  int count[256];
  int warps[32];
  int found, digit, before;
};

// s.count[d] = values whose 8-bit digit at `shift` is d, among those whose higher digits are
// `prefix`.
__device__ void count_digits(const float* v, i64 n, u32 prefix, int shift, SelectShared& s) {
  if (threadIdx.x < 256) s.count[threadIdx.x] = 0;
  __syncthreads();
  for (i64 i = threadIdx.x; i < n; i += kThreads) {
    const u32 key = descending_key(v[i]);
    const bool mine = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
    if (mine) atomicAdd(&s.count[(key >> shift) & 255], 1);
  }
  __syncthreads();
}

// Sorts keys[0..n) in shared memory, which has room for the next power of two: bitonic (Batcher
// 1968).
__device__ void sort_keys(u64* keys, int n) {
  int size = 1;
  while (size < n) size *= 2;
  for (int i = n + threadIdx.x; i < size; i += kThreads) keys[i] = ~0ull;
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < size / 2; t += kThreads) {
        const int i = 2 * t - (t & (step - 1)), j = i + step;
        const u64 a = keys[i], b = keys[j];
        const bool ascending = (i & run) == 0;
        if ((a > b) == ascending) {
          keys[i] = b;
          keys[j] = a;
        }
      }
    }
  }
  __syncthreads();
}

// s.keys[0..k) = keys of the k largest of v[0..n), in order. k <= n, k <= kMaxSelect.
__device__ void select_top(const float* v, i64 n, int k, SelectShared& s) {
  // The 32-bit key of the k-th value, digit by digit.
  u32 kth = 0;
  int need = k;  // how many values with the digits found so far are among the k
  for (int shift = 24; shift >= 0; shift -= 8) {
    count_digits(v, n, kth, shift, s);
    if (threadIdx.x == 0) {
      int before = 0, d = 0;
      while (before + s.count[d] < need) before += s.count[d++];
      s.digit = d;
      s.before = before;
    }
    __syncthreads();
    kth |= (u32)s.digit << shift;
    need -= s.before;
    __syncthreads();
  }

  // Everything before the k-th value, and the first `need` of its equals.
  if (threadIdx.x == 0) s.found = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int equals = 0;
  for (i64 base = 0; base < n; base += kThreads) {
    const i64 i = base + threadIdx.x;
    const u32 key = i < n ? descending_key(v[i]) : 0xFFFFFFFFu;
    if (i < n && key < kth) s.keys[atomicAdd(&s.found, 1)] = (u64)key << 32 | (u32)i;
    const bool equal = i < n && key == kth;
    const u32 votes = __ballot_sync(kAllLanes, equal);
    if (lane == 0) s.warps[warp] = __popc(votes);
    __syncthreads();
    int rank = equals;
    for (int w = 0; w < kThreads / 32; ++w) {
      rank += w < warp ? s.warps[w] : 0;
      equals += s.warps[w];
    }
    rank += __popc(votes & ((1u << lane) - 1));
    if (equal && rank < need) s.keys[k - need + rank] = (u64)key << 32 | (u32)i;
    __syncthreads();
  }

  sort_keys(s.keys, k);
}

struct SortShared {
  int count[4][256];  // by pass and digit, then the places where the digits begin
  int ranks[kThreads / 32][256];
};

// Sorts order[0..n), ascending indices of v, by four stable passes over 8-bit digits (LSD radix
// sort). `other` holds n more indices.
__device__ void sort_indices(const float* v, i64 n, i32* order, i32* other, SortShared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i32* from = order;
  i32* to = other;
  (&s.count[0][0])[threadIdx.x] = 0;
  __syncthreads();
  for (i64 i = threadIdx.x; i < n; i += kThreads) {
    const u32 key = descending_key(v[from[i]]);
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) atomicAdd(&s.count[pass][(key >> (8 * pass)) & 255], 1);
  }
  __syncthreads();
  if (threadIdx.x < 4) {
    int before = 0;
    for (int d = 0; d < 256; ++d) {
      const int c = s.count[threadIdx.x][d];
      s.count[threadIdx.x][d] = before;
      before += c;
    }
  }
  for (int shift = 0; shift < 32; shift += 8) {
    int* const offset = s.count[shift / 8];
    // Indices come two turns ahead, and their values one.
    const auto index_at = [&](i64 i) { return i < n ? from[i] : 0; };
    i32 index = index_at(threadIdx.x), next = index_at(threadIdx.x + kThreads);
    float value = v[index];
    for (i64 base = 0; base < n; base += kThreads) {
      const i64 i = base + threadIdx.x;
      const float next_value = v[next];
      const i32 after = index_at(i + 2 * kThreads);
#pragma unroll
      for (int d = lane; d < 256; d += 32) s.ranks[warp][d] = 0;
      __syncwarp();
      const bool there = i < n;
      const u32 active = __ballot_sync(kAllLanes, there);
      const u32 digit = (descending_key(value) >> shift) & 255;
      u32 peers = 0;
      if (there) {
        peers = __match_any_sync(active, digit);
        if (lane == __ffs(peers) - 1) s.ranks[warp][digit] = __popc(peers);
      }
      __syncthreads();
      if (threadIdx.x < 256) {
        int c[kThreads / 32], at = offset[threadIdx.x];
#pragma unroll
        for (int w = 0; w < kThreads / 32; ++w) c[w] = s.ranks[w][threadIdx.x];
#pragma unroll
        for (int w = 0; w < kThreads / 32; ++w) {
          s.ranks[w][threadIdx.x] = at;
          at += c[w];
        }
        offset[threadIdx.x] = at;
      }
      __syncthreads();
      if (there) to[s.ranks[warp][digit] + __popc(peers & ((1u << lane) - 1))] = index;
      __syncwarp();
      index = next, value = next_value, next = after;
    }
    __syncthreads();  // the last indices are there
    i32* const swap = from;
    from = to;
    to = swap;
  }
}

// order[0..n) = all indices of v in order.
__device__ void sort_all(const float* v, i64 n, i32* order, i32* other, SortShared& s) {
  for (i64 i = threadIdx.x; i < n; i += kThreads) order[i] = (i32)i;
  __syncthreads();
  sort_indices(v, n, order, other, s);
}
