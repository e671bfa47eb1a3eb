// soft_max over rows of s = scale x + slope(head) mask. A row of -inf alone gives zeros.
#include "cpu/alibi.h"
#include "cpu/elementwise.h"

namespace {

struct soft_max_params {
  float scale, max_bias;
};

void soft_max_row(float* y, int64_t n) {
  const float top = vf_row_max(y, n);
  // In a row of -inf alone nothing is taken off and the sum is 0; a NaN makes the sum one.
  const vf max = vf_set(top == -__builtin_huge_valf() ? 0.0f : top);
  gf_map_run(y, y, n, [max](vf v) { return vf_exp(v - max); });
  const float sum = vf_row_sum(y, n);
  const vf inverse = vf_set(sum == 0.0f ? 0.0f : 1.0f / sum);
  gf_map_run(y, y, n, [inverse](vf v) { return v * inverse; });
}

}  // namespace

GF_KERNEL(soft_max) {
  const auto p = gf_params<soft_max_params>(op);
  const gf_tensor& mask = op->src[1];
  const bool masked = op->n_src > 1 && mask.data != nullptr;
  const int64_t n = op->dst.ne[0];
  const vf scale = vf_set(p.scale);
  const gf_range rows = gf_split(gf_nrows(op->dst), th);
  for (int64_t k = rows.begin; k < rows.end; ++k) {
    const gf_row r = gf_row_index(op->dst, k);
    const auto* const x = reinterpret_cast<const float*>(gf_row_ptr(op->src[0], r));
    auto* const y = reinterpret_cast<float*>(gf_row_ptr(op->dst, r));
    if (!masked) {
      gf_map_run(x, y, n, [scale](vf v) { return v * scale; });
    } else {
      const char* const mask_row = static_cast<const char*>(mask.data) + r.i1 * mask.nb[1];
      const vf slope = vf_set(gf_alibi_slope(r.i2, op->dst.ne[2], p.max_bias));
      for (int64_t i0 = 0; i0 < n; i0 += GF_RUN) {
        const int64_t m = n - i0 < GF_RUN ? n - i0 : GF_RUN;
        float buffer[GF_RUN];
        const float* const bias = gf_read_run(mask, mask_row, i0, m, buffer);
        for (int64_t i = 0; i < m; i += VL) {
          const vf v = vf_load_to(x + i0 + i, m - i) * scale;
          vf_store_to(y + i0 + i, vf_fma(vf_load_to(bias + i, m - i), slope, v), m - i);
        }
      }
    }
    soft_max_row(y, n);
  }
}
