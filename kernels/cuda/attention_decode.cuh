// The pieces of attention_decode.cu: what a warp holds of keys and rows, and what it does with
// them.
#pragma once

#include "cuda/attention_mma.cuh"

constexpr int kWarps = 8;
constexpr int kKeys = 16;  // of a warp at a time: a group, which lies within a page
static_assert(kWarps * kKeys == kChunk, "a chunk is one pass of the block");
static_assert(kPage % kKeys == 0 && kChunk % kPage == 0, "a group has one page");

__device__ __forceinline__ int warp_index() { return threadIdx.x / 32; }

// Rows [row0, row0 + n_rows) of those that read a KV head. slot: what its splits join in.
struct Tile {
  int kv_head, row0, n_rows, slot;
};

// Tokens of one sequence, and the keys that any of them sees. lanes: that have them.
struct Run {
  u32 lanes;
  int seq;
  Span seen;
};

template <int ROWS>
struct Tops {
  float top[kWarps][ROWS], total[kWarps][ROWS];
};

// The page of the group of keys from j on, or -1 when there is nothing to see of it.
__device__ __forceinline__ int page_of_group(const AttentionArgs& a, const Run& run,
                                             const Share& keys, int j) {
  return j < keys.end && j + kKeys > run.seen.first ? page_at(a, run.seq, j / kPage) : -1;
}

// A warp's group of keys and values as the products want them.
template <class K, class V, int HD>
struct Group {
  uint4 k[HD / 32][2], v[HD / 64][4];

  static __device__ __forceinline__ const char* row(const gf_tensor& t, int kv_head, int page,
                                                    int j) {
    return t.row(kv_head, (i64)page * kPage + j % kPage, 0);
  }

  // Brings a group near.
  static __device__ __forceinline__ void ask(const AttentionArgs& a, int kv_head, int page, int j,
                                             int last) {
    const int lane = threadIdx.x % 32, mine = j + lane % kKeys;
    if (page < 0 || mine > last) return;
    if (lane < kKeys) {
      prefetch<K, HD>(row(a.k, kv_head, page, mine));
    } else {
      prefetch<V, HD>(row(a.v, kv_head, page, mine));
    }
  }

  // Keys that nobody sees repeat one that somebody does, with a weight of zero: memory there may
  // hold NaN. Of a page that is not there values are zeros, for the same reason.
  __device__ __forceinline__ void load_k(const AttentionArgs& a, int kv_head, int page, int j,
                                         Span seen) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (page < 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = max(min(j + g + 8 * r, seen.last), seen.first);
      const char* const from = row(a.k, kv_head, page, key);
#pragma unroll
      for (int c = 0; c < HD / 32; ++c) k[c][r] = CacheRow<K>::read8(from, 32 * c + 8 * t);
    }
  }
  __device__ __forceinline__ void load_v(const AttentionArgs& a, int kv_head, int page, int j,
                                         Span seen) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (page < 0) {
#pragma unroll
      for (int i = 0; i < HD / 16; ++i) v[i / 4][i % 4] = {};
      return;
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = max(min(j + 2 * t + r % 2 + r / 2 * 8, seen.last), seen.first);
      const char* const from = row(a.v, kv_head, page, key);
#pragma unroll
      for (int c = 0; c < HD / 64; ++c) v[c][r] = CacheRow<V>::read8(from, 64 * c + 8 * g);
    }
  }
  __device__ __forceinline__ void load(const AttentionArgs& a, int kv_head, int page, int j,
                                       Span seen) {
    load_k(a, kv_head, page, j, seen);
    load_v(a, kv_head, page, j, seen);
  }
};

// What a warp holds of a tile's rows. Columns of the transposed tiles that a thread holds are rows
// 2 t and 2 t + 1 of each 8.
template <class K, int HD, int NT>
struct Rows {
  typedef typename CacheRow<K>::Half T;
  static constexpr int ROWS = 8 * NT, PITCH = HD + 2;  // floats; two more spread rows over banks
  float slope2[NT][2], top[NT][2], total[NT][2], sum[NT][HD / 16][4];

  static __device__ __forceinline__ int token_of(const AttentionArgs& a, int row) {
    return a.group.div(row);
  }
  static __device__ __forceinline__ int head_of(const AttentionArgs& a, int kv_head, int row) {
    const int group = a.group.divisor;
    return kv_head * group + row - token_of(a, row) * group;
  }

  // Eight elements from d on of a query. Rows past the end repeat the last one; their results are
  // not stored.
  static __device__ __forceinline__ uint4 query(const AttentionArgs& a, const Tile& tile, int r,
                                                int d) {
    const int row = tile.row0 + min(r, tile.n_rows - 1);
    const char* const at = a.q.row(head_of(a, tile.kv_head, row), token_of(a, row), 0);
    return round8<T>(reinterpret_cast<const float*>(at) + d);
  }

  __device__ __forceinline__ void begin(const AttentionArgs& a, const Tile& tile) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = tile.row0 + min(8 * n + 2 * (int)(threadIdx.x % 4) + e, tile.n_rows - 1);
        slope2[n][e] =
            kLog2E * alibi_slope(head_of(a, tile.kv_head, row), (int)a.q.ne[1], a.max_bias);
        top[n][e] = -infinity();
        total[n][e] = 0.0f;
      }
#pragma unroll
      for (int m = 0; m < HD / 16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[n][m][i] = 0.0f;
      }
    }
  }

  // Adds a run's keys. pos: of the thread's rows, negative for those of other runs. page: of the
  // first group, which is in `at`. query(n, c): elements 32 c + 8 t and after of row 8 n + g.
  template <class V, class Query>
  __device__ __forceinline__ void attend(const AttentionArgs& a, int kv_head, const Run& run,
                                         const Share& keys, const int (&pos)[NT][2], int page,
                                         Group<K, V, HD>& at, Query query) {
    const int g = threadIdx.x % 32 / 4;
    int j0 = keys.begin + kKeys * warp_index();
    int next = page_of_group(a, run, keys, j0 + kChunk);
    for (; j0 < keys.end; j0 += kChunk) {
      const int after = page_of_group(a, run, keys, j0 + 2 * kChunk);
      const bool more = j0 + kChunk < keys.end;
      float s[NT][4] = {}, s_high[NT][4] = {};  // two sums: products wait for the one before
#pragma unroll
      for (int c = 0; c < HD / 32; ++c) {
        const u32 low[4] = {at.k[c][0].x, at.k[c][1].x, at.k[c][0].y, at.k[c][1].y};
        const u32 high[4] = {at.k[c][0].z, at.k[c][1].z, at.k[c][0].w, at.k[c][1].w};
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const uint4 q = query(n, c);
          mma<T>(s[n], low, q.x, q.y);
          mma<T>(s_high[n], high, q.z, q.w);
        }
      }
      if (more) at.load_k(a, kv_head, next, j0 + kChunk, run.seen);

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
            const bool seen = page >= 0 && distance >= 0 && (a.window == 0 || distance < a.window);
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
            const uint4 v = at.v[c][r];
            word[r] = i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
          }
          const u32 columns[4] = {
              __byte_perm(word[0], word[1], 0x5410), __byte_perm(word[0], word[1], 0x7632),
              __byte_perm(word[2], word[3], 0x5410), __byte_perm(word[2], word[3], 0x7632)};
#pragma unroll
          for (int n = 0; n < NT; ++n) mma<T>(sum[n][4 * c + i], columns, p[n][0], p[n][1]);
        }
      }
      if (more) at.load_v(a, kv_head, next, j0 + kChunk, run.seen);
      page = next;
      next = after;
    }
  }

  // Joins the warps, and the splits if there are several that do something. sums: in shared memory,
  // [kWarps][ROWS][PITCH].
  __device__ __forceinline__ void finish(const AttentionArgs& a, const Tile& tile, int split,
                                         int n_active, float* sums, Tops<ROWS>& tops) {
    const int lane = threadIdx.x % 32, warp = warp_index(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * n + 2 * t + e;
        float all = total[n][e];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) all += __shfl_xor_sync(kAllLanes, all, step);
        if (g == 0) {
          tops.top[warp][row] = top[n][e];
          tops.total[warp][row] = all;
        }
        float* const to = sums + (warp * ROWS + row) * PITCH;
        if (row < tile.n_rows) {
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
      const int row = tile.row0 + r;
      char* const to = a.dst.row(head_of(a, tile.kv_head, row), token_of(a, row), 0);
      reinterpret_cast<float*>(to)[d] = y;
    };
    for (int i = threadIdx.x; i < tile.n_rows * HD; i += 32 * kWarps) {
      const int row = i / HD, d = i % HD;
      float best = -infinity(), y = 0.0f, weights = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) best = fmaxf(best, tops.top[w][row]);
      const float base = best == -infinity() ? 0.0f : best;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float keep = exp2_normal(tops.top[w][row] - base);
        y = fmaf(keep, sums[(w * ROWS + row) * PITCH + d], y);
        weights = fmaf(keep, tops.total[w][row], weights);
      }
      if (n_active == 1) {
        store(row, d, weights > 0.0f ? y / weights : 0.0f);
      } else {
        float* const part = part_of(a, tile.slot, split, row, a.tile_rows, HD);
        part[d] = y;
        if (d == 0) {
          part[HD] = best;
          part[HD + 1] = weights;
        }
      }
    }
    if (n_active > 1) join(a, tile.slot, n_active, a.tile_rows, tile.n_rows, HD, store);
  }
};
