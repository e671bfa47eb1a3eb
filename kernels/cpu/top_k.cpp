// top_k: indices of the k largest values of each row, descending, the lower index first on ties.
#include "cpu/top_k.h"

namespace {
struct top_k_params {
  int32_t k;
};
}  // namespace

GF_KERNEL(top_k) {
  const int32_t k = gf_params<top_k_params>(op).k;
  const gf_tensor& x = op->src[0];
  const gf_range rows = gf_split(gf_nrows(op->dst), th);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    gf_top_k(reinterpret_cast<const float*>(gf_row_ptr(x, r)), x.ne[0], k,
             reinterpret_cast<int32_t*>(gf_row_ptr(op->dst, r)));
  }
}
