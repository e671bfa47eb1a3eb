// Gated units: activation(gate) * up, from two operands or from the two halves of one.
#include "cpu/elementwise.h"

namespace {

// combine(gate, up), element by element.
template <typename F>
void gated(const gf_op* op, gf_thread* th, F&& combine) {
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
      const vf v = combine(vf_load_to(g + i, n - i), vf_load_to(u + i, n - i));
      vf_store_to(target + i, v, n - i);
    }
    gf_write_run(y, to, i0, n, target);
  });
}

template <typename F>
void glu(const gf_op* op, gf_thread* th, F&& activation) {
  gated(op, th, [&](vf gate, vf up) { return activation(gate) * up; });
}

struct clamped_params {
  float alpha, limit;
};

}  // namespace

GF_KERNEL(swiglu) { glu(op, th, vf_silu); }
GF_KERNEL(geglu) { glu(op, th, vf_gelu); }
GF_KERNEL(reglu) {
  glu(op, th, [](vf x) { return vf_max(vf_zero(), x); });
}

GF_KERNEL(swiglu_clamped) {
  const auto p = gf_params<clamped_params>(op);
  const vf alpha = vf_set(p.alpha), most = vf_set(p.limit), least = vf_set(-p.limit);
  gated(op, th, [=](vf gate, vf up) {
    const vf g = vf_min(gate, most), u = vf_min(vf_max(up, least), most);
    return g * vf_sigmoid(alpha * g) * (u + vf_set(1.0f));
  });
}
