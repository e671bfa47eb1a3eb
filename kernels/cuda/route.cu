// route, route_weights: which experts a token goes to, and what share each of them has. A warp a
// row; its scores lie in shared memory.
#include "cuda/dependent.cuh"

constexpr int kWarps = 4;
constexpr int kSoftmax = 0, kSigmoid = 1, kChosen = 2;  // SCORES of engine/ops/route.py

// The scores of a row of n logits in s.
__device__ __forceinline__ void scores(const float* x, int n, int score, int lane, float* s) {
  if (score != kSoftmax) {
    for (int i = lane; i < n; i += 32) {
      s[i] = score == kSigmoid ? 1.0f / (1.0f + expf(-x[i])) : x[i];
    }
  } else {
    float top = -infinity(), sum = 0.0f;
    for (int i = lane; i < n; i += 32) top = fmaxf(top, x[i]);
    top = warp_reduce(top, Max());
    for (int i = lane; i < n; i += 32) {
      s[i] = expf(x[i] - top);
      sum += s[i];
    }
    sum = warp_reduce(sum, Add());
    for (int i = lane; i < n; i += 32) s[i] /= sum;
  }
  __syncwarp();
}

// The best of s[0..n), the lower index on ties; all lanes get it.
__device__ __forceinline__ int best_of(const float* s, int n, int lane) {
  float top = -infinity();
  int at = n;
  for (int i = lane; i < n; i += 32) {
    if (s[i] > top || at == n) {
      top = s[i];
      at = i;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, top, step);
    const int where = __shfl_xor_sync(kAllLanes, at, step);
    if (where < n && (at == n || other > top || (other == top && where < at))) {
      top = other;
      at = where;
    }
  }
  return at;
}

struct RouteArgs {
  gf_tensor dst, logits, bias;
  i32 n_used, score, n_group, n_group_used;
};

// Shared memory: of each warp, the scores, those of groups, and which groups are taken.
__global__ void __launch_bounds__(32 * kWarps) route(const __grid_constant__ RouteArgs a) {
  begin_dependent();
  extern __shared__ float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 row = (i64)blockIdx.x * kWarps + warp;
  if (row >= a.dst.ne[1]) return;
  const int n = (int)a.logits.ne[0], groups = a.n_group, size = n / groups;
  float* const s = memory + warp * (n + 2 * groups);
  float* const of_group = s + n;
  float* const taken = of_group + groups;
  scores(reinterpret_cast<const float*>(a.logits.row(row)), n, a.score, lane, s);
  const float* const bias = reinterpret_cast<const float*>(a.bias.data);
  if (bias) {
    for (int i = lane; i < n; i += 32) s[i] += bias[i];
    __syncwarp();
  }
  if (groups > 1) {
    for (int g = lane; g < groups; g += 32) {
      float best = -infinity(), second = -infinity();
      for (int i = g * size; i < (g + 1) * size; ++i) {
        second = fmaxf(second, fminf(best, s[i]));
        best = fmaxf(best, s[i]);
      }
      of_group[g] = bias && size > 1 ? best + second : best;
      taken[g] = 0.0f;
    }
    __syncwarp();
    for (int j = 0; j < a.n_group_used; ++j) {
      const int g = best_of(of_group, groups, lane);
      __syncwarp();
      if (lane == 0) {
        of_group[g] = -infinity();
        taken[g] = 1.0f;
      }
      __syncwarp();
    }
    for (int i = lane; i < n; i += 32) {
      if (taken[i / size] == 0.0f) s[i] = -infinity();
    }
    __syncwarp();
  }
  i32* const out = reinterpret_cast<i32*>(a.dst.row(row));
  for (int j = 0; j < a.n_used; ++j) {
    const int at = best_of(s, n, lane);
    __syncwarp();
    if (lane == 0) {
      out[j] = at;
      s[at] = -infinity();
    }
    __syncwarp();
  }
}

struct RouteWeightsArgs {
  gf_tensor dst, logits, ids;
  i32 score, norm;
  float scale;
};

__global__ void __launch_bounds__(32 * kWarps)
    route_weights(const __grid_constant__ RouteWeightsArgs a) {
  begin_dependent();
  extern __shared__ float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 row = (i64)blockIdx.x * kWarps + warp;
  if (row >= a.dst.ne[1]) return;
  const int n = (int)a.logits.ne[0], used = (int)a.dst.ne[0];
  float* const s = memory + warp * n;
  scores(reinterpret_cast<const float*>(a.logits.row(row)), n, a.score, lane, s);
  const i32* const ids = reinterpret_cast<const i32*>(a.ids.row(row));
  float* const out = reinterpret_cast<float*>(a.dst.row(row));
  float top = -infinity(), sum = 0.0f;
  for (int j = lane; j < used; j += 32) {
    if ((u32)ids[j] < (u32)n) top = fmaxf(top, s[ids[j]]);
  }
  top = warp_reduce(top, Max());
  const auto share = [&](int j) {
    if ((u32)ids[j] >= (u32)n) return 0.0f;
    return a.score == kChosen ? expf(s[ids[j]] - top) : s[ids[j]];
  };
  for (int j = lane; j < used; j += 32) sum += share(j);
  sum = warp_reduce(sum, Add());
  const bool divides = (a.norm || a.score == kChosen) && sum != 0.0f;
  for (int j = lane; j < used; j += 32) {
    out[j] = (divides ? share(j) / sum : share(j)) * a.scale;
  }
}
