// top_k: indices of the k largest values of each row, descending, the lower index first on ties.
#include <algorithm>

#include "cpu/kernel.h"

namespace {
struct top_k_params {
  int32_t k;
};
}  // namespace

GF_KERNEL(top_k) {
  const int32_t k = gf_params<top_k_params>(op).k;
  const gf_tensor& x = op->src[0];
  const gf_range rows = gf_split(gf_nrows(op->dst), th);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const auto* const v = reinterpret_cast<const float*>(gf_row_ptr(x, row));
    auto* const top = reinterpret_cast<int32_t*>(gf_row_ptr(op->dst, row));
    const auto before = [v](int32_t a, int32_t b) {
      return v[a] > v[b] || (v[a] == v[b] && a < b);
    };
    // A heap of the k best so far, the worst of them on top, kept in the result itself.
    for (int32_t i = 0; i < k; ++i) top[i] = i;
    std::make_heap(top, top + k, before);
    for (int64_t i = k; i < x.ne[0]; ++i) {
      if (!(v[i] > v[top[0]])) continue;  // a tie loses: its index is higher
      std::pop_heap(top, top + k, before);
      top[k - 1] = static_cast<int32_t>(i);
      std::push_heap(top, top + k, before);
    }
    std::sort_heap(top, top + k, before);
  }
}
