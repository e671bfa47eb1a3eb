// sample: the next token of each row of logits, the same on every backend to the bit. The order of
// every operation is defined in engine/ops/sample.py, whose step numbers this file uses.
//
// Two kernels. `sample_scan`, for every run of 1024 logits: step 1, and what `sample` needs of the
// run, which is its largest value, its 64 largest in order, or all of them in order. `sample`:
// steps 2 to 6 in one block; without a small top_k all of a row's blocks first find the rank of
// every logit that can matter, and the one that ends last goes on.
#include "cuda/sample.cuh"

constexpr int kScanThreads = kScan / 2;
static_assert(kScan == kThreads, "sample has a thread for each key of a run");

// ALL: every row has as many blocks as runs. Otherwise only rows that need all of their keys in
// order are done, by a few blocks each: sample_many.cu does the others.
template <bool ALL>
__global__ void __launch_bounds__(kScanThreads)
    sample_scan(const __grid_constant__ SampleArgs args) {
  __shared__ float part[kScan];
  __shared__ u64 keys[kScan];
  // After the wait: what comes next must not bring memory near that is written here.
  wait_for_previous();
  launch_dependents();
  const SampleRow a = row_of(args, blockIdx.y);
  const Settings set = read_settings(a.settings);
  const int kind = kind_of(set);
  if (blockIdx.x == 0 && threadIdx.x < 2) a.counts[threadIdx.x] = 0;
  if (!ALL && kind != LARGE) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = warp * 64 + lane;
  const i64 n = a.n;

  for (i64 base = (i64)blockIdx.x * kScan; base < n; base += (i64)gridDim.x * kScan) {
    // Step 1. A token met twice is penalized once, for the original logit is read.
    float x[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 i = base + at + 32 * r;
      x[r] = i < n ? sound(__ldcg(a.logits + i)) : 0.0f;
    }
    const i64 first = first_penalized(set, a.h);
    if (first < a.h) {
      part[at] = x[0];
      part[at + 32] = x[1];
      __syncthreads();
      for (i64 i = first + threadIdx.x; i < a.h; i += kScanThreads) {
        const i32 t = __ldcg(a.history + i);
        if (t < base || t >= base + kScan || t >= n) continue;
        part[t - base] = penalized(set, __ldcg(a.logits + t));
      }
      __syncthreads();
      x[0] = part[at];
      x[1] = part[at + 32];
    }

    TopList top;
    top.lo = base + at < n ? full_key(x[0], base + at) : ~0ull;
    top.hi = base + at + 32 < n ? full_key(x[1], base + at + 32) : ~0ull;
    u64* const out = a.runs + base;
    if (kind == LARGE) {
      keys[at] = top.lo;
      keys[at + 32] = top.hi;
      sort_keys(keys, kScan);
      out[threadIdx.x] = keys[threadIdx.x];
      out[threadIdx.x + kScanThreads] = keys[threadIdx.x + kScanThreads];
      __syncthreads();
    } else if (kind == SMALL) {
      static_assert(kScanThreads / 64 * kList <= kScan, "room for half of the warps' lists");
      sort_list(top);
      merge_warps(top, kScanThreads / 32, keys);
      if (warp == 0) {
        out[lane] = top.lo;
        out[lane + 32] = top.hi;
      }
    } else {
      const u64 best = block_smallest(smaller(top.lo, top.hi), keys);
      if (threadIdx.x == 0) out[0] = best;
    }
  }
}

// -- any top_k ------------------------------------------------------------------------------------

struct Shared {
  u64 keys[2][kScan];
  alignas(16) float weights[kThreads];
  float sum;
  int added;  // weights added so far, or where adding stopped
  bool done;
  int first, kept;
};

// The candidates in order.
struct Candidates {
  const u64* keys;
  i64 count;
  float top;  // the largest value

  __device__ float below(i64 i) const { return gf_add(value_of(__ldcg(keys + i)), -top); }
};

// A weight below 2^-26 of a sum changes neither it nor any later sum of falling weights (give or
// take a few units in the last place). The first weight is 1, so no sum is smaller: weights of
// values further below the largest than this never count.
constexpr float kReach = 18.5f;
constexpr float kTiny = 1.4901161193847656e-8f;  // 2^-26

// The first i whose sum of weights up to and including it satisfies enough(sum, total), or the last
// one. sums: room for one float a candidate. The sums are rounded in order, so one thread adds.
template <class Weight, class Enough>
__device__ i64 find(const Candidates& c, float* sums, Shared& s, Weight weight, Enough enough) {
  __syncthreads();
  if (threadIdx.x == 0) {
    s.sum = 0.0f;
    s.added = 0;
    s.done = false;
    s.first = 0x7FFFFFFF;
  }
  __syncthreads();
  for (i64 base = 0; base < c.count && !s.done; base += kThreads) {
    const i64 i = base + threadIdx.x;
    s.weights[threadIdx.x] = i < c.count ? weight(i) : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0) {
      float sum = s.sum;
      int k = 0;
      for (; k < kThreads; k += 16) {
        if (s.weights[k] < sum * kTiny) {
          s.done = true;
          break;
        }
        float w[16];
#pragma unroll
        for (int j = 0; j < 16; ++j) w[j] = s.weights[k + j];
#pragma unroll
        for (int j = 0; j < 16; ++j) s.weights[k + j] = sum = gf_add(sum, w[j]);
      }
      s.sum = sum;
      s.added = (int)(base + k < c.count ? base + k : c.count);
    }
    __syncthreads();
    if (i < s.added) sums[i] = s.weights[threadIdx.x];
    __syncthreads();
  }
  const float total = s.sum;
  for (i64 i = threadIdx.x; i < s.added; i += kThreads) {
    if (enough(sums[i], total)) {
      atomicMin(&s.first, (int)i);
      break;
    }
  }
  __syncthreads();
  return s.first < 0x7FFFFFFF ? s.first : c.count - 1;
}

// How far below the largest value a candidate can matter to steps 4 to 6.
__device__ float reach(const Settings& set) {
  if (set.top_p < 1.0f) return kReach;  // what is left then lies within
  const float drawn = kReach * set.temp;
  return set.min_p > 0.0f ? fminf(drawn, fmaxf(0.01f - __logf(set.min_p), 0.01f)) : drawn;
}

// Writes the keys of a run that can matter to their places among all; k: places that are wanted, 0
// for all. `best` is the smallest of all keys.
__device__ void rank_run(const SampleRow& a, i64 own, i64 k, u64 best, float far, Shared& s) {
  const int t = threadIdx.x;
  const float top = value_of(best);
  const u64 key = __ldcg(a.runs + own * kScan + t);
  const float x = value_of(key);
  // Those that matter come first; NaN, which comes last, does not.
  bool mine = key == best || (key != ~0ull && !(gf_add(x, -top) < -far) && x == x);
  __syncthreads();
  if (t == 0) s.kept = 0;
  __syncthreads();
  const u32 votes = __ballot_sync(kAllLanes, mine);
  if (t % 32 == 0 && votes != 0) atomicAdd(&s.kept, __popc(votes));
  __syncthreads();
  if (s.kept == 0) return;
  if (t == 0) atomicAdd(a.counts, s.kept);

  i64 rank = 0;
  u64 next = __ldcg(a.runs + t);
  for (i64 r = 0; r < a.blocks; ++r) {
    u64* const run = s.keys[r & 1];
    run[t] = next;
    __syncthreads();
    if (r + 1 < a.blocks) next = __ldcg(a.runs + (r + 1) * kScan + t);
    if (!mine) continue;
    int smaller_ones = 0;  // of the run
#pragma unroll
    for (int step = kScan / 2; step > 0; step /= 2) {
      smaller_ones += run[smaller_ones + step - 1] < key ? step : 0;
    }
    rank += smaller_ones + (run[smaller_ones] < key);
    if (k > 0 && rank >= k) mine = false;
  }
  if (mine) a.sorted[rank] = key;
}

// Whether this block is the last to come here; it sees what the others have written.
__device__ bool is_last(i32* count, Shared& s) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) s.done = atomicAdd(count, 1) == (int)gridDim.x - 1;
  __syncthreads();
  const bool last = s.done;
  __threadfence();
  return last;
}

__device__ i64 draw_large(const SampleRow& a, const Settings& set, float top, float u, Shared& s) {
  const i64 k = whole(set.top_k), kept = __ldcg(a.counts);
  Candidates c{a.sorted, k > 0 && k < kept ? k : kept, top};
  float* const sums = a.sums;
  const auto plain = [&c](i64 i) { return exp32(c.below(i)); };
  if (set.top_p < 1.0f) {
    c.count = 1 + find(c, sums, s, plain,
                       [&set](float sum, float total) { return sum >= gf_mul(set.top_p, total); });
  }
  if (set.min_p > 0.0f) {
    __syncthreads();
    if (threadIdx.x == 0) s.kept = 0;
    __syncthreads();
    int mine = 0;
    for (i64 i = threadIdx.x; i < c.count; i += kThreads) mine += plain(i) >= set.min_p;
    if (mine) atomicAdd(&s.kept, mine);
    __syncthreads();
    c.count = s.kept > 1 ? s.kept : 1;
  }
  const auto tempered = [&](i64 i) { return exp32(gf_div(c.below(i), set.temp)); };
  const i64 i =
      find(c, sums, s, tempered, [u](float sum, float total) { return sum > gf_mul(u, total); });
  return index_of(__ldcg(c.keys + i));
}

template <bool ALL>
__global__ void __launch_bounds__(kThreads) sample(const __grid_constant__ SampleArgs args) {
  __shared__ Shared s;
  launch_dependents();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SampleRow a = row_of(args, blockIdx.y);
  const Settings set = read_settings(a.settings);
  const float u = uniform(__ldcg(a.rng), __ldcg(a.rng + 1));
  const int kind = kind_of(set);
  if (kind != LARGE && (!ALL || blockIdx.x > 0)) return;

  if (kind == SMALL) {
    constexpr int kWarps = kThreads / 32, kAtOnce = 4;  // lists that are asked for together
    TopList top = {~0ull, ~0ull};
    for (i64 b = warp; b < a.blocks; b += kAtOnce * kWarps) {
      u64 lo[kAtOnce], hi[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool there = b + i * kWarps < a.blocks;
        const u64* const list = a.runs + (b + i * kWarps) * kScan;
        lo[i] = there ? __ldcg(list + 63 - lane) : ~0ull;  // descending
        hi[i] = there ? __ldcg(list + 31 - lane) : ~0ull;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        top.lo = smaller(top.lo, lo[i]);
        top.hi = smaller(top.hi, hi[i]);
        merge_all(top);
      }
    }
    static_assert(kWarps / 2 * kList <= 2 * kScan, "room for half of the warps' lists");
    merge_warps(top, kWarps, s.keys[0]);
    if (warp > 0) return;
    const i64 k = whole(set.top_k);
    const i64 chosen = draw_small(top, (int)(k < a.n ? k : a.n), set, u);
    if (lane == 0) *a.out = (i32)chosen;
    return;
  }

  u64 best = ~0ull;
  for (i64 b = threadIdx.x; b < a.blocks; b += kThreads) {
    best = smaller(best, __ldcg(a.runs + b * kScan));
  }
  best = block_smallest(best, s.keys[0]);
  i64 chosen = index_of(best);  // step 2
  if (kind == LARGE) {
    for (i64 own = blockIdx.x; own < a.blocks; own += gridDim.x) {
      rank_run(a, own, whole(set.top_k), best, reach(set), s);
    }
    if (!is_last(a.counts + 1, s)) return;
    chosen = draw_large(a, set, value_of(best), u, s);
  }
  if (threadIdx.x == 0) *a.out = (i32)chosen;
}
