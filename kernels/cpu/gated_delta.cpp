// gated_delta: the gated delta rule, token by token over the state of each value head.
//
// A state [dk][dv] is taken by blocks of columns, which need nothing of each other and stay in the
// first-level cache from token to token. A token reads its block twice: what the key recalls, then
// the correction and what the query reads. The order of sums does not depend on how many tokens a
// run has, so prompts and single tokens give the same bits.
#include <math.h>

#include <type_traits>

#include "cpu/recurrent.h"

namespace {

struct gated_delta_params {
  int32_t n_head_k, dk, tiled;
  float eps;
};

int64_t scratch_floats(const gf_op* op) {
  return 2 * vf_padded(gf_params<gated_delta_params>(op).dk) + 16;
}

void unit(const float* x, int64_t n, float eps, float scale, float* y) {
  const vf f = vf_set(scale / sqrtf(vf_row_sum_squares(x, n) + eps));
  for (int64_t i = 0; i < n; i += VL) vf_store_to(y + i, vf_load_to(x + i, n - i) * f, n - i);
}

// One token over NV vectors (or, of one, its first n lanes) of the columns at `state`.
template <int NV>
void step(float* state, int64_t dk, int64_t dv, int64_t n, const float* q, const float* k,
          const float* v, float decay, float share, float* out) {
  const vf kept = vf_set(decay);
  vf recalled[NV], read[NV], delta[NV];
  for (int j = 0; j < NV; ++j) recalled[j] = read[j] = vf_zero();
  for (int64_t i = 0; i < dk; ++i) {
    const vf key = vf_set(k[i]);
    for (int j = 0; j < NV; ++j) {
      recalled[j] = vf_fma(key, vf_load_to(state + i * dv + j * VL, n - j * VL), recalled[j]);
    }
  }
  for (int j = 0; j < NV; ++j) {
    delta[j] = (vf_load_to(v + j * VL, n - j * VL) - kept * recalled[j]) * vf_set(share);
  }
  for (int64_t i = 0; i < dk; ++i) {
    const vf key = vf_set(k[i]), query = vf_set(q[i]);
    for (int j = 0; j < NV; ++j) {
      float* const at = state + i * dv + j * VL;
      const vf s = vf_fma(key, delta[j], kept * vf_load_to(at, n - j * VL));
      vf_store_to(at, s, n - j * VL);
      read[j] = vf_fma(query, s, read[j]);
    }
  }
  for (int j = 0; j < NV; ++j) vf_store_to(out + j * VL, read[j], n - j * VL);
}

}  // namespace

GF_KERNEL_SCRATCH(gated_delta) { return scratch_floats(op) * 4 * n_threads; }

GF_KERNEL(gated_delta) {
  const auto p = gf_params<gated_delta_params>(op);
  const gf_tensor &qkv = op->src[0], &alpha = op->src[1], &beta = op->src[2], &dst = op->dst;
  const auto* const dt_bias = static_cast<const float*>(op->src[3].data);
  const auto* const rate = static_cast<const float*>(op->src[4].data);
  const int64_t dk = p.dk, dv = dst.ne[0], n_head = dst.ne[1];
  const int64_t group = n_head / p.n_head_k;
  const int64_t n_blocks = (dv + GF_STATE_COLUMNS - 1) / GF_STATE_COLUMNS;
  auto* const q = reinterpret_cast<float*>(th->scratch) + th->ith * scratch_floats(op);
  float* const k = q + vf_padded(dk);
  const auto work = [&](const gf_sequence& s, int64_t item) {
    const int64_t h = item / n_blocks, first = item % n_blocks * GF_STATE_COLUMNS;
    const int64_t last = first + GF_STATE_COLUMNS < dv ? first + GF_STATE_COLUMNS : dv;
    const int64_t key_head = p.tiled ? h % p.n_head_k : h / group;
    auto* const state = const_cast<float*>(gf_float_row(op->src[5], s.slot)) + h * dk * dv;
    if (!s.goes_on) {
      for (int64_t i = 0; i < dk; ++i) std::memset(state + i * dv + first, 0, (last - first) * 4);
    }
    for (int64_t t = s.begin; t < s.end; ++t) {
      const float* const row = gf_float_row(qkv, t);
      unit(row + key_head * dk, dk, p.eps, 1.0f / sqrtf(static_cast<float>(dk)), q);
      unit(row + (p.n_head_k + key_head) * dk, dk, p.eps, 1.0f, k);
      const float* const v = row + 2 * p.n_head_k * dk + h * dv;
      const float decay = expf(rate[h] * gf_softplus(gf_float_row(alpha, t)[h] + dt_bias[h]));
      const float share = 1.0f / (1.0f + expf(-gf_float_row(beta, t)[h]));
      auto* const out = reinterpret_cast<float*>(gf_row_ptr(dst, {h, t, 0}));
      gf_for_columns(first, last, [&](int64_t c, int64_t n, auto vectors) {
        step<decltype(vectors)::value>(state + c, dk, dv, n, q, k, v + c, decay, share, out + c);
      });
    }
  };
  gf_for_sequences(op->src[6], op->src[7], dst.ne[2], op->src[5].ne[1], dst, n_head * dv * 4,
                   dst.nb[2], n_head * n_blocks, th, work);
}
