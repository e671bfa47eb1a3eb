// sample: the next token of each row of logits, the same on every backend to the bit. The order of
// every operation is defined in engine/ops/sample.py, whose step numbers this file uses.
//
// Two kernels for few rows. `sample_scan`, for every run of 1024 logits: step 1, and what `sample`
// needs of the run, which is its largest value, its 64 largest in order, or all of them in order.
// `sample`: steps 2 to 6 in one block; without a small top_k all of a row's blocks first find the
// rank of every logit that can matter, and the one that ends last goes on.
//
// Of many rows, sample_many.cu does those that are greedy or have a small top_k, and
// sample_sorted.cu the others.
#include "cuda/sample_draw.cuh"

constexpr int kScanThreads = kScan / 2;
static_assert(kScan == kThreads, "sample has a thread for each key of a run");

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
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = warp * 64 + lane;
  const i64 n = a.n;

  const i64 base = (i64)blockIdx.x * kScan;
  {
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
  DrawShared draw;
  int kept;
  bool done;
};

// Keys in order.
struct Keys {
  const u64* keys;
  __device__ float value(i64 i) const { return value_of(__ldcg(keys + i)); }
  __device__ i64 index(i64 i) const { return index_of(__ldcg(keys + i)); }
};

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

__global__ void __launch_bounds__(kThreads) sample(const __grid_constant__ SampleArgs args) {
  __shared__ Shared s;
  launch_dependents();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SampleRow a = row_of(args, blockIdx.y);
  const Settings set = read_settings(a.settings);
  const float u = uniform(__ldcg(a.rng), __ldcg(a.rng + 1));
  const int kind = kind_of(set);
  if (kind != LARGE && blockIdx.x > 0) return;

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
    rank_run(a, blockIdx.x, whole(set.top_k), best, reach(set), s);
    if (!is_last(a.counts + 1, s)) return;
    chosen = draw_large(Keys{a.sorted}, __ldcg(a.counts), set, value_of(best), u, a.sums, s.draw);
  }
  if (threadIdx.x == 0) *a.out = (i32)chosen;
}
