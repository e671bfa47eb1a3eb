// attention for few tokens of prompts: as attention_prefill.cu, but a block owns at most 64 rows,
// of one sequence, and has the keys of a stretch of 2048 alone, or is given several one after the
// other. The sums of stretches are folded in order, by one block or by the last of several to
// arrive. With one stretch every sum is in the order of attention_prefill.cu.
#include "cuda/attention_tiles.cuh"

constexpr int kRowWarps = 4;    // the other warps have the same rows
constexpr int kRows = 64;       // of a block
constexpr int kStretch = 2048;  // keys; STRETCH of attention.py

// The first row of the e-th sequence to start within a tile and not with it, or one past all rows.
__device__ __forceinline__ int inner_start(const AttentionArgs& a, int e) {
  __shared__ u32 starts[kThreads / 32];
  const int n = (int)a.q.ne[2], group = (int)a.group.divisor;
  for (int base = 0; base < n; base += kThreads) {
    const int i = base + threadIdx.x;
    const bool here =
        i > 0 && i < n && i * group % kRows != 0 && token_at(a, i).seq != token_at(a, i - 1).seq;
    const u32 votes = __ballot_sync(kAllLanes, here);
    __syncthreads();
    if (threadIdx.x % 32 == 0) starts[threadIdx.x / 32] = votes;
    __syncthreads();
    for (int w = 0; w < kThreads / 32; ++w) {
      u32 left = starts[w];
      if (e < __popc(left)) {
        for (; e > 0; --e) left &= left - 1;
        return (base + 32 * w + __ffs(left) - 1) * group;
      }
      e -= __popc(left);
    }
  }
  return n * group;
}

// KEYS: of a tile. Blocks of the grid's y below a.tiles have the rows of one tile each, as far as
// they are of its first sequence; the others have those of sequences that start within a tile.
template <class K, class V, int HD, int KEYS>
__global__ void __launch_bounds__(kThreads, 1)
    attention_prefill_few(const __grid_constant__ AttentionArgs a) {
  typedef typename CacheRow<K>::Half T;
  constexpr int WARP_ROWS = kRows / kRowWarps;
  constexpr int PIECES = HD / 8, TILE = KEYS * PIECES;
  typedef Share<HD, KEYS> Mine;
  constexpr int MINE = Mine::kMine, DIMS = Mine::kDims, PAGES = Mine::kPages;
  extern __shared__ uint4 shared[];  // Q [kRows, HD], then K and V [2][KEYS, HD]
  __shared__ int row_pos[kRows];
  // Of the stretches before: the largest score, the total weight.
  __shared__ float2 stats[Mine::kByDims ? 2 : 1][kRows];
  __shared__ Range ranges[kRowWarps];
  __shared__ int others[kRowWarps];  // the first row of a warp that is of another sequence
  uint4* const q_tile = shared;
  uint4* const k_tiles = q_tile + kRows * PIECES;
  uint4* const v_tiles = k_tiles + 2 * TILE;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x / 32 % kRowWarps, half = threadIdx.x / (32 * kRowWarps);
  const int kv_head = blockIdx.x, group = (int)a.group.divisor;
  const int n_head = (int)a.q.ne[1], n_all = (int)a.q.ne[2] * group;
  const int my_row = WARP_ROWS * warp + lane % WARP_ROWS;
  // Plain scores are only scaled, which the exponent's multiply-add does.
  const bool plain = a.softcap <= 0.0f && a.max_bias <= 0.0f && a.scale > 0.0f;
  const float factor = plain ? a.scale * kLog2E : 1.0f;
  const char* const k_base = a.k.row(kv_head, 0, 0);
  const char* const v_base = a.v.row(kv_head, 0, 0);

  // The last tokens see most: start with them.
  int unit = (int)blockIdx.y < a.tiles ? a.tiles - 1 - blockIdx.y : blockIdx.y;
  // Positions and pages are read before the wait where they are looked at again after it.
  bool checked = a.beside || gridDim.z > 1 || unit >= a.tiles;
  if (a.beside) wait_for_previous();
  launch_dependents();
  if (checked) wait_for_previous();

#pragma unroll 1
  for (;;) {
    const int row0 = unit < a.tiles ? unit * kRows : inner_start(a, unit - a.tiles);
    if (row0 >= n_all) return;
    const auto token_of = [&](int r) { return (int)a.group.div(row0 + r); };
    const auto head_of = [&](int r) { return kv_head * group + row0 + r - token_of(r) * group; };

    // The rows of one sequence, n_rows from row0 on. Rows past them repeat the last one; their
    // results are not stored.
    const int most = min(kRows - row0 % kRows, n_all - row0);
    const auto mine = [&]() { return token_at(a, token_of(min(my_row, most - 1))); };
    const Token me = mine();
    const int seq = token_at(a, token_of(0)).seq;
    {
      const int other = __reduce_min_sync(kAllLanes, me.seq != seq ? my_row : kRows);
      __syncthreads();  // everyone is done with the rows before
      if (lane == 0) others[warp] = other;
    }
    __syncthreads();
    const int n_rows = min(min(min(others[0], others[1]), min(others[2], others[3])), most);
    {
      const bool in = my_row < n_rows;
      const Span s = in ? visible_to(a, me.pos) : Span{0, -1};
      const bool some = s.last >= s.first;
      const Range range = {__reduce_min_sync(kAllLanes, some ? s.first : 0x7FFFFFFF),
                           __reduce_max_sync(kAllLanes, some ? s.last : -1),
                           __reduce_max_sync(kAllLanes, in ? s.first : 0),
                           __reduce_min_sync(kAllLanes, in ? s.last : 0x7FFFFFFF)};
      row_pos[my_row] = in ? me.pos : -1;
      if (lane == 0) ranges[warp] = range;
    }
    __syncthreads();
    Span seen = {ranges[0].low, ranges[0].high};
#pragma unroll
    for (int w = 1; w < kRowWarps; ++w) {
      seen = {min(seen.first, ranges[w].low), max(seen.last, ranges[w].high)};
    }
    if (seen.last < seen.first) seen = {0, -1};

    // Stretches are shared among the blocks of the grid's z, but not those of rows that a block
    // comes to when it is done with its first.
    const int first = seen.first / kStretch, n = max(seen.last, 0) / kStretch - first + 1;
    const bool whole = gridDim.z == 1 || n == 1 || unit >= (int)gridDim.y;
    const int step = whole ? 1 : gridDim.z;
    if ((int)blockIdx.z >= (whole ? 1 : n)) return;
    bool stale = false;
#pragma unroll 1
    for (int stretch = blockIdx.z; stretch < n; stretch += step) {
      const int low = max(seen.first, (first + stretch) * kStretch);
      const int high = min(seen.last, (first + stretch + 1) * kStretch - 1);
      const int j_first = low / KEYS * KEYS;
      int pages[PAGES];  // of the tile to be loaded next, read while one is computed
      const auto look_up = [&](int j0, int (&pages)[PAGES]) {
#pragma unroll
        for (int i = 0; i < PAGES; ++i) {
          const int j = j0 + i * kPage;
          pages[i] = j <= high ? page_at(a, seq, j / kPage) : -1;
        }
      };
      look_up(j_first, pages);
      if (!checked) {
        wait_for_previous();
        int now[PAGES];
        look_up(j_first, now);
        stale = !(mine() == me);
#pragma unroll
        for (int i = 0; i < PAGES; ++i) stale |= now[i] != pages[i];
      }
      // Whether there is a page for the warp's half.
      const auto load = [&](int j0, int stage) {
        load_tile<K, PIECES, KEYS>(k_tiles + stage * TILE, k_base, a.k.nb[2], pages, j0, seen);
        load_tile<V, PIECES, KEYS>(v_tiles + stage * TILE, v_base, a.v.nb[2], pages, j0, seen);
        const bool there = (half == 0 ? pages[0] : pages[PAGES / 2]) >= 0;
        look_up(j0 + KEYS, pages);
        return there;
      };
      bool there_next = false;
      bool loaded = false;  // the first tile, and the queries while it is on its way
      // A thread's rows: WARP_ROWS warp + g + 8 h.
      float top[2], total[2], sum[DIMS / 8][4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[h] = -infinity();
        total[h] = 0.0f;
      }
#pragma unroll 1
      for (int j0 = j_first - KEYS, stage = 1; j0 <= high; j0 += KEYS, stage ^= 1) {
        if (loaded) {
          wait_for_copies();
          __syncthreads();  // everyone's copies are there, and the other stage is no longer read
        }
        const bool there = there_next;
        if (j0 + KEYS <= high) there_next = load(j0 + KEYS, stage ^ 1);
        if (!loaded) {
#pragma unroll 8
          for (int i = threadIdx.x; i < kRows * PIECES; i += kThreads) {
            const int r = i / PIECES, c = i % PIECES, row = min(r, n_rows - 1);
            const char* const at = a.q.row(head_of(row), token_of(row), 0);
            q_tile[swizzle<PIECES>(r, c)] = round8<T>(reinterpret_cast<const float*>(at) + 8 * c);
          }
          loaded = true;
          if (!checked && __syncthreads_or(stale)) {
            stale = true;
            break;
          }
          continue;
        }
        // Swizzling repeats every eight rows, so a tile's half is laid out as a tile.
        const uint4* const k_tile = k_tiles + stage * TILE + Mine::first_key(half) * PIECES;
        const int first_piece = Mine::first_dim(half) / 8;
        const uint4* const v_tile = v_tiles + stage * TILE + Mine::first_key(half) * PIECES;
        const int j_mine = j0 + Mine::first_key(half);
        const Range range = ranges[warp];
        if (j_mine > range.high || j_mine + MINE <= range.low || !there) continue;
        const bool masked = j_mine < range.low_all || j_mine + MINE - 1 > range.high_all;

        float s[MINE / 8][4] = {};
#pragma unroll
        for (int c = 0; c < HD / 16; ++c) {
          u32 q[4];
          load_matrices(q,
                        q_tile + swizzle<PIECES>(WARP_ROWS * warp + lane % 16, 2 * c + lane / 16));
#pragma unroll
          for (int n = 0; n < MINE / 16; ++n) {
            u32 k[4];
            load_matrices(k, k_tile + swizzle<PIECES>(16 * n + lane % 8 + lane / 16 * 8,
                                                      2 * c + lane / 8 % 2));
            mma<T>(s[2 * n], q, k[0], k[1]);
            mma<T>(s[2 * n + 1], q, k[2], k[3]);
          }
        }

        if (masked || !plain) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int r = WARP_ROWS * warp + g + 8 * h, pos = row_pos[r];
            const int head = head_of(min(r, n_rows - 1));
            const float slope2 = kLog2E * alibi_slope(head, n_head, a.max_bias);
#pragma unroll
            for (int n = 0; n < MINE / 8; ++n) {
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int distance = pos - (j_mine + 8 * n + 2 * t + e);
                float* const x = &s[n][2 * h + e];
                if (!plain) *x = score_log2(a, *x, slope2, distance);
                if (distance < 0 || (a.window > 0 && distance >= a.window)) *x = -infinity();
              }
            }
          }
        }

        u32 p[MINE / 16][4];
        float keep[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float new_top = top[h];
#pragma unroll
          for (int n = 0; n < MINE / 8; ++n) {
            new_top = fmaxf(new_top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
          }
          new_top = fmaxf(new_top, __shfl_xor_sync(kAllLanes, new_top, 1));
          new_top = fmaxf(new_top, __shfl_xor_sync(kAllLanes, new_top, 2));
          const float base = new_top == -infinity() ? 0.0f : new_top * factor;
          // Keys that a row does not see must change nothing of it, whatever is in the block.
          keep[h] = new_top == top[h] ? 1.0f : exp2_normal(fmaf(top[h], factor, -base));
          top[h] = new_top;
          float weights = 0.0f;
#pragma unroll
          for (int n = 0; n < MINE / 8; ++n) {
            float* const x = &s[n][2 * h];
            x[0] = exp2_normal(fmaf(x[0], factor, -base));
            x[1] = exp2_normal(fmaf(x[1], factor, -base));
            weights += x[0] + x[1];
            p[n / 2][n % 2 * 2 + h] = Float<T>::pair(x[0], x[1]);
          }
          total[h] = fmaf(total[h], keep[h], weights);
        }
#pragma unroll
        for (int d = 0; d < DIMS / 8; ++d) {
          sum[d][0] *= keep[0];
          sum[d][1] *= keep[0];
          sum[d][2] *= keep[1];
          sum[d][3] *= keep[1];
        }

#pragma unroll
        for (int n = 0; n < MINE / 16; ++n) {
#pragma unroll
          for (int d = 0; d < DIMS / 16; ++d) {
            u32 v[4];
            load_transposed(
                v, v_tile + swizzle<PIECES>(16 * n + lane % 16, first_piece + 2 * d + lane / 16));
            mma<T>(sum[2 * d], p[n], v[0], v[1]);
            mma<T>(sum[2 * d + 1], p[n], v[2], v[3]);
          }
        }
      }
      if (!checked) {
        checked = true;
        if (stale) {
          wait_for_copies();
          break;
        }
      }
      // The warps with the second halves of the keys hand theirs over, laid out by thread.
      constexpr int OTHERS = 32 * kRowWarps, SUMS = DIMS / 2;  // threads, and floats of one
      float* const handed = reinterpret_cast<float*>(shared) + threadIdx.x % OTHERS;
      if constexpr (!Mine::kByDims) {
        static_assert(4 * OTHERS * (SUMS + 4) <= 16 * (kRows * PIECES + 4 * TILE), "it fits");
        __syncthreads();  // the tiles are no longer read
        if (half == 1) {
#pragma unroll
          for (int i = 0; i < SUMS; ++i) handed[i * OTHERS] = sum[i / 4][i % 4];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            handed[(SUMS + h) * OTHERS] = top[h];
            handed[(SUMS + 2 + h) * OTHERS] = total[h];
          }
        }
        __syncthreads();
      }
      const auto theirs = [&](int i, float none) {
        return Mine::kByDims ? none : handed[i * OTHERS];
      };
      if (half == 0 || Mine::kByDims) {
        const int slot = blockIdx.y * gridDim.x + blockIdx.x;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int r = WARP_ROWS * warp + g + 8 * h;
          const float2 before = stretch > 0 ? stats[half][r] : make_float2(-infinity(), 0.0f);
          const float other = theirs(SUMS + h, -infinity()), best = fmaxf(top[h], other);
          const float base = best == -infinity() ? 0.0f : best * factor;
          float keep = exp2_normal(fmaf(top[h], factor, -base));
          float take = exp2_normal(fmaf(other, factor, -base));
          float weights = fmaf(keep, total[h], take * theirs(SUMS + 2 + h, 0.0f));
          weights += __shfl_xor_sync(kAllLanes, weights, 1);
          weights += __shfl_xor_sync(kAllLanes, weights, 2);
          if (r >= n_rows) continue;
          const float best2 = best == -infinity() ? best : base;
          // What Fold does, for a whole row.
          Fold fold = {before.x, 0.0f, before.y};
          const Fold::Scales by = fold.scales(best2);
          fold.add_weights(by, best2, weights);
          if (n == 1) {  // as attention_prefill.cu does
            const float sink = sink_weight(a, head_of(r), base);
            const float inverse = weights > 0.0f ? 1.0f / (weights + sink) : 0.0f;
            keep *= inverse, take *= inverse;
          }
          float* to = reinterpret_cast<float*>(a.dst.row(head_of(r), token_of(r), 0));
          if (!whole) to = part_of(a, slot, stretch, r, kRows, HD);
          const float scale = stretch + 1 == n ? fold.inverse(a, head_of(r)) : 1.0f;
#pragma unroll
          for (int d = 0; d < DIMS / 8; ++d) {
            const int rest = 4 * d + 2 * h;
            float2* const at =
                reinterpret_cast<float2*>(to + Mine::first_dim(half) + 8 * d + 2 * t);
            float2 y = {fmaf(sum[d][2 * h], keep, theirs(rest, 0.0f) * take),
                        fmaf(sum[d][2 * h + 1], keep, theirs(rest + 1, 0.0f) * take)};
            if (whole && n > 1) {
              const float2 so_far = stretch > 0 ? *at : make_float2(0.0f, 0.0f);
              y = {by.add(so_far.x, y.x) * scale, by.add(so_far.y, y.y) * scale};
            }
            *at = y;
          }
          if (t == 0 && whole) stats[half][r] = make_float2(fold.top, fold.total);
          if (t == 0 && !whole && half == 0) {
            to[HD] = best2;
            to[HD + 1] = weights;
          }
        }
      }
      __syncthreads();  // what was handed over has been read
    }
    if (stale) continue;
    if (!whole) {
      const int slot = blockIdx.y * gridDim.x + blockIdx.x;
      if (arrives_last(tickets + slot, min(n, (int)gridDim.z))) {
        join(
            a, slot, n, kRows, n_rows, HD, [&](int r) { return head_of(r); },
            [&](int r, int d, float y) {
              reinterpret_cast<float*>(a.dst.row(head_of(r), token_of(r), 0))[d] = y;
            });
      }
    }
    if (unit < a.tiles) return;
    unit += (int)gridDim.y - a.tiles;
  }
}
