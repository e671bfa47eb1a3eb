// What a warp of the decode kernel does with its keys, and how a block joins its warps.
#pragma once

#include "cuda/attention_feed.cuh"

// Heads [head, head + n_rows) of a token, which read one KV head. slot: what its splits join in.
struct Tile {
  int token, head, n_rows, slot;

  // Of row r; those past the end repeat the last one, and their results are not stored.
  __device__ __forceinline__ int head_of(int r) const { return head + min(r, n_rows - 1); }
  __device__ __forceinline__ float* output(const AttentionArgs& a, int r) const {
    return reinterpret_cast<float*>(a.dst.row(head + r, token, 0));
  }
};

template <int ROWS>
struct Tops {
  float top[kWarps][ROWS], total[kWarps][ROWS];
};

// What a warp holds of a tile's rows. Columns of the transposed tiles that a thread holds are rows
// 2 t and 2 t + 1 of each 8.
template <class K, int HD, int NT>
struct Rows {
  typedef typename CacheRow<K>::Half T;
  static constexpr int ROWS = 8 * NT, PITCH = HD + 2;  // floats; two more spread rows over banks
  static constexpr int kWide = HD / 64 * 64;           // dims that are taken 64 at a time
  static_assert(HD % 64 == 0 || HD % 64 == 16 || HD % 64 == 32, "what is left has a way below");
  float slope2[NT][2], top[NT][2], total[NT][2], sum[NT][HD / 16][4];

  typedef uint4 Queries[ROWS][HD / 8 + 1];  // a row more than its elements: other banks

  // The tile's queries, as the products take them, by all threads of the block.
  static __device__ __forceinline__ void load(const AttentionArgs& a, const Tile& tile,
                                              Queries& q) {
    for (int i = threadIdx.x; i < ROWS * HD / 8; i += 32 * kWarps) {
      const int row = i / (HD / 8), d = i % (HD / 8);
      const char* const from = a.q.row(tile.head_of(row), tile.token, 0);
      q[row][d] = round8<T>(reinterpret_cast<const float*>(from) + 8 * d);
    }
  }

  __device__ __forceinline__ void slopes(const AttentionArgs& a, const Tile& tile) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int head = tile.head_of(8 * n + 2 * (threadIdx.x % 4) + e);
        slope2[n][e] = kLog2E * alibi_slope(head, (int)a.q.ne[1], a.max_bias);
      }
    }
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
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

  // Adds the warp's keys of [begin, end), which come next from the feed; pos: of the token.
  template <class F, class Next>
  __device__ __forceinline__ void attend(const AttentionArgs& a, F& feed, int begin, int end,
                                         int pos, const Queries& queries, Next next) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 1
    for (int j0 = begin + kKeys * warp_index(); j0 < end; j0 += kChunk) {
      const bool hole = feed.take_hole();
      const char* const keys = feed.take_keys();
      float s[NT][4] = {}, s_high[NT][4] = {};  // two sums: products wait for the one before
#pragma unroll
      for (int c = 0; c < HD / 32; ++c) {
        const uint4 x = F::Keys::read8(keys, g, 32 * c + 8 * t);
        const uint4 y = F::Keys::read8(keys, g + 8, 32 * c + 8 * t);
        const u32 low[4] = {x.x, y.x, x.y, y.y}, high[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const uint4 q = queries[8 * n + g][4 * c + t];
          mma<T>(s[n], low, q.x, q.y);
          mma<T>(s_high[n], high, q.z, q.w);
        }
      }
      if constexpr (HD % 32 != 0) {  // 16 dims are left: 4 t and the three after
        constexpr int LEFT = HD / 32 * 32;
        const uint2 x = half_of(F::Keys::read8(keys, g, LEFT + t / 2 * 8), t % 2);
        const uint2 y = half_of(F::Keys::read8(keys, g + 8, LEFT + t / 2 * 8), t % 2);
        const u32 some[4] = {x.x, y.x, x.y, y.y};
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const uint2 q = half_of(queries[8 * n + g][LEFT / 8 + t / 2], t % 2);
          mma<T>(s[n], some, q.x, q.y);
        }
      }
      feed.release_keys(a, next);

      bool seen[2];
      int distance[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        distance[r] = pos - (j0 + g + 8 * r);
        seen[r] = !hole && distance[r] >= 0 && (a.window == 0 || distance[r] < a.window);
      }
      bool same = true;  // as before are the largest scores
      float keeps[NT][2];
      u32 p[NT][2];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float w[4];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float x[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float dot = s[n][2 * r + e] + s_high[n][2 * r + e];
            x[r] = seen[r] ? score_log2(a, dot, slope2[n][e], distance[r]) : -infinity();
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
          keeps[n][e] = keep;
          same &= keep == 1.0f;
        }
        p[n][0] = transpose8x8(Float<T>::pair(w[0], w[1]));
        p[n][1] = transpose8x8(Float<T>::pair(w[2], w[3]));
      }

      if (!__all_sync(kAllLanes, same)) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int m = 0; m < HD / 16; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][m][i] *= keeps[n][i % 2];
          }
        }
      }

      const char* const values = feed.take_values();
#pragma unroll
      for (int c = 0; c < HD / 64; ++c) {
        uint4 v[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          v[r] = F::Values::read8(values, 2 * t + r % 2 + r / 2 * 8, 64 * c + 8 * g);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          u32 word[4];  // dims 64 c + 8 g + 2 i and the one after, of four keys
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            word[r] = i == 0 ? v[r].x : i == 1 ? v[r].y : i == 2 ? v[r].z : v[r].w;
          }
          add_values(4 * c + i, word, p);
        }
      }
      if constexpr (HD % 64 == 32) {  // 32 dims are left: 4 g and the three after
        uint2 v[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const uint4 eight =
              F::Values::read8(values, 2 * t + r % 2 + r / 2 * 8, kWide + g / 2 * 8);
          v[r] = half_of(eight, g % 2);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          u32 word[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) word[r] = i == 0 ? v[r].x : v[r].y;
          add_values(kWide / 16 + i, word, p);
        }
      } else if constexpr (HD % 64 == 16) {  // 16 dims are left: 2 g and the one after
        u32 word[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const uint2 four = half_of(
              F::Values::read8(values, 2 * t + r % 2 + r / 2 * 8, kWide + g / 4 * 8), g / 2 % 2);
          word[r] = g % 2 ? four.y : four.x;
        }
        add_values(kWide / 16, word, p);
      }
      feed.release_values(a);
    }
  }

  // The first or the second four of eight elements.
  static __device__ __forceinline__ uint2 half_of(uint4 eight, int second) {
    return second ? make_uint2(eight.z, eight.w) : make_uint2(eight.x, eight.y);
  }

  // word: two dims of four keys. Adds them, times their weights, to sums m.
  __device__ __forceinline__ void add_values(int m, const u32 (&word)[4], const u32 (&p)[NT][2]) {
    const u32 columns[4] = {
        __byte_perm(word[0], word[1], 0x5410), __byte_perm(word[0], word[1], 0x7632),
        __byte_perm(word[2], word[3], 0x5410), __byte_perm(word[2], word[3], 0x7632)};
#pragma unroll
    for (int n = 0; n < NT; ++n) mma<T>(sum[n][m], columns, p[n][0], p[n][1]);
  }

  // The warp's sums, into rows of PITCH floats.
  __device__ __forceinline__ void put(int n_rows, float* sums, Tops<ROWS>& tops) const {
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
        if (row < n_rows) {
#pragma unroll
          for (int m = 0; m < HD / 16; ++m) {
            const int d = m < kWide / 16 ? m / 4 * 64 + 8 * g + m % 4 * 2
                                         : kWide + HD % 64 / 8 * g + (m - kWide / 16) * 2;
            *reinterpret_cast<float2*>(sums + row * PITCH + d) =
                make_float2(sum[n][m][e], sum[n][m][2 + e]);
          }
        }
      }
    }
  }

  struct Part {
    float best, sum, weights;

    __device__ __forceinline__ float value(const AttentionArgs& a, int head) const {
      return weights > 0.0f ? sum / (weights + sink_weight(a, head, best)) : 0.0f;
    }
  };
  // Element d of a row, of all warps. warp_bytes: between the sums of two of them.
  static __device__ __forceinline__ Part gather(const char* sums, int warp_bytes,
                                                const Tops<ROWS>& tops, int row, int d) {
    Part p = {-infinity(), 0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) p.best = fmaxf(p.best, tops.top[w][row]);
    const float base = p.best == -infinity() ? 0.0f : p.best;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float keep = exp2_normal(tops.top[w][row] - base);
      const float* const mine = reinterpret_cast<const float*>(sums + w * warp_bytes);
      p.sum = fmaf(keep, mine[row * PITCH + d], p.sum);
      p.weights = fmaf(keep, tops.total[w][row], p.weights);
    }
    return p;
  }

  static __device__ __forceinline__ void write(const AttentionArgs& a, int slot, int split, int row,
                                               int d, const Part& p) {
    float* const to = part_of(a, slot, split, row, a.tile_rows, HD);
    to[d] = p.sum;
    if (d == 0) {
      to[HD] = p.best;
      to[HD + 1] = p.weights;
    }
  }
};
