// ssm_conv: causal convolution of each channel over a sequence's last K tokens, then silu.
#include <math.h>

#include <type_traits>

#include "cpu/recurrent.h"

namespace {

struct ssm_conv_params {
  int32_t silu;
};

constexpr int kMost = 8;  // K

// The channels [c, c + n) of a sequence; n <= VL.
void convolve(const gf_op* op, const gf_sequence& s, int64_t c, int64_t n, bool silu) {
  const gf_tensor &x = op->src[0], &w = op->src[1], &state = op->src[2];
  const int taps = static_cast<int>(w.ne[0]);
  const int64_t width = x.ne[0];
  vf weight[kMost], window[kMost];
  for (int j = 0; j < taps; ++j) {
    float lane[VL] = {};
    for (int64_t i = 0; i < n; ++i) lane[i] = gf_float_row(w, c + i)[j];
    weight[j] = vf_load(lane);
  }
  auto* const kept = const_cast<float*>(gf_float_row(state, s.slot)) + c;
  for (int j = 0; j + 1 < taps; ++j) {
    window[j] = s.goes_on ? vf_load_to(kept + j * width, n) : vf_zero();
  }
  const bool biased = op->n_src > 5 && op->src[5].data != nullptr;
  const vf start =
      biased ? vf_load_to(static_cast<const float*>(op->src[5].data) + c, n) : vf_zero();
  for (int64_t i = s.begin; i < s.end; ++i) {
    window[taps - 1] = vf_load_to(gf_float_row(x, i) + c, n);
    vf y = start;
    for (int j = 0; j < taps; ++j) y = vf_fma(weight[j], window[j], y);
    if (silu) y = vf_silu(y);
    vf_store_to(const_cast<float*>(gf_float_row(op->dst, i)) + c, y, n);
    for (int j = 0; j + 1 < taps; ++j) window[j] = window[j + 1];
  }
  for (int j = 0; j + 1 < taps; ++j) vf_store_to(kept + j * width, window[j], n);
}

}  // namespace

GF_KERNEL(ssm_conv) {
  const bool silu = gf_params<ssm_conv_params>(op).silu != 0;
  const int64_t n = op->dst.ne[0], n_items = (n + VL - 1) / VL;
  gf_for_sequences(op->src[3], op->src[4], op->dst.ne[1], op->src[2].ne[1], op->dst,
                   n * int64_t{sizeof(float)}, op->dst.nb[1], n_items, th,
                   [&](const gf_sequence& s, int64_t item) {
                     const int64_t c = item * VL;
                     convolve(op, s, c, n - c < VL ? n - c : VL, silu);
                   });
}
