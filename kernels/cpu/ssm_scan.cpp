// ssm_scan: the selective scan of Mamba 2, token by token over the state of each head.
//
// A state [n_state][hd] is taken by blocks of columns, as in gated_delta.cpp.
#include <math.h>

#include <type_traits>

#include "cpu/recurrent.h"

namespace {

struct ssm_scan_params {
  int32_t n_group, n_state;
};

// One token over NV vectors (or, of one, its first n lanes) of the columns at `state`.
template <int NV>
void step(float* state, int64_t n_state, int64_t hd, int64_t n, const float* b, const float* c,
          const float* x, float decay, float dt, float skip, float* out) {
  const vf kept = vf_set(decay);
  vf in[NV], read[NV];
  for (int j = 0; j < NV; ++j) {
    const vf v = vf_load_to(x + j * VL, n - j * VL);
    in[j] = v * vf_set(dt);
    read[j] = vf_zero();
  }
  for (int64_t i = 0; i < n_state; ++i) {
    const vf key = vf_set(b[i]), query = vf_set(c[i]);
    for (int j = 0; j < NV; ++j) {
      float* const at = state + i * hd + j * VL;
      const vf s = vf_fma(key, in[j], kept * vf_load_to(at, n - j * VL));
      vf_store_to(at, s, n - j * VL);
      read[j] = vf_fma(query, s, read[j]);
    }
  }
  for (int j = 0; j < NV; ++j) {
    const vf v = vf_load_to(x + j * VL, n - j * VL);
    vf_store_to(out + j * VL, vf_fma(vf_set(skip), v, read[j]), n - j * VL);
  }
}

}  // namespace

GF_KERNEL(ssm_scan) {
  const auto p = gf_params<ssm_scan_params>(op);
  const gf_tensor &xbc = op->src[0], &dts = op->src[1], &dst = op->dst;
  const auto* const dt_bias = static_cast<const float*>(op->src[2].data);
  const auto* const rate = static_cast<const float*>(op->src[3].data);
  const auto* const skip = static_cast<const float*>(op->src[4].data);
  const int64_t n_state = p.n_state, hd = dst.ne[0], n_head = dst.ne[1];
  const int64_t n_blocks = (hd + GF_STATE_COLUMNS - 1) / GF_STATE_COLUMNS;
  const auto work = [&](const gf_sequence& s, int64_t item) {
    const int64_t h = item / n_blocks, first = item % n_blocks * GF_STATE_COLUMNS;
    const int64_t last = first + GF_STATE_COLUMNS < hd ? first + GF_STATE_COLUMNS : hd;
    const int64_t group = h / (n_head / p.n_group);
    auto* const state = const_cast<float*>(gf_float_row(op->src[5], s.slot)) + h * n_state * hd;
    if (!s.goes_on) {
      for (int64_t i = 0; i < n_state; ++i) {
        std::memset(state + i * hd + first, 0, (last - first) * 4);
      }
    }
    for (int64_t t = s.begin; t < s.end; ++t) {
      const float* const row = gf_float_row(xbc, t);
      const float* const b = row + n_head * hd + group * n_state;
      const float* const c = b + p.n_group * n_state;
      const float dt = gf_softplus(gf_float_row(dts, t)[h] + dt_bias[h]);
      const float decay = expf(dt * rate[h]);
      auto* const out = reinterpret_cast<float*>(gf_row_ptr(dst, {h, t, 0}));
      gf_for_columns(first, last, [&](int64_t at, int64_t n, auto vectors) {
        step<decltype(vectors)::value>(state + at, n_state, hd, n, b, c, row + h * hd + at, decay,
                                       dt, skip[h], out + at);
      });
    }
  };
  gf_for_sequences(op->src[6], op->src[7], dst.ne[2], op->src[5].ne[1], dst, n_head * hd * 4,
                   dst.nb[2], n_head * n_blocks, th, work);
}
