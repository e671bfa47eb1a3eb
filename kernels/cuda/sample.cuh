// What the sampling kernels share: arguments, a row of them, what its settings ask for, and the
// draw from a small top_k.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/sample_math.cuh"
#include "cuda/top_list.cuh"

constexpr int kScan = 1024;  // logits of a run

struct SampleArgs {
  gf_tensor dst, logits, settings, rng, history;
  u64* runs;    // [row][block]: kScan keys a run, as many as are needed from the start
  u64* sorted;  // [row]: n keys
  float* sums;  // [row]: n
  i32* counts;  // [row]: 2 of keys that matter, and of blocks that are done with theirs
  i64 blocks;   // runs of a row
};

// One row.
struct SampleRow {
  const float* logits;
  const i32* history;
  const u64* rng;
  const float* settings;
  i32* out;
  u64 *runs, *sorted;
  float* sums;
  i32* counts;
  i64 n, h, blocks;
};

__device__ __forceinline__ SampleRow row_of(const SampleArgs& a, i64 row) {
  const i64 n = a.logits.ne[0];
  return {reinterpret_cast<const float*>(a.logits.data + row * a.logits.nb[1]),
          reinterpret_cast<const i32*>(a.history.data + row * a.history.nb[1]),
          reinterpret_cast<const u64*>(a.rng.data + row * a.rng.nb[1]),
          reinterpret_cast<const float*>(a.settings.data + row * a.settings.nb[1]),
          reinterpret_cast<i32*>(a.dst.data + row * a.dst.nb[0]),
          a.runs + row * a.blocks * kScan,
          a.sorted + row * n,
          a.sums + row * n,
          a.counts + row * 2,
          n,
          a.history.ne[0],
          a.blocks};
}

__device__ __forceinline__ Settings read_settings(const float* p) {
  return {__ldcg(p), __ldcg(p + 1), __ldcg(p + 2), __ldcg(p + 3), __ldcg(p + 4), __ldcg(p + 5)};
}

// What the settings ask of the scan.
enum { GREEDY, SMALL, LARGE };
__device__ __forceinline__ int kind_of(const Settings& set) {
  if (set.temp <= 0.0f) return GREEDY;
  const i64 k = whole(set.top_k);
  return k > 0 && k <= kList ? SMALL : LARGE;
}

// A broken model's NaN is never chosen before a number.
__device__ __forceinline__ float sound(float x) { return x == x ? x : -infinity(); }

// Step 1: how many of the last tokens are penalized, from `first` on; none when the penalty is 1.
__device__ __forceinline__ i64 first_penalized(const Settings& set, i64 h) {
  const i64 last = whole(set.repeat_last_n);
  if (set.repeat_penalty == 1.0f || last == 0) return h;
  return last < 0 || last > h ? 0 : h - last;
}

__device__ __forceinline__ float penalized(const Settings& set, float l) {
  return l > 0.0f ? gf_div(l, set.repeat_penalty) : gf_mul(l, set.repeat_penalty);
}

// -- a small top_k: one warp ----------------------------------------------------------------------

struct Sums {
  float lo, hi, total;
};

// Sums of 64 weights, rounded in order.
__device__ __forceinline__ Sums sum_in_order(float lo, float hi) {
  const int lane = threadIdx.x % 32;
  Sums s = {};
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    s.total = gf_add(s.total, __shfl_sync(kAllLanes, i < 32 ? lo : hi, i % 32));
    if (lane == i % 32) (i < 32 ? s.lo : s.hi) = s.total;
  }
  return s;
}

// The first element below `count` whose flag is set, or the last.
__device__ __forceinline__ int first_of(bool lo, bool hi, int count) {
  const int lane = threadIdx.x % 32;
  const u32 a = __ballot_sync(kAllLanes, lo && lane < count);
  const u32 b = __ballot_sync(kAllLanes, hi && lane + 32 < count);
  return a ? __ffs(a) - 1 : b ? __ffs(b) + 31 : count - 1;
}

// Steps 4 to 6 over the first `count` keys of a list.
__device__ __forceinline__ i64 draw_small(const TopList& t, int count, const Settings& set,
                                          float u) {
  const int lane = threadIdx.x % 32;
  const float lo = value_of(t.lo), hi = value_of(t.hi), top = __shfl_sync(kAllLanes, lo, 0);
  const float below_lo = gf_add(lo, -top), below_hi = gf_add(hi, -top);
  const float w_lo = exp32(below_lo), w_hi = exp32(below_hi);
  if (set.top_p < 1.0f) {
    const Sums s = sum_in_order(lane < count ? w_lo : 0.0f, lane + 32 < count ? w_hi : 0.0f);
    const float least = gf_mul(set.top_p, s.total);
    count = 1 + first_of(s.lo >= least, s.hi >= least, count);
  }
  if (set.min_p > 0.0f) {
    const u32 a = __ballot_sync(kAllLanes, lane < count && w_lo >= set.min_p);
    const u32 b = __ballot_sync(kAllLanes, lane + 32 < count && w_hi >= set.min_p);
    count = max(__popc(a) + __popc(b), 1);
  }
  const float t_lo = exp32(gf_div(below_lo, set.temp)), t_hi = exp32(gf_div(below_hi, set.temp));
  const Sums s = sum_in_order(lane < count ? t_lo : 0.0f, lane + 32 < count ? t_hi : 0.0f);
  const float drawn = gf_mul(u, s.total);
  const int chosen = first_of(s.lo > drawn, s.hi > drawn, count);
  return index_of(__shfl_sync(kAllLanes, chosen < 32 ? t.lo : t.hi, chosen % 32));
}
