// cpy (to another type) and cont (same type, made dense).
#include "cpu/copy.h"

GF_KERNEL(cont) { gf_copy_tensor(op->src[0], op->dst, th); }

GF_KERNEL_SUPPORTS(cpy) { return gf_block(op->src[0].type) > 0 && gf_writable(op->dst.type); }

GF_KERNEL(cpy) {
  const gf_tensor& x = op->src[0];
  const gf_tensor& y = op->dst;
  if (x.type == y.type) return gf_copy_tensor(x, y, th);
  // Runs begin at multiples of GF_RUN, so no block of any type is split.
  static_assert(GF_RUN % 256 == 0, "runs must hold whole blocks");
  gf_for_runs(y, th, [&](gf_row r, int64_t i0, int64_t n) {
    float buffer[GF_RUN];
    gf_write_run(y, gf_row_ptr(y, r), i0, n, gf_read_run(x, gf_row_ptr(x, r), i0, n, buffer));
  });
}
