// What stands between the products that make queries, keys and values, and attention: biases, norms
// of heads, rotation, rows of the states written. A warp a head, a block some heads of a token.
//
// The bits are those of the ops one by one: a head's squares are added as norm.cu adds a row's,
// whatever else the block has, and every operation is rounded as there.
#include "cuda/dependent.cuh"
#include "cuda/kv_state.cuh"
#include "cuda/rope.cuh"

// Mirrored by `launch` in qkv_heads.py. Products, biases and norms: of queries, keys and values.
struct QkvHeadsArgs {
  const float* products[3];
  const float* biases[3];  // each may be null
  const float* norms[2];   // the same
  const float* factors;    // of the frequencies, or null
  const i32* pos;
  const i32* state_rows;  // rows of the states that the tokens become
  float* dst;             // the queries
  char* state[2];         // keys and values
  i64 state_step[2];      // bytes from row to row
  i64 row_step[3];        // floats from token to token
  i64 head_step[3];       // and from head to head
  RopeNumbers rope;
  float eps;
  i32 heads[3], widths[3];  // of each: values are as many pieces of a head's length as they fill
  i32 head_dim, n_dims, neox, state_type[2], n_state;
  i32 constant;  // whether no kernel writes biases, norms and factors
};

constexpr int kHeads = 4;  // of a block

// V: elements that a lane has next to each other; K: how often, at least head_dim / (32 V).
// Shared memory: sine and cosine of each pair, then the heads.
template <int V, int K>
__global__ void __launch_bounds__(32 * kHeads) qkv_heads(const __grid_constant__ QkvHeadsArgs a) {
  typedef Pack<float, V> P;
  extern __shared__ __align__(16) float2 turns[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int hd = a.head_dim, pairs = a.n_dims / 2;
  const i64 token = blockIdx.y;
  float* const values = reinterpret_cast<float*>(turns + (pairs + 1) / 2 * 2) + warp * hd;

  int kind = 0, head = blockIdx.x * kHeads + warp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (kind == i && head >= a.heads[i]) {
      head -= a.heads[i];
      kind = i + 1;
    }
  }
  const bool mine = head < a.heads[2] || kind < 2;
  const int at = head * hd, n = mine ? min(hd, a.widths[kind] - at) : 0;
  const float* const norm = kind < 2 ? a.norms[kind] : nullptr;
  const float* const bias = a.biases[kind];

  P x[K], by[K], plus[K];
  const auto each = [&](auto f) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = (lane + 32 * k) * V;
      if (i < n) f(k, i);
    }
  };
  const auto ask_weights = [&]() {
    each([&](int k, int i) {
      by[k] = norm ? load_fresh(reinterpret_cast<const P*>(norm + i)) : P{};
      plus[k] = bias ? load_fresh(reinterpret_cast<const P*>(bias + at + i)) : P{};
    });
  };
  const auto angle = [&](int i) {
    return angle_of(a.rope, i, a.factors ? load_fresh(a.factors + i) : 1.0f);
  };
  double first = 0.0;
  if (a.constant) {
    ask_weights();
    if (threadIdx.x < pairs) first = angle(threadIdx.x);
  }
  begin_dependent();
  const i32 pos = load_fresh(a.pos + token);
  const i32 row = load_fresh(a.state_rows + token);
  const float* const from = a.products[kind] + token * a.row_step[kind] + head * a.head_step[kind];
  each([&](int k, int i) { x[k] = load_fresh(reinterpret_cast<const P*>(from + i)); });
  if (!a.constant) {
    ask_weights();
    if (threadIdx.x < pairs) first = angle(threadIdx.x);
  }
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    if (i != threadIdx.x) first = angle(i);
    turn(a.rope, pos * first, &turns[i].y, &turns[i].x);
  }

  if (bias) {
    each([&](int k, int) {
#pragma unroll
      for (int v = 0; v < V; ++v) x[k].v[v] += plus[k].v[v];
    });
  }
  if (norm) {
    float squares = 0.0f;  // lane k: of packs 32 k and following, as warp k of norm.cu has them
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float sum = 0.0f;
      if ((lane + 32 * k) * V < n) {
#pragma unroll
        for (int v = 0; v < V; ++v) sum = fmaf(x[k].v[v], x[k].v[v], sum);
      }
      sum = warp_reduce(sum, Add());
      if (lane == k) squares = sum;
    }
    const float scale = 1.0f / sqrtf(warp_reduce(squares, Add()) / (float)hd + a.eps);
    each([&](int k, int) {
#pragma unroll
      for (int v = 0; v < V; ++v) x[k].v[v] = __fmul_rn(x[k].v[v], scale) * by[k].v[v];
    });
  }
  each([&](int k, int i) {
#pragma unroll
    for (int v = 0; v < V; ++v) values[i + v] = x[k].v[v];
  });
  __syncthreads();

  const int s = kind - 1, turned = kind < 2 ? pairs : 0;
  if (kind > 0 && (row < 0 || row >= a.n_state)) return;
  float* const out = a.dst + token * a.widths[0] + at;
  char* const state = kind > 0 ? a.state[s] + row * a.state_step[s] : nullptr;
  const auto put = [&](int i, float y) {
    if (kind == 0) {
      out[i] = y;
    } else {
      put_state(state, a.state_type[s], at + i, y);
    }
  };
  if (n == 0) return;
  for (int i = lane; i < turned; i += 32) {
    const int e = a.neox ? i : 2 * i, other = a.neox ? i + pairs : 2 * i + 1;
    const float p = values[e], q = values[other];
    const float2 t = turns[i];
    put(e, fmaf(p, t.x, -__fmul_rn(q, t.y)));
    put(other, fmaf(p, t.y, __fmul_rn(q, t.x)));
  }
  for (int i = 2 * turned + lane; i < n; i += 32) put(i, values[i]);
}
