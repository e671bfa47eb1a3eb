// add, sub, mul, div with the second operand repeated along any dimension.
#include "cpu/elementwise.h"

namespace {

// Merges dimension d + 1 into d where a, b and the result all allow it, so that as much as possible
// is one long row. b may be dense in both dimensions or absent from both.
void collapse(gf_tensor* a, gf_tensor* b, gf_tensor* y) {
  const auto joined = [](const gf_tensor& t, int d) {
    return t.ne[d + 1] == 1 || t.nb[d + 1] == t.nb[d] * t.ne[d];
  };
  const auto merge = [](gf_tensor* t, int d) {
    t->ne[d] *= t->ne[d + 1];
    for (int i = d + 1; i + 1 < GF_MAX_DIMS; ++i) {
      t->ne[i] = t->ne[i + 1];
      t->nb[i] = t->nb[i + 1];
    }
    t->ne[GF_MAX_DIMS - 1] = 1;
  };
  for (int d = GF_MAX_DIMS - 2; d >= 0; --d) {
    const bool same = b->ne[d] == a->ne[d] && b->ne[d + 1] == a->ne[d + 1] && joined(*b, d);
    const bool single = b->ne[d] == 1 && b->ne[d + 1] == 1;
    if ((same || single) && joined(*a, d) && joined(*y, d)) {
      merge(a, d);
      merge(b, d);
      merge(y, d);
    }
  }
}

template <typename F>
void bin_bcast(const gf_op* op, gf_thread* th, F&& f) {
  gf_tensor a = op->src[0], b = op->src[1], y = op->dst;
  collapse(&a, &b, &y);
  gf_for_runs(y, th, [&](gf_row r, int64_t i0, int64_t n) {
    float a_buffer[GF_RUN], b_buffer[GF_RUN], out[GF_RUN];
    char* const to = gf_row_ptr(y, r);
    const char* const b_row = gf_row_ptr_mod(b, r);
    const float* const pa = gf_read_run(a, gf_row_ptr(a, r), i0, n, a_buffer);
    float* const target = gf_run_target(y, to, i0, out);
    if (b.ne[0] == 1) {
      const vf scalar = vf_set(static_cast<float>(gf_get(b.type, b_row)));
      gf_map_run(pa, target, n, [&](vf x) { return f(x, scalar); });
    } else {
      const float* pb = b_buffer;
      if (b.ne[0] == y.ne[0]) {
        pb = gf_read_run(b, b_row, i0, n, b_buffer);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          const char* const e = b_row + (i0 + i) % b.ne[0] * b.nb[0];
          b_buffer[i] = static_cast<float>(gf_get(b.type, e));
        }
      }
      for (int64_t i = 0; i < n; i += VL) {
        vf_store_to(target + i, f(vf_load_to(pa + i, n - i), vf_load_to(pb + i, n - i)), n - i);
      }
    }
    gf_write_run(y, to, i0, n, target);
  });
}

}  // namespace

GF_KERNEL(add) {
  bin_bcast(op, th, [](vf a, vf b) { return a + b; });
}
GF_KERNEL(sub) {
  bin_bcast(op, th, [](vf a, vf b) { return a - b; });
}
GF_KERNEL(mul) {
  bin_bcast(op, th, [](vf a, vf b) { return a * b; });
}
GF_KERNEL(div) {
  bin_bcast(op, th, [](vf a, vf b) { return a / b; });
}
