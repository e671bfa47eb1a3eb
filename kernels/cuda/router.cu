// The router of few tokens in one launch: the norm before it, its product, which experts are chosen
// and their shares, the results of four ops. Every block normalizes the row for itself and has some
// of the experts' logits; the last one to arrive chooses. Weights are asked for before the kernels
// before this one are done.
//
// A result does not depend on how many tokens there are.
#include "cuda/arrivals.cuh"
#include "cuda/route.cuh"

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMostTokens = 16;

// Mirrored by `_arguments` in router.py. Steps are elements from row to row, of w bytes.
struct RouterArgs {
  const float *x, *norm;  // norm: weights, or null: x as it is
  float* normed;
  const char* w;
  const float* bias;  // of the logits, or null
  float* logits;
  const float* chosen_by;  // added for the choice alone, or null
  i32* ids;
  float* shares;
  i64 x_step, normed_step, w_step, logits_step, ids_step, shares_step;
  i32 k, n;
  float eps;
  Choice choice;
  Shares how;
};

__device__ u32 arrived[kMostTokens];

__device__ __forceinline__ float4 times(const float4& v, float by, const float4& w) {
  return {v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w};
}

// Eight or four weights times as many numbers of shared memory, in four sums.
template <class W, int V>
__device__ __forceinline__ void add_products(const Pack<W, V>& w, const float* x,
                                             float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < V; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    sums[0] = fmaf(element_f32(w, i), v.x, sums[0]);
    sums[1] = fmaf(element_f32(w, i + 1), v.y, sums[1]);
    sums[2] = fmaf(element_f32(w, i + 2), v.z, sums[2]);
    sums[3] = fmaf(element_f32(w, i + 3), v.w, sums[3]);
  }
}

// blockIdx.x counts experts by kWarps, blockIdx.y tokens. Rows are of whole 16 bytes, at such
// addresses. Shared memory: the row, then what `choose` takes.
template <class W>
__global__ void __launch_bounds__(kThreads) router(const __grid_constant__ RouterArgs a) {
  constexpr int V = 16 / (int)sizeof(W), KEPT = 16, KEPT_X = 3;
  extern __shared__ __align__(16) float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int expert = blockIdx.x * kWarps + warp, packs = a.k / V, quads = a.k / 4;
  const i64 token = blockIdx.y;
  const auto* const w = reinterpret_cast<const Pack<W, V>*>(a.w + min(expert, a.n - 1) * a.w_step);
  const auto* const x = reinterpret_cast<const float4*>(a.x + token * a.x_step);
  const auto* const norm = reinterpret_cast<const float4*>(a.norm);
  auto* const y = reinterpret_cast<float4*>(memory);
  auto* const normed = reinterpret_cast<float4*>(a.normed + token * a.normed_step);

  Pack<W, V> kept[KEPT];
#pragma unroll
  for (int p = 0; p < KEPT; ++p) {
    kept[p] = {};
    if (lane + 32 * p < packs) kept[p] = load_pack(w + lane + 32 * p);
  }
  float4 by[KEPT_X], v[KEPT_X];
#pragma unroll
  for (int p = 0; p < KEPT_X; ++p) {
    const int i = threadIdx.x + kThreads * p;
    by[p] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (norm && i < quads) by[p] = norm[i];
  }
  begin_dependent();
  float sum = 0.0f;
#pragma unroll
  for (int p = 0; p < KEPT_X; ++p) {
    const int i = threadIdx.x + kThreads * p;
    v[p] = i < quads ? load_fresh(x + i) : float4{};
  }
  const auto add = [&sum](const float4& f) {
    sum = fmaf(f.x, f.x, fmaf(f.y, f.y, fmaf(f.z, f.z, fmaf(f.w, f.w, sum))));
  };
  const auto put = [&](int i, const float4& f) {
    y[i] = f;
    if (norm && blockIdx.x == 0) normed[i] = f;
  };
#pragma unroll
  for (int p = 0; p < KEPT_X; ++p) add(v[p]);
  for (int i = threadIdx.x + kThreads * KEPT_X; i < quads; i += kThreads) add(load_fresh(x + i));
  float scale = 1.0f;
  if (norm) scale = 1.0f / sqrtf(block_reduce(sum, Add()) / (float)a.k + a.eps);
#pragma unroll
  for (int p = 0; p < KEPT_X; ++p) {
    const int i = threadIdx.x + kThreads * p;
    if (i < quads) put(i, times(v[p], scale, by[p]));
  }
  for (int i = threadIdx.x + kThreads * KEPT_X; i < quads; i += kThreads) {
    put(i, times(load_fresh(x + i), scale, norm ? norm[i] : float4{1.0f, 1.0f, 1.0f, 1.0f}));
  }
  __syncthreads();

  float sums[4] = {};
#pragma unroll
  for (int p = 0; p < KEPT; ++p) {
    const int i = lane + 32 * p;
    if (i < packs) add_products(kept[p], memory + i * V, sums);
  }
  for (int i = lane + 32 * KEPT; i < packs; i += 32) {
    add_products(load_pack(w + i), memory + i * V, sums);
  }
  float logit = warp_reduce((sums[0] + sums[1]) + (sums[2] + sums[3]), Add());
  float* const logits = a.logits + token * a.logits_step;
  if (lane == 0 && expert < a.n) logits[expert] = a.bias ? logit + a.bias[expert] : logit;

  if (!arrives_last(arrived + token, gridDim.x) || warp > 0) return;
  // [scores that are used up, of groups too][scores][experts]
  float* const s = memory;
  float* const kept_scores = s + a.n + 2 * a.choice.n_group;
  i32* const chosen = reinterpret_cast<i32*>(kept_scores + a.n);
  i32* const ids = a.ids + token * a.ids_step;
  scores(logits, a.n, a.choice.score, lane, s);
  for (int i = lane; i < a.n; i += 32) kept_scores[i] = s[i];
  choose(a.choice, s, a.n, a.chosen_by, lane, [&](int j, int i) { ids[j] = chosen[j] = i; });
  weigh(a.how, kept_scores, a.n, chosen, a.choice.n_used, lane, a.shares + token * a.shares_step);
}
