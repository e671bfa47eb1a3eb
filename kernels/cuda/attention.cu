// attention for every head size, type and layout, in float: online softmax (Milakov and Gimelshein
// 2018), a block a (head, token, split), its warps take every eighth key, and their parts are
// joined in a fixed order.
#include "cuda/attention.cuh"
#include "cuda/dequant.cuh"

constexpr int kWarps = 8;

// Element d of a dense row. Lanes of a warp read neighbours.
template <class T>
__device__ __forceinline__ float at(const char* row, int d) {
  return to_f32(reinterpret_cast<const T*>(row)[d]);
}
template <>
__device__ __forceinline__ float at<block_q8_0>(const char* row, int d) {
  const block_q8_0* const b = reinterpret_cast<const block_q8_0*>(row) + d / 32;
  return gf_f16_to_f32(b->d) * (float)b->qs[d % 32];
}

// N: elements of a head a lane holds, at least ceil(max(hd, hd_v) / 32).
template <class K, class V, int N>
__global__ void __launch_bounds__(32 * kWarps) attention(const __grid_constant__ AttentionArgs a) {
  __shared__ float tops[kWarps], totals[kWarps], parts[kWarps][32 * N];
  launch_dependents();
  wait_for_previous();
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 token = blockIdx.y;
  const int hd = (int)a.q.ne[0], hd_v = (int)a.v.ne[0];
  const int kv_head = a.group.div(head);
  const float slope2 = alibi_slope(head, (int)a.q.ne[1], a.max_bias) * kLog2E;
  const Token me = token_at(a, token);
  const Span seen = visible_to(a, me.pos);
  const Share keys = share_of(a, seen, blockIdx.z);
  if ((int)blockIdx.z >= keys.n_active) return;

  const float* const q_row = reinterpret_cast<const float*>(a.q.row(head, token, 0));
  float q[N], sum[N] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] = lane + 32 * i < hd ? q_row[lane + 32 * i] : 0.0f;
  float top = -infinity(), total = 0.0f;
  int next = keys.begin < keys.end ? page_at(a, me.seq, keys.begin / kPage) : -1;
  for (int j0 = keys.begin; j0 < keys.end; j0 += kPage) {
    const int page = next, end = min(j0 + kPage, keys.end);
    if (end < keys.end) next = page_at<true>(a, me.seq, end / kPage);
    if (page < 0) continue;
    const i64 to_row = (i64)page * kPage - j0;
    // Which warp takes a key depends on nothing but the key.
    const int begin = max(j0, (seen.first - warp + kWarps - 1) / kWarps * kWarps);
    for (int j = begin + warp; j < end; j += kWarps) {
      const char* const k = a.k.row(kv_head, to_row + j, 0);
      const char* const v = a.v.row(kv_head, to_row + j, 0);
      float s = 0.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (lane + 32 * i < hd) s = fmaf(q[i], at<K>(k, lane + 32 * i), s);
      }
      s = score_log2(a, warp_reduce(s, Add()), slope2, me.pos - j);
      const float new_top = fmaxf(top, s);
      const float keep = exp2f(top - new_top), p = exp2f(s - new_top);
      top = new_top;
      total = fmaf(total, keep, p);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (lane + 32 * i < hd_v) sum[i] = fmaf(p, at<V>(v, lane + 32 * i), sum[i] * keep);
      }
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
  total = 0.0f;
  for (int w = 0; w < kWarps; ++w) {
    total += tops[w] == -infinity() ? 0.0f : totals[w] * exp2f(tops[w] - top);
  }
  float* const out = reinterpret_cast<float*>(a.dst.row(head, token, 0));
  const int slot = (int)(token * gridDim.x) + head;
  float* const part = part_of(a, slot, blockIdx.z, 0, 1, hd_v);
  for (int d = threadIdx.x; d < hd_v; d += 32 * kWarps) {
    float y = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      if (tops[w] != -infinity()) y += parts[w][d] * exp2f(tops[w] - top);
    }
    if (keys.n_active == 1) {
      out[d] = total > 0.0f ? y / total : 0.0f;
    } else {
      part[d] = y;
    }
  }
  if (keys.n_active == 1) return;
  if (threadIdx.x == 0) {
    part[hd_v] = top;
    part[hd_v + 1] = total;
  }
  if (!arrives_last(tickets + slot, keys.n_active)) return;
  join(a, slot, keys.n_active, 1, 1, hd_v, [&](int, int d, float y) { out[d] = y; });
}
