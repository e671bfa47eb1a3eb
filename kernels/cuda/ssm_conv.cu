// ssm_conv: causal convolution of each channel over a sequence's last K tokens.
//
// A thread a channel and a row. The first row's thread also does the next K - 2 rows, which see the
// state too, and writes the state: nobody else reads it.
#include "cuda/recurrent.cuh"

struct SsmConvArgs {
  gf_tensor dst, x, w, state;
  const float* bias;  // or null
  Sequences seqs;
  i32 silu;
};

constexpr int kMost = 8;  // K

__global__ void __launch_bounds__(128) ssm_conv(const __grid_constant__ SsmConvArgs a) {
  const i64 c = (i64)blockIdx.x * 128 + threadIdx.x, n = a.dst.ne[0];
  if (c >= n) return;
  const int taps = (int)a.w.ne[0];
  const float start = a.bias ? a.bias[c] : 0.0f;
  float w[kMost], window[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    w[j] = j < taps ? reinterpret_cast<const float*>(a.w.row(c, 0, 0))[j] : 0.0f;
  }
  const auto x = [&](int i) { return reinterpret_cast<const float*>(a.x.row(i, 0, 0))[c]; };
  const auto finish = [&](int i) {
    float y = start;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j < taps) y = fmaf(w[j], window[j], y);
    }
    if (a.silu) y /= 1.0f + expf(-y);
    reinterpret_cast<float*>(a.dst.row(i, 0, 0))[c] = y;
  };
  for (int i = blockIdx.y; i < a.seqs.n_tok; i += gridDim.y) {
    if (!a.seqs.known(i)) {
      reinterpret_cast<float*>(a.dst.row(i, 0, 0))[c] = 0.0f;
      continue;
    }
    int back = 0;  // rows before this one, as far as they matter
    while (back < taps - 1 && i - back > 0 && a.seqs.slot[i - back - 1] == a.seqs.slot[i]) ++back;
    if (back == taps - 1) {
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        if (j < taps) window[j] = x(i - taps + 1 + j);
      }
      finish(i);
    }
    if (back > 0) continue;
    const int end = a.seqs.end(i);
    float* const kept = reinterpret_cast<float*>(a.state.row(a.seqs.slot[i], 0, 0)) + c;
    const bool goes_on = a.seqs.pos[i] != 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j < taps - 1) window[j] = goes_on ? kept[j * n] : 0.0f;
    }
    for (int t = i; t < end && t < i + taps - 1; ++t) {
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        if (j == taps - 1) window[j] = x(t);
      }
      finish(t);
#pragma unroll
      for (int j = 0; j + 1 < kMost; ++j) window[j] = window[j + 1];
    }
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j >= taps - 1) continue;
      const int t = end - taps + 1 + j;
      // After few rows the window has moved on by as many, and holds the state's own last ones.
      kept[j * n] = end - i >= taps - 1 ? x(t) : window[j];
    }
  }
}
