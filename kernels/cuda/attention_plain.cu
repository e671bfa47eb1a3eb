// attention for heads wider than the other kernels take: in float, online
// softmax, a block a (head, token) whose warps take every eighth key and are joined in a fixed
// order. A token's result depends on nothing but its own keys.
#include "cuda/dequant.cuh"

struct PlainAttentionArgs {
  gf_tensor dst, q, k, v, pos, seq, table, sinks;  // sinks may be null
  float scale, max_bias, softcap;
  i32 window, n_single;
};

constexpr int kWarps = 8, kPage = 64;

template <class T>
__device__ __forceinline__ float value_at(const char* row, int d) {
  return to_f32(reinterpret_cast<const T*>(row)[d]);
}
template <>
__device__ __forceinline__ float value_at<block_q8_0>(const char* row, int d) {
  const block_q8_0* const b = reinterpret_cast<const block_q8_0*>(row) + d / 32;
  return gf_f16_to_f32(b->d) * (float)b->qs[d % 32];
}

__device__ inline float slope_of(int h, int n_head, float max_bias) {
  if (max_bias <= 0.0f) return 0.0f;
  int p = 1;
  while (2 * p <= n_head) p *= 2;
  const float power = h < p ? (float)(h + 1) / (float)p : (float)(2 * (h - p) + 1) / (float)(2 * p);
  return exp2f(-max_bias * power);
}

// N: elements of a head that a lane holds.
template <class K, class V, int N>
__global__ void __launch_bounds__(32 * kWarps)
    attention_plain(const __grid_constant__ PlainAttentionArgs a) {
  __shared__ float tops[kWarps], totals[kWarps], parts[kWarps][32 * N];
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 token = blockIdx.y;
  const int hd = (int)a.q.ne[0], hd_v = (int)a.v.ne[0];
  const int kv_head = head / (int)(a.q.ne[1] / a.k.ne[1]);
  const float slope = slope_of(head, (int)a.q.ne[1], a.max_bias);
  const int pos = *reinterpret_cast<const i32*>(a.pos.data + token * a.pos.nb[0]);
  const int seq = *reinterpret_cast<const i32*>(a.seq.data + token * a.seq.nb[0]);
  const bool known = pos >= 0 && (u32)seq < (u32)a.table.ne[1];
  const int first = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
  const int end = known ? min(pos + 1, (int)a.table.ne[0] * kPage) : 0;
  const i32* const pages = reinterpret_cast<const i32*>(a.table.row(known ? seq : 0, 0, 0));

  const float* const q_row = reinterpret_cast<const float*>(a.q.row(head, token, 0));
  float q[N], sum[N] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] = lane + 32 * i < hd ? q_row[lane + 32 * i] * a.scale : 0.0f;
  float top = -infinity(), total = 0.0f;
  // Which warp takes a key depends on nothing but the key.
  for (int j = (first - warp + kWarps - 1) / kWarps * kWarps + warp; j < end; j += kWarps) {
    const int page = pages[j / kPage];
    if ((u32)page >= (u32)(a.k.ne[2] / kPage)) continue;
    const i64 row = (i64)page * kPage + j % kPage;
    const char* const k = a.k.row(kv_head, row, 0);
    const char* const v = a.v.row(kv_head, row, 0);
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (lane + 32 * i < hd) s = fmaf(q[i], value_at<K>(k, lane + 32 * i), s);
    }
    s = warp_reduce(s, Add());
    if (a.softcap > 0.0f) s = a.softcap * tanhf(s / a.softcap);
    s = fmaf(-slope, (float)(pos - j), s);
    const float new_top = fmaxf(top, s);
    const float keep = expf(top - new_top), p = expf(s - new_top);
    top = new_top;
    total = fmaf(total, keep, p);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (lane + 32 * i < hd_v) sum[i] = fmaf(p, value_at<V>(v, lane + 32 * i), sum[i] * keep);
    }
  }
  if (lane == 0) {
    tops[warp] = top;
    totals[warp] = total;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) parts[warp][lane + 32 * i] = sum[i];
  __syncthreads();

  // Warps that saw no key have a top of -inf and add nothing.
  top = -infinity();
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w]);
  const bool sees = top != -infinity();
  // A sink is one more score, of a key without a value.
  const float sink =
      a.sinks.data ? reinterpret_cast<const float*>(a.sinks.data)[head] : -infinity();
  top = fmaxf(top, sink);
  total = sees && sink != -infinity() ? expf(sink - top) : 0.0f;
  for (int w = 0; w < kWarps; ++w) {
    if (tops[w] != -infinity()) total += totals[w] * expf(tops[w] - top);
  }
  float* const out = reinterpret_cast<float*>(a.dst.row(head, token, 0));
  for (int d = threadIdx.x; d < hd_v; d += 32 * kWarps) {
    float y = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      if (tops[w] != -infinity()) y += parts[w][d] * expf(tops[w] - top);
    }
    out[d] = total > 0.0f ? y / total : 0.0f;
  }
}
