// rope: rotary position embedding. A thread computes the angle of one (token, pair) and turns that
// pair in several heads. Angles are kept in double until whole turns are taken off, so that large
// positions stay exact.
#include "cuda/common.cuh"

enum { ROPE_NORM, ROPE_NEOX, ROPE_2D };

struct RopeArgs {
  gf_tensor dst, x, pos, factors;  // factors may be null
  double log2_step;                // log2 of the ratio between the frequencies of neighbours
  double yarn_low, yarn_high;      // the pairs between which YaRN blends
  float freq_scale, ext_factor, magnitude;
  i32 n_dims, mode;
};

// Sine and cosine of pair i of part h (half of a head in 2d mode), times the magnitude.
__device__ void rotation(const RopeArgs& a, i64 token, int part, int i, int pairs, float* s,
                         float* c) {
  const double frequency = exp2(i * a.log2_step);
  const float* const factors = reinterpret_cast<const float*>(a.factors.data);
  const double extrapolated = factors ? frequency / factors[part * pairs + i] : frequency;
  double angle = extrapolated * a.freq_scale;
  if (a.ext_factor != 0.0f) {
    const double width = fmax(0.001, a.yarn_high - a.yarn_low);
    const double ramp = 1.0 - fmin(1.0, fmax(0.0, (i - a.yarn_low) / width));
    const double mix = ramp * a.ext_factor;
    angle = angle * (1.0 - mix) + extrapolated * mix;
  }
  const char* const pos = a.pos.data + part * a.pos.nb[1] + token * a.pos.nb[0];
  const double turns = *reinterpret_cast<const i32*>(pos) * angle * 0.15915494309189533577;
  sincospif((float)(2.0 * (turns - rint(turns))), s, c);
  *s *= a.magnitude;
  *c *= a.magnitude;
}

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
    float s, c;
    rotation(a, token, part, i, pairs, &s, &c);
    const int at = part * width + (a.mode == ROPE_NORM ? 2 * i : i);
    const int other = at + (a.mode == ROPE_NORM ? 1 : pairs);
    for (i64 h = first_head; h < a.x.ne[1]; h += head_step) {
      const float* const x = reinterpret_cast<const float*>(a.x.row(h, token, 0));
      float* const y = reinterpret_cast<float*>(a.dst.row(h, token, 0));
      const float p = x[at], q = x[other];
      y[at] = p * c - q * s;
      y[other] = p * s + q * c;
    }
  } else {
    const int rest = width - n_dims, j = k - parts * pairs;
    if (j >= parts * rest) return;
    const int at = j / rest * width + n_dims + j % rest;
    for (i64 h = first_head; h < a.x.ne[1]; h += head_step) {
      reinterpret_cast<float*>(a.dst.row(h, token, 0))[at] =
          reinterpret_cast<const float*>(a.x.row(h, token, 0))[at];
    }
  }
}
