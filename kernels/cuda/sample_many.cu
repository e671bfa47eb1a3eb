// sample of many rows whose settings want the largest logit or a small top_k; sample.cu does what
// other rows need.
//
// `sample_groups` reads the logits once, and keeps the largest of each group of 64 that a thread
// has. The 64 largest logits lie in the groups with the 64 largest of these: a logit of another
// group has at least 64 before it. `sample_many`, a block a row, draws from those groups.
#include "cuda/sample.cuh"

constexpr int kStripThreads = 128, kGroup = 64;
constexpr int kStrip = kStripThreads * kGroup;  // logits of a block; STRIP of sample.py
constexpr int kStep = 4 * kStripThreads;        // logits between a thread's fours

struct GroupArgs {
  SampleArgs all;
  u64* largest;  // [row][strip][kStripThreads]
  i64 strips;
};

// Element e of a group whose first one is `begin`.
__device__ __forceinline__ i64 element(i64 begin, int e) { return begin + e / 4 * kStep + e % 4; }

__global__ void __launch_bounds__(kStripThreads)
    sample_groups(const __grid_constant__ GroupArgs args) {
  __shared__ u32 recent[kStrip / 32];  // a bit a logit: penalized
  wait_for_previous();
  launch_dependents();
  const SampleRow a = row_of(args.all, blockIdx.y);
  const Settings set = read_settings(a.settings);
  if (kind_of(set) == LARGE) return;
  const i64 base = (i64)blockIdx.x * kStrip, begin = base + 4 * threadIdx.x;

  float4 x[kGroup / 4];
  const bool wide = (reinterpret_cast<u64>(a.logits) & 15) == 0 && base + kStrip <= a.n;
#pragma unroll
  for (int i = 0; i < kGroup / 4; ++i) {
    const i64 at = begin + i * kStep;
    if (wide) {
      x[i] = __ldcg(reinterpret_cast<const float4*>(a.logits + at));
    } else {
      x[i].x = at < a.n ? __ldcg(a.logits + at) : 0.0f;
      x[i].y = at + 1 < a.n ? __ldcg(a.logits + at + 1) : 0.0f;
      x[i].z = at + 2 < a.n ? __ldcg(a.logits + at + 2) : 0.0f;
      x[i].w = at + 3 < a.n ? __ldcg(a.logits + at + 3) : 0.0f;
    }
  }
  const i64 first = first_penalized(set, a.h);
  if (first < a.h) {
    for (int i = threadIdx.x; i < kStrip / 32; i += kStripThreads) recent[i] = 0;
    __syncthreads();
    for (i64 i = first + threadIdx.x; i < a.h; i += kStripThreads) {
      const i64 t = __ldcg(a.history + i) - base;
      if (t >= 0 && t < kStrip) atomicOr(recent + t / 32, 1u << t % 32);
    }
    __syncthreads();
  }

  u64 best = ~0ull;
#pragma unroll
  for (int i = 0; i < kGroup / 4; ++i) {
    const i64 at = begin + i * kStep;
    const int in_strip = i * kStep + 4 * threadIdx.x;
    const u32 bits = first < a.h ? recent[in_strip / 32] >> in_strip % 32 : 0;
    const float v[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float l = bits >> c & 1 ? penalized(set, v[c]) : sound(v[c]);
      if (at + c < a.n) best = smaller(best, full_key(l, at + c));
    }
  }
  args.largest[((i64)blockIdx.y * args.strips + blockIdx.x) * kStripThreads + threadIdx.x] = best;
}

// Adds a sorted list to another.
__device__ __forceinline__ void merge_sorted(TopList& t, const TopList& other) {
  const int from = 31 - threadIdx.x % 32;
  t.lo = smaller(t.lo, __shfl_sync(kAllLanes, other.hi, from));
  t.hi = smaller(t.hi, __shfl_sync(kAllLanes, other.lo, from));
  merge_all(t);
}

__global__ void __launch_bounds__(kThreads, 1) sample_many(const __grid_constant__ GroupArgs args) {
  constexpr int kWarps = kThreads / 32;
  __shared__ u64 lists[kWarps / 2 * kList];
  __shared__ i64 begins[kList];               // of the groups
  __shared__ u32 recent[kList][kGroup / 32];  // a bit an element: penalized
  launch_dependents();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SampleRow a = row_of(args.all, blockIdx.x);
  const Settings set = read_settings(a.settings);
  const int kind = kind_of(set);
  if (kind == LARGE) return;
  const i64 n_groups = args.strips * kStripThreads;
  const u64* const largest = args.largest + blockIdx.x * n_groups;

  if (kind == GREEDY) {
    u64 best = ~0ull;
    for (i64 i = threadIdx.x; i < n_groups; i += kThreads)
      best = smaller(best, __ldcg(largest + i));
    best = block_smallest(best, lists);
    if (threadIdx.x == 0) *a.out = (i32)index_of(best);
    return;
  }

  TopList top = {~0ull, ~0ull};
  for (i64 i = warp * kList; i < n_groups; i += kWarps * kList) {
    TopList next = {__ldcg(largest + i + lane), __ldcg(largest + i + lane + 32)};
    sort_list(next);
    merge_sorted(top, next);
  }
  merge_warps(top, kWarps, lists);
  if (warp == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u64 key = r == 0 ? top.lo : top.hi;
      const i64 i = index_of(key), strip = i / kStrip;
      begins[lane + 32 * r] =
          key == ~0ull ? -1 : strip * kStrip + (i - strip * kStrip) % kStep / 4 * 4;
    }
  }
  if (threadIdx.x < kList * kGroup / 32) recent[threadIdx.x / 2][threadIdx.x % 2] = 0;
  __syncthreads();
  for (i64 i = first_penalized(set, a.h) + threadIdx.x; i < a.h; i += kThreads) {
    const i64 t = __ldcg(a.history + i);
    if (t < 0 || t >= a.n) continue;
    const i64 strip = t / kStrip, in_strip = t - strip * kStrip;
    const i64 begin = strip * kStrip + in_strip % kStep / 4 * 4;
    const int e = (int)(in_strip / kStep * 4 + in_strip % 4);
    for (int g = 0; g < kList; ++g) {
      if (begins[g] == begin) atomicOr(&recent[g][e / 32], 1u << e % 32);
    }
  }
  __syncthreads();

  top = {~0ull, ~0ull};
#pragma unroll
  for (int r = 0; r < kList / kWarps; ++r) {
    const int g = warp + r * kWarps;
    u64 keys[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i64 i = element(begins[g], lane + 32 * half);
      const bool there = begins[g] >= 0 && i < a.n;
      const float l = there ? __ldcg(a.logits + i) : 0.0f;
      const bool penalize = recent[g][half] >> lane & 1;
      keys[half] = there ? full_key(penalize ? penalized(set, l) : sound(l), i) : ~0ull;
    }
    TopList next = {keys[0], keys[1]};
    sort_list(next);
    merge_sorted(top, next);
  }
  merge_warps(top, kWarps, lists);
  if (warp > 0) return;
  const i64 k = whole(set.top_k);
  const i64 n = k < a.n ? k : a.n;
  const float u = uniform(__ldcg(a.rng), __ldcg(a.rng + 1));
  const i64 chosen = draw_small(top, (int)n, set, u);
  if (lane == 0) *a.out = (i32)chosen;
}
