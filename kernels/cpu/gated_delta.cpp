// gated_delta: the gated delta rule, token by token over the state of each value head.
//
// A state [dk][dv] is taken by blocks of columns, which need nothing of each other and stay in the
// first-level cache from token to token. A pass over a block corrects it, adds up what the token's
// query reads and what the next token's key recalls, so each token reads and writes it once. The
// order of sums does not depend on how many tokens a run has, so prompts and single tokens give the
// same bits.
#include <math.h>

#include <type_traits>

#include "cpu/recurrent.h"

namespace {

constexpr int64_t kTokens = 16;  // whose keys and queries are made ready together

struct gated_delta_params {
  int32_t n_head_k, dk, tiled;
  float eps;
};

// A token of one head. query, key: of length one, the former over sqrt(dk).
struct gd_token {
  const float* value;
  float* out;
  float decay, share;
};

// One thread's: keys and queries of kTokens, side by side.
int64_t scratch_floats(const gf_op* op) {
  return 2 * kTokens * vf_padded(gf_params<gated_delta_params>(op).dk) + 16;
}

void unit(const float* x, int64_t n, float eps, float scale, float* y) {
  const vf f = vf_set(scale / sqrtf(vf_row_sum_squares(x, n) + eps));
  for (int64_t i = 0; i < n; i += VL) vf_store_to(y + i, vf_load_to(x + i, n - i) * f, n - i);
}

// n_tok tokens over NV vectors (or, of one, its first n lanes) of the columns at `state`.
template <int NV>
void columns(float* state, int64_t dk, int64_t dv, int64_t n, const gd_token* tokens, int64_t n_tok,
             const float* queries, const float* keys, int64_t stride, int64_t at) {
  vf recalled[NV];
  for (int j = 0; j < NV; ++j) recalled[j] = vf_zero();
  for (int64_t i = 0; i < dk; ++i) {
    const vf key = vf_set(keys[i]);
    for (int j = 0; j < NV; ++j) {
      recalled[j] = vf_fma(key, vf_load_to(state + i * dv + j * VL, n - j * VL), recalled[j]);
    }
  }
  for (int64_t t = 0; t < n_tok; ++t) {
    const gd_token& token = tokens[t];
    const float* const q = queries + t * stride;
    const float* const k = keys + t * stride;
    const vf kept = vf_set(token.decay);
    vf delta[NV], read[NV];
    for (int j = 0; j < NV; ++j) {
      const vf v = vf_load_to(token.value + at + j * VL, n - j * VL);
      delta[j] = (v - kept * recalled[j]) * vf_set(token.share);
      recalled[j] = read[j] = vf_zero();
    }
    const auto pass = [&](auto last) {
      for (int64_t i = 0; i < dk; ++i) {
        const vf key = vf_set(k[i]), query = vf_set(q[i]);
        for (int j = 0; j < NV; ++j) {
          float* const cell = state + i * dv + j * VL;
          const vf s = vf_fma(key, delta[j], kept * vf_load_to(cell, n - j * VL));
          vf_store_to(cell, s, n - j * VL);
          read[j] = vf_fma(query, s, read[j]);
          if (!last) recalled[j] = vf_fma(vf_set(k[stride + i]), s, recalled[j]);
        }
      }
    };
    if (t + 1 < n_tok) {
      pass(std::false_type());
    } else {
      pass(std::true_type());
    }
    for (int j = 0; j < NV; ++j) vf_store_to(token.out + at + j * VL, read[j], n - j * VL);
  }
}

}  // namespace

GF_KERNEL_SCRATCH(gated_delta) { return scratch_floats(op) * 4 * n_threads; }

GF_KERNEL(gated_delta) {
  const auto p = gf_params<gated_delta_params>(op);
  const gf_tensor &qkv = op->src[0], &alpha = op->src[1], &beta = op->src[2], &dst = op->dst;
  const auto* const dt_bias = static_cast<const float*>(op->src[3].data);
  const auto* const rate = static_cast<const float*>(op->src[4].data);
  const int64_t dk = p.dk, dv = dst.ne[0], n_head = dst.ne[1];
  const int64_t group = n_head / p.n_head_k, stride = vf_padded(dk);
  // Single tokens are shared out finely; for more, keys are made ready once a head.
  const int64_t part = dst.ne[2] < kTokens ? 2 * GF_STATE_COLUMNS : dv;
  const int64_t n_parts = (dv + part - 1) / part;
  auto* const queries = reinterpret_cast<float*>(th->scratch) + th->ith * scratch_floats(op);
  float* const keys = queries + kTokens * stride;
  const auto work = [&](const gf_sequence& s, int64_t item) {
    const int64_t h = item / n_parts, first = item % n_parts * part;
    const int64_t last = first + part < dv ? first + part : dv;
    const int64_t key_head = p.tiled ? h % p.n_head_k : h / group;
    auto* const state = const_cast<float*>(gf_float_row(op->src[5], s.slot)) + h * dk * dv;
    if (!s.goes_on) {
      for (int64_t i = 0; i < dk; ++i) std::memset(state + i * dv + first, 0, (last - first) * 4);
    }
    for (int64_t begin = s.begin; begin < s.end; begin += kTokens) {
      const int64_t n_tok = s.end - begin < kTokens ? s.end - begin : kTokens;
      gd_token tokens[kTokens];
      for (int64_t i = 0; i < n_tok; ++i) {
        const int64_t t = begin + i;
        const float* const row = gf_float_row(qkv, t);
        unit(row + key_head * dk, dk, p.eps, 1.0f / sqrtf(static_cast<float>(dk)),
             queries + i * stride);
        unit(row + (p.n_head_k + key_head) * dk, dk, p.eps, 1.0f, keys + i * stride);
        tokens[i] = {row + 2 * p.n_head_k * dk + h * dv,
                     reinterpret_cast<float*>(gf_row_ptr(dst, {h, t, 0})),
                     expf(rate[h] * gf_softplus(gf_float_row(alpha, t)[h] + dt_bias[h])),
                     1.0f / (1.0f + expf(-gf_float_row(beta, t)[h]))};
      }
      gf_for_columns(first, last, [&](int64_t c, int64_t n, auto vectors) {
        columns<decltype(vectors)::value>(state + c, dk, dv, n, tokens, n_tok, queries, keys,
                                          stride, c);
      });
    }
  };
  gf_for_sequences(op->src[6], op->src[7], dst.ne[2], op->src[5].ne[1], dst, n_head * dv * 4,
                   dst.nb[2], n_head * n_parts, th, work);
}
