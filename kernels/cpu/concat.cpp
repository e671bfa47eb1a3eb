// concat: two tensors end to end along a dimension.
#include "cpu/copy.h"

namespace {
struct concat_params {
  int32_t axis;  // -1 is the innermost
};
}  // namespace

GF_KERNEL_SUPPORTS(concat) { return gf_element_bytes(op->dst.type) > 0; }

GF_KERNEL(concat) {
  const int d = -1 - gf_params<concat_params>(op).axis;
  const gf_tensor &a = op->src[0], &b = op->src[1], &y = op->dst;
  const gf_range rows = gf_split(gf_nrows(y), th);
  for (int64_t k = rows.begin; k < rows.end; ++k) {
    gf_row r = gf_row_index(y, k);
    char* const to = gf_row_ptr(y, r);
    if (d == 0) {
      gf_copy_row(a, gf_row_ptr(a, r), y, to, a.ne[0]);
      gf_copy_row(b, gf_row_ptr(b, r), y, to + a.ne[0] * y.nb[0], b.ne[0]);
      continue;
    }
    int64_t& i = d == 1 ? r.i1 : d == 2 ? r.i2 : r.i3;
    const bool first = i < a.ne[d];
    if (!first) i -= a.ne[d];
    const gf_tensor& from = first ? a : b;
    gf_copy_row(from, gf_row_ptr(from, r), y, to, y.ne[0]);
  }
}
