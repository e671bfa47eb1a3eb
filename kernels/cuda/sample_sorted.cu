// sample of many rows whose settings want more than the largest logits: a block a row sorts the
// candidates that can matter. sample_many.cu does the other rows.
#include "cuda/sample_draw.cuh"

struct SortedArgs {
  SampleArgs all;
  float* room;  // [block]: n values, n indices, and n more or n sums
};

// Indices of values in order.
struct Indices {
  const float* values;
  const i32* order;
  __device__ float value(i64 i) const { return values[order[i]]; }
  __device__ i64 index(i64 i) const { return order[i]; }
};

// order: the indices of the values not further than `far` below the first, ascending. Returns their
// number.
__device__ i64 keep_near(const float* values, i64 n, u64 first, float far, i32* order,
                         int (&counts)[2][kThreads / 32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float top = value_of(first);
  i64 kept = 0;
  float next = threadIdx.x < n ? values[threadIdx.x] : 0.0f;
  for (i64 base = 0, turn = 0; base < n; base += kThreads, turn ^= 1) {
    const i64 i = base + threadIdx.x;
    const float x = next;
    if (i + kThreads < n) next = values[i + kThreads];
    const bool near = i < n && (i == index_of(first) || (x == x && !(gf_add(x, -top) < -far)));
    const u32 votes = __ballot_sync(kAllLanes, near);
    if (lane == 0) counts[turn][warp] = __popc(votes);
    __syncthreads();
    const int mine = counts[turn][lane];
    const int before = __reduce_add_sync(kAllLanes, lane < warp ? mine : 0);
    if (near) order[kept + before + __popc(votes & ((1u << lane) - 1))] = (i32)i;
    kept += __reduce_add_sync(kAllLanes, mine);
  }
  __syncthreads();
  return kept;
}

__global__ void __launch_bounds__(kThreads, 1)
    sample_sorted(const __grid_constant__ SortedArgs args) {
  __shared__ union {
    SortShared sort;
    DrawShared draw;
    int counts[2][kThreads / 32];
    u64 keys[kMaxSelect];
  } s;
  launch_dependents();
  wait_for_previous();
  const i64 n = args.all.logits.ne[0];
  float* const values = args.room + blockIdx.x * 3 * n;
  i32* const order = reinterpret_cast<i32*>(values + n);
  for (i64 row = blockIdx.x; row < args.all.logits.ne[1]; row += gridDim.x) {
    const SampleRow a = row_of(args.all, row);
    const Settings set = read_settings(a.settings);
    if (kind_of(set) != LARGE) continue;
    // Step 1.
#pragma unroll 4
    for (i64 i = threadIdx.x; i < n; i += kThreads) values[i] = sound(__ldcg(a.logits + i));
    __syncthreads();
    for (i64 i = first_penalized(set, a.h) + threadIdx.x; i < a.h; i += kThreads) {
      const i32 t = __ldcg(a.history + i);
      if (t >= 0 && t < n) values[t] = penalized(set, __ldcg(a.logits + t));
    }
    __syncthreads();
    u64 first = ~0ull;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < n; i += kThreads) first = smaller(first, full_key(values[i], i));
    first = block_smallest(first, s.keys);
    __syncthreads();
    const i64 kept = keep_near(values, n, first, reach(set), order, s.counts);
    if (kept <= kMaxSelect) {
      const bool mine = threadIdx.x < kept;
      const i32 i = mine ? order[threadIdx.x] : 0;
      if (mine) s.keys[threadIdx.x] = full_key(values[i], i);
      sort_keys(s.keys, (int)kept);
      if (mine) order[threadIdx.x] = (i32)index_of(s.keys[threadIdx.x]);
    } else {
      sort_indices(values, kept, order, order + n, s.sort);
    }
    __syncthreads();
    const float u = uniform(__ldcg(a.rng), __ldcg(a.rng + 1));
    const i64 chosen =
        draw_large(Indices{values, order}, kept, set, value_of(first), u, values + 2 * n, s.draw);
    if (threadIdx.x == 0) *a.out = (i32)chosen;
    __syncthreads();
  }
}
