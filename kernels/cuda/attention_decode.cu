// attention for few tokens ("flash decoding", Dao et al. 2023): a block a (KV head, split, tile of
// rows), where a row is a (token, head) of the KV head's group. Keys and values go from memory
// straight into the tensor cores' fragments; the cache is read once for all rows of a tile.
//
// Scores are computed transposed, [16 keys, 8 rows] = K [16, hd] Q^T, and so is the sum,
// [16 dims, 8 rows] = V^T [16, 16 keys] P^T: with rows as the narrow side few of them are wasted.
// The order of a product's inner dimension is free, so each thread takes 16 bytes of a key as what
// two products want of it, and the order of dims within the result is free for the values.
#include "cuda/attention_mma.cuh"

constexpr int kWarps = 8;
constexpr int kKeys = 16;  // of a warp at a time
constexpr int kNear = 4;   // chunks brought into the second-level cache ahead of time
static_assert(kWarps * kKeys == kChunk, "a chunk is one pass of the block");

// NT: tiles of 8 rows. HD: head size of keys and values.
template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(32 * kWarps, 1)
    attention_decode(const __grid_constant__ AttentionArgs a) {
  typedef typename CacheRow<K>::Half T;
  constexpr int ROWS = 8 * NT, PITCH = HD + 2;  // floats; the two extra spread rows over banks
  extern __shared__ float sums[];               // [kWarps][ROWS][PITCH]
  __shared__ float tops[kWarps][ROWS], totals[kWarps][ROWS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int kv_head = blockIdx.x, group = (int)a.group.divisor;
  const int row0 = blockIdx.z * ROWS;
  const int last_row = (int)a.q.ne[2] * group - 1;
  const int n_rows = min(ROWS, last_row - row0 + 1);
  const auto token_of = [&](int row) { return (int)a.group.div(row); };
  const auto head_of = [&](int row) { return kv_head * group + row - token_of(row) * group; };
  const char* const k_base = a.k.row(kv_head, 0, 0);
  const char* const v_base = a.v.row(kv_head, 0, 0);
  const auto all_keys = [&]() {
    Span all = {0x7FFFFFFF, -1};
    for (int i = token_of(row0); i <= token_of(row0 + n_rows - 1); ++i) {
      const Span s = visible_to(a, position(a, i));
      if (s.last >= s.first) all = {min(all.first, s.first), max(all.last, s.last)};
    }
    return all.last < 0 ? Span{0, -1} : all;
  };

  launch_dependents();
  // While the kernels ahead finish, the cache can come nearer. Should the positions read here be
  // old, other rows of the cache come, and nothing is lost.
  {
    const Share near = share_of(a, all_keys(), blockIdx.y);
    const int half = threadIdx.x % kChunk, end = min(near.end, near.begin + kNear * kChunk);
    for (int j = near.begin + half; j < end && (int)blockIdx.y < near.n_active; j += kChunk) {
      if (threadIdx.x < kChunk) {
        prefetch<K, HD>(k_base + j * a.k.nb[2]);
      } else {
        prefetch<V, HD>(v_base + j * a.v.nb[2]);
      }
    }
  }
  wait_for_previous();

  // Rows past the end repeat the last one; their results are not stored.
  u32 q[NT][HD / 32][4];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int row = min(row0 + 8 * n + g, last_row);
    const char* const at = a.q.row(head_of(row), token_of(row), 0);
#pragma unroll
    for (int c = 0; c < HD / 32; ++c) {
      const uint4 x = round8<T>(reinterpret_cast<const float*>(at) + 32 * c + 8 * t);
      q[n][c][0] = x.x, q[n][c][1] = x.y, q[n][c][2] = x.z, q[n][c][3] = x.w;
    }
  }
  const Span all = all_keys();
  const Share keys = share_of(a, all, blockIdx.y);
  if ((int)blockIdx.y >= keys.n_active) return;

  // Columns of the transposed tiles a thread holds: rows 2 t and 2 t + 1 of each tile.
  int pos[NT][2];
  float slope2[NT][2], top[NT][2], total[NT][2];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = min(row0 + 8 * n + 2 * t + e, last_row);
      pos[n][e] = position(a, token_of(row));
      slope2[n][e] = kLog2E * alibi_slope(head_of(row), (int)a.q.ne[1], a.max_bias);
      top[n][e] = -infinity();
      total[n][e] = 0.0f;
    }
  }

  // Keys past the last visible one repeat it with a weight of zero: memory there may hold NaN.
  uint4 k[HD / 32][2], v[HD / 64][4];
  const auto load_k = [&](int j0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const char* const row = k_base + min(j0 + g + 8 * r, all.last) * a.k.nb[2];
#pragma unroll
      for (int c = 0; c < HD / 32; ++c) k[c][r] = CacheRow<K>::read8(row, 32 * c + 8 * t);
    }
  };
  const auto load_v = [&](int j0) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const char* const row = v_base + min(j0 + 2 * t + r % 2 + r / 2 * 8, all.last) * a.v.nb[2];
#pragma unroll
      for (int c = 0; c < HD / 64; ++c) v[c][r] = CacheRow<V>::read8(row, 64 * c + 8 * g);
    }
  };

  float sum[NT][HD / 16][4] = {};
  int j0 = keys.begin + kKeys * warp;
  if (j0 < keys.end) {
    load_k(j0);
    load_v(j0);
  }
  for (; j0 < keys.end; j0 += kChunk) {
    const bool more = j0 + kChunk < keys.end;
    float s[NT][4] = {}, s_high[NT][4] = {};  // two sums: products wait for the one before
#pragma unroll
    for (int c = 0; c < HD / 32; ++c) {
      const u32 low[4] = {k[c][0].x, k[c][1].x, k[c][0].y, k[c][1].y};
      const u32 high[4] = {k[c][0].z, k[c][1].z, k[c][0].w, k[c][1].w};
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        mma<T>(s[n], low, q[n][c][0], q[n][c][1]);
        mma<T>(s_high[n], high, q[n][c][2], q[n][c][3]);
      }
    }
    if (more) load_k(j0 + kChunk);

    u32 p[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float w[4];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float x[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int distance = pos[n][e] - (j0 + g + 8 * r);
          const float dot = s[n][2 * r + e] + s_high[n][2 * r + e];
          const bool seen = distance >= 0 && (a.window == 0 || distance < a.window);
          x[r] = seen ? score_log2(a, dot, slope2[n][e], distance) : -infinity();
        }
        float new_top = fmaxf(top[n][e], fmaxf(x[0], x[1]));
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          new_top = fmaxf(new_top, __shfl_xor_sync(kAllLanes, new_top, step));
        }
        const float base = new_top == -infinity() ? 0.0f : new_top;
        const float keep = exp2_normal(top[n][e] - base);
        top[n][e] = new_top;
        w[e] = exp2_normal(x[0] - base);
        w[2 + e] = exp2_normal(x[1] - base);
        total[n][e] = fmaf(total[n][e], keep, w[e] + w[2 + e]);
#pragma unroll
        for (int m = 0; m < HD / 16; ++m) {
          sum[n][m][e] *= keep;
          sum[n][m][2 + e] *= keep;
        }
      }
      p[n][0] = transpose8x8(Float<T>::pair(w[0], w[1]));
      p[n][1] = transpose8x8(Float<T>::pair(w[2], w[3]));
    }

#pragma unroll
    for (int c = 0; c < HD / 64; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        u32 word[4];  // dims 64 c + 8 g + 2 i and the one after, of four keys
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          word[r] = i == 0 ? v[c][r].x : i == 1 ? v[c][r].y : i == 2 ? v[c][r].z : v[c][r].w;
        }
        const u32 columns[4] = {
            __byte_perm(word[0], word[1], 0x5410), __byte_perm(word[0], word[1], 0x7632),
            __byte_perm(word[2], word[3], 0x5410), __byte_perm(word[2], word[3], 0x7632)};
#pragma unroll
        for (int n = 0; n < NT; ++n) mma<T>(sum[n][4 * c + i], columns, p[n][0], p[n][1]);
      }
    }
    if (more) load_v(j0 + kChunk);
  }

  // The warps' sums side by side.
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = 8 * n + 2 * t + e;
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        total[n][e] += __shfl_xor_sync(kAllLanes, total[n][e], step);
      }
      if (g == 0) {
        tops[warp][row] = top[n][e];
        totals[warp][row] = total[n][e];
      }
      float* const to = sums + (warp * ROWS + row) * PITCH;
      if (row < n_rows) {
#pragma unroll
        for (int m = 0; m < HD / 16; ++m) {
          *reinterpret_cast<float2*>(to + m / 4 * 64 + 8 * g + m % 4 * 2) =
              make_float2(sum[n][m][e], sum[n][m][2 + e]);
        }
      }
    }
  }
  __syncthreads();

  const auto store = [&](int r, int d, float y) {
    const int row = row0 + r;
    reinterpret_cast<float*>(a.dst.row(head_of(row), token_of(row), 0))[d] = y;
  };
  const int slot = blockIdx.z * gridDim.x + kv_head;
  for (int i = threadIdx.x; i < n_rows * HD; i += 32 * kWarps) {
    const int row = i / HD, d = i % HD;
    float best = -infinity(), y = 0.0f, weights = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) best = fmaxf(best, tops[w][row]);
    const float base = best == -infinity() ? 0.0f : best;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float keep = exp2_normal(tops[w][row] - base);
      y = fmaf(keep, sums[(w * ROWS + row) * PITCH + d], y);
      weights = fmaf(keep, totals[w][row], weights);
    }
    if (keys.n_active == 1) {
      store(row, d, weights > 0.0f ? y / weights : 0.0f);
    } else {
      float* const part = part_of(a, slot, blockIdx.y, row, ROWS, HD);
      part[d] = y;
      if (d == 0) {
        part[HD] = best;
        part[HD + 1] = weights;
      }
    }
  }
  if (keys.n_active > 1) join(a, slot, keys.n_active, ROWS, n_rows, HD, store);
}
