// route, route_weights: which experts a token goes to, and what share each of them has, by
// themselves or both at once. A warp a row.
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

static_assert(sizeof(RouteArgs) == 3 * 72 + 16, "packed without a gap by `joint` in route.py");

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

struct RouteBothArgs {
  RouteArgs route;
  gf_tensor shares;
  Shares how;
};

// Shared memory: of each warp, what `route` has, the scores once more, and the chosen.
__global__ void __launch_bounds__(32 * kWarps) route_both(const __grid_constant__ RouteBothArgs a) {
  begin_dependent();
  extern __shared__ float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 row = (i64)blockIdx.x * kWarps + warp;
  if (row >= a.route.dst.ne[1]) return;
  const Choice& c = a.route.choice;
  const int n = (int)a.route.logits.ne[0], of_choice = n + 2 * c.n_group;
  float* const s = memory + warp * (of_choice + n + c.n_used);
  float* const kept = s + of_choice;
  i32* const chosen = reinterpret_cast<i32*>(kept + n);
  i32* const out = reinterpret_cast<i32*>(a.route.dst.row(row));
  scores(reinterpret_cast<const float*>(a.route.logits.row(row)), n, c.score, lane, s);
  for (int i = lane; i < n; i += 32) kept[i] = s[i];
  choose(c, s, n, reinterpret_cast<const float*>(a.route.bias.data), lane,
         [&](int j, int i) { out[j] = chosen[j] = i; });
  weigh(a.how, kept, n, chosen, c.n_used, lane, reinterpret_cast<float*>(a.shares.row(row)));
}
