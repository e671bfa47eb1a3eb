// rope: rotary position embedding. A thread computes the angle of one (token, pair) and turns that
// pair in several heads.
#include "cuda/dependent.cuh"
#include "cuda/rope.cuh"

enum { ROPE_NORM, ROPE_NEOX, ROPE_2D };

struct RopeArgs {
  gf_tensor dst, x, pos, factors;  // factors may be null
  RopeNumbers numbers;
  i32 n_dims, mode;
  i32 constant;  // whether no kernel writes the factors
};

// Threads: x over the pairs of a head (in 2d mode of both halves), then over the dimensions that
// pass through; y over heads. Block row y is the token.
__global__ void __launch_bounds__(256) rope(const __grid_constant__ RopeArgs a) {
  const i64 token = blockIdx.y, hd = a.x.ne[0];
  const int parts = a.mode == ROPE_2D ? 2 : 1;
  const int n_dims = a.n_dims / parts, pairs = n_dims / 2;
  const int width = (int)hd / parts;  // of a part
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  const i64 first_head = (i64)blockIdx.z * blockDim.y + threadIdx.y;
  const i64 head_step = (i64)gridDim.z * blockDim.y;

  if (k < parts * pairs) {
    const int part = k / pairs, i = k - part * pairs;
    const float* const factors = reinterpret_cast<const float*>(a.factors.data);
    if (!a.constant) wait_for_previous();
    const double angle =
        angle_of(a.numbers, i, factors ? load_fresh(factors + part * pairs + i) : 1.0f);
    begin_dependent();
    const i32 pos = load_fresh(
        reinterpret_cast<const i32*>(a.pos.data + part * a.pos.nb[1] + token * a.pos.nb[0]));
    float s, c;
    turn(a.numbers, pos * angle, &s, &c);
    const int at = part * width + (a.mode == ROPE_NORM ? 2 * i : i);
    const int other = at + (a.mode == ROPE_NORM ? 1 : pairs);
    for (i64 h = first_head; h < a.x.ne[1]; h += head_step) {
      const float* const x = reinterpret_cast<const float*>(a.x.row(h, token, 0));
      float* const y = reinterpret_cast<float*>(a.dst.row(h, token, 0));
      const float p = load_fresh(x + at), q = load_fresh(x + other);
      y[at] = p * c - q * s;
      y[other] = p * s + q * c;
    }
  } else {
    const int rest = width - n_dims, j = k - parts * pairs;
    if (j >= parts * rest) return;
    begin_dependent();
    const int at = j / rest * width + n_dims + j % rest;
    for (i64 h = first_head; h < a.x.ne[1]; h += head_step) {
      reinterpret_cast<float*>(a.dst.row(h, token, 0))[at] =
          load_fresh(reinterpret_cast<const float*>(a.x.row(h, token, 0)) + at);
    }
  }
}
