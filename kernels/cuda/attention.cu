// attention for every head size, type and layout, in float: online softmax (Milakov and Gimelshein
// 2018), a block a (head, token), or a split of its keys where there are few. Its warps take every
// eighth key, and their parts are joined in a fixed order.
#include "cuda/attention.cuh"
#include "cuda/dequant.cuh"

constexpr int kWarps = 8;
constexpr int kAlone = 2, kLeast = 1;  // of splits_of

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
  const Splits splits = splits_of<kAlone, kLeast>(a, seen);
  if ((int)blockIdx.z >= splits.n) return;

  const float* const q_row = reinterpret_cast<const float*>(a.q.row(head, token, 0));
  float q[N];
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] = lane + 32 * i < hd ? q_row[lane + 32 * i] : 0.0f;
  float* const out = reinterpret_cast<float*>(a.dst.row(head, token, 0));
  const int slot = (int)(token * gridDim.x) + head;
  const bool whole = gridDim.z == 1 || splits.n == 1;              // the block has all splits
  constexpr int OWN = (32 * N + 32 * kWarps - 1) / (32 * kWarps);  // dims that a thread joins
  Fold folds[OWN];

  for (int split = blockIdx.z; split < splits.n; split += gridDim.z) {
    const int begin = splits.begin(split), split_end = splits.end(split, seen);
    float top = -infinity(), total = 0.0f, sum[N] = {};
    int next = begin < split_end ? page_at(a, me.seq, begin / kPage) : -1;
    for (int j0 = begin; j0 < split_end; j0 += kPage) {
      const int page = next, end = min(j0 + kPage, split_end);
      if (end < split_end) next = page_at<true>(a, me.seq, end / kPage);
      if (page < 0) continue;
      const i64 to_row = (i64)page * kPage - j0;
      // Which warp takes a key depends on nothing but the key.
      const int first = max(j0, (seen.first - warp + kWarps - 1) / kWarps * kWarps);
      for (int j = first + warp; j < end; j += kWarps) {
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
    __syncthreads();  // the split before has been joined
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
      if (tops[w] != -infinity()) total = fmaf(totals[w], exp2f(tops[w] - top), total);
    }
    float* const part = part_of(a, slot, split, 0, 1, hd_v);
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int d = 32 * kWarps * i + threadIdx.x;
      if (d >= hd_v) break;
      float y = 0.0f;
      for (int w = 0; w < kWarps; ++w) {
        if (tops[w] != -infinity()) y = fmaf(parts[w][d], exp2f(tops[w] - top), y);
      }
      if (whole) {
        folds[i].add(top, y, total);
      } else {
        part[d] = y;
      }
    }
    if (!whole && threadIdx.x == 0) {
      part[hd_v] = top;
      part[hd_v + 1] = total;
    }
  }
  if (whole) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int d = 32 * kWarps * i + threadIdx.x;
      if (d < hd_v) out[d] = folds[i].value(a, head);
    }
    return;
  }
  if (!arrives_last(tickets + slot, splits.n)) return;
  join(
      a, slot, splits.n, 1, 1, hd_v, [&](int) { return head; },
      [&](int, int d, float y) { out[d] = y; });
}
