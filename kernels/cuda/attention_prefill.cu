// attention for many tokens, after FlashAttention-2 (Dao 2023): a block owns 128 rows of one KV
// head, a row being a (token, head of the group), and walks over the visible keys, which it keeps
// double buffered in shared memory. A warp has 32 rows, so that each fragment of keys or values
// read from shared memory serves two products, and half of the keys of each tile: two warps a
// scheduler even when there are few rows. Of heads wider than 128 it has 16 rows and the block 64;
// of those wider than 256 it has all keys and half of the values' dims (Share). A block whose rows
// are of several sequences walks over the keys of one after the other. attention_prefill_few.cu is
// for few rows, whose results are the same to the bit as long as they see no keys on both sides of
// a multiple of 2048.
#include "cuda/attention_tiles.cuh"

constexpr int kRowWarps = 4;  // the other warps have the same rows

// KEYS: of a tile.
template <class K, class V, int HD, int KEYS>
__global__ void __launch_bounds__(kThreads, 1)
    attention_prefill(const __grid_constant__ AttentionArgs a) {
  typedef typename CacheRow<K>::Half T;
  // A thread's sums of 32 rows of 256 dims would not fit into its registers.
  constexpr int M = HD <= 128 ? 2 : 1;  // 16 rows each, of a warp
  constexpr int WARP_ROWS = 16 * M, ROWS = WARP_ROWS * kRowWarps;
  constexpr int HALF = kThreads / 2;  // threads
  constexpr int PIECES = HD / 8, TILE = KEYS * PIECES;
  typedef Share<HD, KEYS> Mine;
  constexpr int MINE = Mine::kMine, DIMS = Mine::kDims, PAGES = Mine::kPages;
  extern __shared__ uint4 shared[];  // Q [ROWS, HD], then K and V [2][KEYS, HD]
  __shared__ Token of_row[ROWS];
  __shared__ int row_pos[ROWS];  // of the run
  __shared__ Range ranges[kRowWarps];
  __shared__ int first_left[kRowWarps];
  uint4* const q_tile = shared;
  uint4* const k_tiles = q_tile + ROWS * PIECES;
  uint4* const v_tiles = k_tiles + 2 * TILE;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x / 32 % kRowWarps, half = threadIdx.x / HALF;
  const int kv_head = blockIdx.x, group = (int)a.group.divisor;
  const int n_head = (int)a.q.ne[1], last_row = (int)a.q.ne[2] * group - 1;
  // The last tokens see most: start with them.
  const int row0 = (int)(gridDim.y - 1 - blockIdx.y) * ROWS;

  const auto token_of = [&](int row) { return (int)a.group.div(row); };
  const auto head_of = [&](int row) { return kv_head * group + row - token_of(row) * group; };

  if (!a.beside) launch_dependents();
  wait_for_previous();
  if (a.beside) launch_dependents();
  // Rows past the end repeat the last one; their results are not stored.
  const int my_row = M == 2 ? threadIdx.x % HALF : WARP_ROWS * warp + lane % WARP_ROWS;
  bool done;  // nothing is to be seen for it, or its run has been
  {
    const Token me = token_at(a, token_of(min(row0 + my_row, last_row)));
    of_row[my_row] = me;
    done = me.pos < 0;
  }

  // A thread's rows: WARP_ROWS warp + 16 m + g + 8 h. What few tiles need of them is read again
  // there.
  float top[M][2], total[M][2];
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    top[i / 2][i % 2] = -infinity();
    total[i / 2][i % 2] = 0.0f;
  }
  // Plain scores are only scaled, which the exponent's multiply-add does.
  const bool plain = a.softcap <= 0.0f && a.max_bias <= 0.0f && a.scale > 0.0f;
  const float factor = plain ? a.scale * kLog2E : 1.0f;

  const char* const k_base = a.k.row(kv_head, 0, 0);
  const char* const v_base = a.v.row(kv_head, 0, 0);

  float sum[M][DIMS / 8][4] = {};
  // The first row that is not done, or ROWS.
  const auto first_row = [&]() {
    const int r = __reduce_min_sync(kAllLanes, done ? ROWS : my_row);
    if (lane == 0) first_left[warp] = r;
  };
  const auto least = [&]() {
    return min(min(first_left[0], first_left[1]), min(first_left[2], first_left[3]));
  };
  first_row();
  __syncthreads();
  bool fresh = true;  // the queries are not there yet
  for (int begin = least(); begin < ROWS; begin = least()) {
    // A run: the rows of one sequence. `seen`: keys that some of them see.
    const int seq = of_row[begin].seq;
    {
      const Token me = of_row[my_row];
      const bool in = !done && me.seq == seq;
      const Span s = in ? visible_to(a, me.pos) : Span{0, -1};
      const bool some = s.last >= s.first;
      const Range range = {__reduce_min_sync(kAllLanes, some ? s.first : 0x7FFFFFFF),
                           __reduce_max_sync(kAllLanes, some ? s.last : -1),
                           __reduce_max_sync(kAllLanes, s.first),
                           __reduce_min_sync(kAllLanes, s.last)};
      __syncthreads();  // everyone is done with the run before
      row_pos[my_row] = in ? me.pos : -1;
      done |= in;
      first_row();
      if (lane == 0) ranges[warp] = range;
      __syncthreads();
    }
    Span seen = {ranges[0].low, ranges[0].high};
#pragma unroll
    for (int w = 1; w < kRowWarps; ++w) {
      seen = {min(seen.first, ranges[w].low), max(seen.last, ranges[w].high)};
    }

    int pages[PAGES];  // of the tile to be loaded next, read while one is computed
    const auto look_up = [&](int j0) {
#pragma unroll
      for (int i = 0; i < PAGES; ++i) {
        const int j = j0 + i * kPage;
        pages[i] = j <= seen.last ? page_at<true>(a, seq, j / kPage) : -1;
      }
    };
    // Whether there is a page for the warp's half.
    const auto load = [&](int j0, int stage) {
      load_tile<K, PIECES, KEYS>(k_tiles + stage * TILE, k_base, a.k.nb[2], pages, j0, seen);
      load_tile<V, PIECES, KEYS>(v_tiles + stage * TILE, v_base, a.v.nb[2], pages, j0, seen);
      const bool there = (half == 0 ? pages[0] : pages[PAGES / 2]) >= 0;
      look_up(j0 + KEYS);
      return there;
    };
    const int j_first = seen.first / KEYS * KEYS;
    look_up(j_first);
    bool there_next = seen.last >= seen.first && load(j_first, 0);
    if (fresh) {  // while the first keys are on their way
#pragma unroll 4
      for (int i = threadIdx.x; i < ROWS * PIECES; i += kThreads) {
        const int r = i / PIECES, c = i % PIECES, row = min(row0 + r, last_row);
        const char* const at = a.q.row(head_of(row), token_of(row), 0);
        q_tile[swizzle<PIECES>(r, c)] = round8<T>(reinterpret_cast<const float*>(at) + 8 * c);
      }
      fresh = false;
    }
    for (int j0 = j_first, stage = 0; j0 <= seen.last; j0 += KEYS, stage ^= 1) {
      wait_for_copies();
      __syncthreads();  // everyone's copies are there, and the other stage is no longer read
      const bool there = there_next;
      if (j0 + KEYS <= seen.last) there_next = load(j0 + KEYS, stage ^ 1);
      // Swizzling repeats every eight rows, so a tile's half is laid out as a tile.
      const uint4* const k_tile = k_tiles + stage * TILE + Mine::first_key(half) * PIECES;
      const int first_piece = Mine::first_dim(half) / 8;
      const uint4* const v_tile = v_tiles + stage * TILE + Mine::first_key(half) * PIECES;
      const int j_mine = j0 + Mine::first_key(half);
      const Range range = ranges[warp];
      if (j_mine > range.high || j_mine + MINE <= range.low || !there) continue;
      const bool masked = j_mine < range.low_all || j_mine + MINE - 1 > range.high_all;

      float s[M][MINE / 8][4] = {};
#pragma unroll
      for (int c = 0; c < HD / 16; ++c) {
        u32 q[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
          load_matrices(q[m], q_tile + swizzle<PIECES>(WARP_ROWS * warp + 16 * m + lane % 16,
                                                       2 * c + lane / 16));
        }
#pragma unroll
        for (int n = 0; n < MINE / 16; ++n) {
          u32 k[4];
          load_matrices(
              k, k_tile + swizzle<PIECES>(16 * n + lane % 8 + lane / 16 * 8, 2 * c + lane / 8 % 2));
#pragma unroll
          for (int m = 0; m < M; ++m) {
            mma<T>(s[m][2 * n], q[m], k[0], k[1]);
            mma<T>(s[m][2 * n + 1], q[m], k[2], k[3]);
          }
        }
      }

      if (masked || !plain) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int r = WARP_ROWS * warp + 16 * m + g + 8 * h, pos = row_pos[r];
            const int head = head_of(min(row0 + r, last_row));
            const float slope2 = kLog2E * alibi_slope(head, n_head, a.max_bias);
#pragma unroll
            for (int n = 0; n < MINE / 8; ++n) {
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int distance = pos - (j_mine + 8 * n + 2 * t + e);
                float* const x = &s[m][n][2 * h + e];
                if (!plain) *x = score_log2(a, *x, slope2, distance);
                if (distance < 0 || (a.window > 0 && distance >= a.window)) *x = -infinity();
              }
            }
          }
        }
      }

      u32 p[M][MINE / 16][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        float keep[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float new_top = top[m][h];
#pragma unroll
          for (int n = 0; n < MINE / 8; ++n) {
            new_top = fmaxf(new_top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
          }
          new_top = fmaxf(new_top, __shfl_xor_sync(kAllLanes, new_top, 1));
          new_top = fmaxf(new_top, __shfl_xor_sync(kAllLanes, new_top, 2));
          const float base = new_top == -infinity() ? 0.0f : new_top * factor;
          // Keys that a row does not see must change nothing of it, whatever is in the block.
          keep[h] = new_top == top[m][h] ? 1.0f : exp2_normal(fmaf(top[m][h], factor, -base));
          top[m][h] = new_top;
          float weights = 0.0f;
#pragma unroll
          for (int n = 0; n < MINE / 8; ++n) {
            float* const x = &s[m][n][2 * h];
            x[0] = exp2_normal(fmaf(x[0], factor, -base));
            x[1] = exp2_normal(fmaf(x[1], factor, -base));
            weights += x[0] + x[1];
            p[m][n / 2][n % 2 * 2 + h] = Float<T>::pair(x[0], x[1]);
          }
          total[m][h] = fmaf(total[m][h], keep[h], weights);
        }
        // Later tiles seldom have a new maximum.
        if (__any_sync(kAllLanes, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
          for (int d = 0; d < DIMS / 8; ++d) {
            sum[m][d][0] *= keep[0];
            sum[m][d][1] *= keep[0];
            sum[m][d][2] *= keep[1];
            sum[m][d][3] *= keep[1];
          }
        }
      }

#pragma unroll
      for (int n = 0; n < MINE / 16; ++n) {
#pragma unroll
        for (int d = 0; d < DIMS / 16; ++d) {
          u32 v[4];
          load_transposed(
              v, v_tile + swizzle<PIECES>(16 * n + lane % 16, first_piece + 2 * d + lane / 16));
#pragma unroll
          for (int m = 0; m < M; ++m) {
            mma<T>(sum[m][2 * d], p[m][n], v[0], v[1]);
            mma<T>(sum[m][2 * d + 1], p[m][n], v[2], v[3]);
          }
        }
      }
    }
  }

  // The warps with the second halves of the keys hand theirs over, laid out by thread.
  constexpr int STATS = M * DIMS / 2;  // floats of sums, before those of the online softmax
  float* const mine = reinterpret_cast<float*>(shared) + threadIdx.x % HALF;
  if constexpr (!Mine::kByDims) {
    static_assert(4 * HALF * (STATS + 4 * M) <= 16 * (ROWS * PIECES + 4 * TILE), "it fits");
    __syncthreads();  // the tiles are no longer read
    if (half == 1) {
#pragma unroll
      for (int i = 0; i < STATS; ++i) {
        mine[i * HALF] = sum[i / (DIMS / 2)][i / 4 % (DIMS / 8)][i % 4];
      }
#pragma unroll
      for (int i = 0; i < 2 * M; ++i) {
        mine[(STATS + i) * HALF] = top[i / 2][i % 2];
        mine[(STATS + 2 * M + i) * HALF] = total[i / 2][i % 2];
      }
    }
    __syncthreads();
    if (half == 1) return;
  }
  const auto theirs = [&](int i, float none) { return Mine::kByDims ? none : mine[i * HALF]; };

#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    const int m = i / 2, h = i % 2, row = row0 + WARP_ROWS * warp + 16 * m + g + 8 * h;
    const float other = theirs(STATS + i, -infinity()), best = fmaxf(top[m][h], other);
    const float base = best == -infinity() ? 0.0f : best * factor;
    const float keep = exp2_normal(fmaf(top[m][h], factor, -base));
    const float take = exp2_normal(fmaf(other, factor, -base));
    float weights = fmaf(keep, total[m][h], take * theirs(STATS + 2 * M + i, 0.0f));
    weights += __shfl_xor_sync(kAllLanes, weights, 1);
    weights += __shfl_xor_sync(kAllLanes, weights, 2);
    if (row > last_row) continue;
    const float sink = sink_weight(a, head_of(row), base);
    const float inverse = weights > 0.0f ? 1.0f / (weights + sink) : 0.0f;
    const float x = keep * inverse, y = take * inverse;
    float* const out = reinterpret_cast<float*>(a.dst.row(head_of(row), token_of(row), 0)) +
                       Mine::first_dim(half) + 2 * t;
#pragma unroll
    for (int d = 0; d < DIMS / 8; ++d) {
      const int at = m * (DIMS / 2) + 4 * d + 2 * h;
      *reinterpret_cast<float2*>(out + 8 * d) =
          make_float2(fmaf(sum[m][d][2 * h], x, theirs(at, 0.0f) * y),
                      fmaf(sum[m][d][2 * h + 1], x, theirs(at + 1, 0.0f) * y));
    }
  }
}
