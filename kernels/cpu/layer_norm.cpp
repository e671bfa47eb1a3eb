// layer_norm: mean 0, variance 1, then times w plus b where given. The variance is summed from the
// differences to the mean, which stays exact when the mean is large.
#include <math.h>

#include "cpu/elementwise.h"

namespace {
struct layer_norm_params {
  float eps;
};
}  // namespace

GF_KERNEL(layer_norm) {
  const auto p = gf_params<layer_norm_params>(op);
  const int64_t n = op->dst.ne[0];
  const float* const w = op->n_src > 1 ? static_cast<const float*>(op->src[1].data) : nullptr;
  const float* const b = op->n_src > 2 ? static_cast<const float*>(op->src[2].data) : nullptr;
  const gf_range rows = gf_split(gf_nrows(op->dst), th);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const auto* const x = reinterpret_cast<const float*>(gf_row_ptr(op->src[0], r));
    auto* const y = reinterpret_cast<float*>(gf_row_ptr(op->dst, r));
    const vf mean = vf_set(vf_row_sum(x, n) / static_cast<float>(n));
    gf_map_run(x, y, n, [mean](vf v) { return v - mean; });
    const float variance = vf_row_sum_squares(y, n) / static_cast<float>(n);
    const vf inverse = vf_set(1.0f / sqrtf(variance + p.eps));
    for (int64_t i = 0; i < n; i += VL) {
      vf v = vf_load_to(y + i, n - i) * inverse;
      if (w) v = v * vf_load_to(w + i, n - i);
      if (b) v = v + vf_load_to(b + i, n - i);
      vf_store_to(y + i, v, n - i);
    }
  }
}
