// route, route_weights: which experts a token goes to, and what share each of them has. A warp a
// row.
#include "cuda/route.cuh"

constexpr int kWarps = 4;

struct RouteArgs {
  gf_tensor dst, logits, bias;
  Choice choice;
};

// Shared memory: of each warp, the scores, those of groups, and which groups are taken.
__global__ void __launch_bounds__(32 * kWarps) route(const __grid_constant__ RouteArgs a) {
  begin_dependent();
  extern __shared__ float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 row = (i64)blockIdx.x * kWarps + warp;
  if (row >= a.dst.ne[1]) return;
  const int n = (int)a.logits.ne[0];
  float* const s = memory + warp * (n + 2 * a.choice.n_group);
  i32* const out = reinterpret_cast<i32*>(a.dst.row(row));
  scores(reinterpret_cast<const float*>(a.logits.row(row)), n, a.choice.score, lane, s);
  choose(a.choice, s, n, reinterpret_cast<const float*>(a.bias.data), lane,
         [&](int j, int i) { out[j] = i; });
}

struct RouteWeightsArgs {
  gf_tensor dst, logits, ids;
  Shares shares;
};

__global__ void __launch_bounds__(32 * kWarps)
    route_weights(const __grid_constant__ RouteWeightsArgs a) {
  begin_dependent();
  extern __shared__ float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 row = (i64)blockIdx.x * kWarps + warp;
  if (row >= a.dst.ne[1]) return;
  const int n = (int)a.logits.ne[0];
  float* const s = memory + warp * n;
  scores(reinterpret_cast<const float*>(a.logits.row(row)), n, a.shares.score, lane, s);
  weigh(a.shares, s, n, reinterpret_cast<const i32*>(a.ids.row(row)), (int)a.dst.ne[0], lane,
        reinterpret_cast<float*>(a.dst.row(row)));
}
