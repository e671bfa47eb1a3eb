// moe_sum: what a token's experts gave, added up by their shares.
#include "cpu/rows.h"
#include "cpu/simd.h"

GF_KERNEL(moe_sum) {
  const gf_tensor &x = op->src[0], &w = op->src[1], &y = op->dst;
  const int64_t n = y.ne[0], used = x.ne[1];
  gf_for_runs(y, th, [&](gf_row r, int64_t i0, int64_t count) {
    const auto* const share = reinterpret_cast<const float*>(gf_row_ptr(w, {r.i1, 0, 0}));
    auto* const out = reinterpret_cast<float*>(gf_row_ptr(y, r)) + i0;
    for (int64_t i = 0; i < count; i += VL) {
      vf sum = vf_zero();
      for (int64_t j = 0; j < used; ++j) {
        const auto* const from = reinterpret_cast<const float*>(gf_row_ptr(x, {j, r.i1, 0}));
        sum = vf_fma(vf_set(share[j]), vf_load_to(from + i0 + i, n - i0 - i), sum);
      }
      vf_store_to(out + i, sum, count - i);
    }
  });
}
