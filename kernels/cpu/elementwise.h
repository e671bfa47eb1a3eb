// Ops of one operand and one result of the same shape.
#pragma once

#include "cpu/rows.h"
#include "cpu/vmath.h"

// y[i] = f(x[i]) for n elements, f on vectors.
template <typename F>
inline void gf_map_run(const float* x, float* y, int64_t n, F&& f) {
  for (int64_t i = 0; i < n; i += VL) vf_store_to(y + i, f(vf_load_to(x + i, n - i)), n - i);
}

// dst = f(src[0]), any float types and strides.
template <typename F>
inline void gf_map(const gf_op* op, gf_thread* th, F&& f) {
  gf_tensor x = op->src[0], y = op->dst;
  if (gf_is_contiguous(x) && gf_is_contiguous(y)) {
    x = gf_flat(x);
    y = gf_flat(y);
  }
  gf_for_runs(y, th, [&](gf_row r, int64_t i0, int64_t n) {
    float in[GF_RUN], out[GF_RUN];
    char* const to = gf_row_ptr(y, r);
    float* const target = gf_run_target(y, to, i0, out);
    gf_map_run(gf_read_run(x, gf_row_ptr(x, r), i0, n, in), target, n, f);
    gf_write_run(y, to, i0, n, target);
  });
}
