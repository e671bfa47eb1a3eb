// rms_norm and rms_norm_mul: x / sqrt(mean(x^2) + eps), then times a weight.
#include <math.h>

#include "cpu/elementwise.h"

namespace {

struct rms_norm_params {
  float eps;
};

// finish(v, i, left) turns a normalized vector into what is stored at i.
template <typename F>
void rms_norm(const gf_op* op, gf_thread* th, F&& finish) {
  const auto p = gf_params<rms_norm_params>(op);
  const int64_t n = op->dst.ne[0];
  const gf_range rows = gf_split(gf_nrows(op->dst), th);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const auto* const x = reinterpret_cast<const float*>(gf_row_ptr(op->src[0], r));
    auto* const y = reinterpret_cast<float*>(gf_row_ptr(op->dst, r));
    const float mean = vf_row_sum_squares(x, n) / static_cast<float>(n);
    const vf inverse = vf_set(1.0f / sqrtf(mean + p.eps));
    for (int64_t i = 0; i < n; i += VL) {
      vf_store_to(y + i, finish(vf_load_to(x + i, n - i) * inverse, i, n - i), n - i);
    }
  }
}

}  // namespace

GF_KERNEL(rms_norm) {
  rms_norm(op, th, [](vf v, int64_t, int64_t) { return v; });
}

GF_KERNEL(rms_norm_mul) {
  const auto* const w = static_cast<const float*>(op->src[1].data);
  rms_norm(op, th, [w](vf v, int64_t i, int64_t left) { return v * vf_load_to(w + i, left); });
}
