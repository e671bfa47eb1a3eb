// Gated units: activation(gate) * up, from two operands or from the two halves of one.
#include "cpu/elementwise.h"

namespace {

template <typename F>
void glu(const gf_op* op, gf_thread* th, F&& activation) {
  const gf_tensor& y = op->dst;
  const gf_tensor& gate = op->src[0];
  const bool halves = op->n_src < 2 || op->src[1].data == nullptr;
  const gf_tensor& up = halves ? gate : op->src[1];
  const int64_t up_offset = halves ? y.ne[0] : 0;
  gf_for_runs(y, th, [&](gf_row r, int64_t i0, int64_t n) {
    float g_buffer[GF_RUN], u_buffer[GF_RUN], out[GF_RUN];
    char* const to = gf_row_ptr(y, r);
    const float* const g = gf_read_run(gate, gf_row_ptr(gate, r), i0, n, g_buffer);
    const float* const u = gf_read_run(up, gf_row_ptr(up, r), up_offset + i0, n, u_buffer);
    float* const target = gf_run_target(y, to, i0, out);
    for (int64_t i = 0; i < n; i += VL) {
      const vf v = activation(vf_load_to(g + i, n - i)) * vf_load_to(u + i, n - i);
      vf_store_to(target + i, v, n - i);
    }
    gf_write_run(y, to, i0, n, target);
  });
}

}  // namespace

GF_KERNEL(swiglu) { glu(op, th, vf_silu); }
GF_KERNEL(geglu) { glu(op, th, vf_gelu); }
GF_KERNEL(reglu) {
  glu(op, th, [](vf x) { return vf_max(vf_zero(), x); });
}
