// repeat: a tensor tiled along its dimensions. How often follows from the shapes.
#include "cpu/copy.h"

GF_KERNEL_SUPPORTS(repeat) { return gf_element_bytes(op->dst.type) > 0; }

GF_KERNEL(repeat) {
  const gf_tensor& x = op->src[0];
  const gf_tensor& y = op->dst;
  const gf_range rows = gf_split(gf_nrows(y), th);
  for (int64_t k = rows.begin; k < rows.end; ++k) {
    const gf_row r = gf_row_index(y, k);
    const char* const from = gf_row_ptr_mod(x, r);
    char* const to = gf_row_ptr(y, r);
    for (int64_t i = 0; i < y.ne[0]; i += x.ne[0]) {
      gf_copy_row(x, from, y, to + i * y.nb[0], x.ne[0]);
    }
  }
}
