// attention for few tokens of a sequence ("flash decoding", Dao et al. 2023): a block takes a tile
// of rows and a split of their keys, where a row is a (token, head) of a KV head's group. The cache
// is read once for all rows of a tile.
//
// Scores are computed transposed, [16 keys, 8 rows] = K [16, hd] Q^T, and so is the sum,
// [16 dims, 8 rows] = V^T [16, 16 keys] P^T: with rows as the narrow side few of them are wasted.
// The order of a product's inner dimension is free, so each thread takes 16 bytes of a key as what
// two products want of it, and the order of dims within the result is free for the values.
//
// Two forms. Without a list a block has the tile and the split that its index says, and a tile may
// hold tokens of several sequences. With one, every token is alone in its sequence, a tile holds
// heads of one token, and the blocks go through a list of what the positions say there is to do.
#include "cuda/attention_decode.cuh"

constexpr int kFewHalves = 4, kListedHalves = 2;  // of a warp's ring; as in attention.py

// NT: tiles of 8 rows. HD: head size of keys and values.
template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(32 * kWarps, 1)
    attention_decode(const __grid_constant__ AttentionArgs a) {
  typedef Rows<K, HD, NT> R;
  typedef Feed<K, V, HD, kFewHalves> F;
  static_assert(F::BYTES >= 4 * R::ROWS * R::PITCH, "a warp's sums take the place of its ring");
  extern __shared__ uint4 shared[];
  __shared__ Tops<R::ROWS> tops;
  const int lane = threadIdx.x % 32;
  const int last_row = (int)a.q.ne[2] * (int)a.group.divisor - 1;
  const int row0 = blockIdx.z * a.tile_rows, split = blockIdx.y;
  const Tile tile = {(int)blockIdx.x, row0, min(a.tile_rows, last_row - row0 + 1),
                     (int)(blockIdx.z * gridDim.x + blockIdx.x)};
  const int token0 = a.group.div(row0);
  const int n_tokens = a.group.div(row0 + tile.n_rows - 1) - token0 + 1;  // at most 16

  // Tokens of one sequence, and the keys that any of them sees. lanes: that have them.
  struct Run {
    u32 lanes;
    int seq;
    Span seen;
  };
  // A lane has a token. `todo`: the lanes whose tokens see something and are not done.
  const auto mine = [&]() { return lane < n_tokens ? token_at(a, token0 + lane) : Token{-1, -1}; };
  const auto seeing = [&](Token token) {
    const Span s = visible_to(a, token.pos);
    return __ballot_sync(kAllLanes, s.last >= s.first);
  };
  // The tokens of the sequence of the first of them.
  const auto next_run = [&](Token token, u32 todo) {
    const int seq = __shfl_sync(kAllLanes, token.seq, todo ? __ffs(todo) - 1 : 0);
    const u32 lanes = __ballot_sync(kAllLanes, token.seq == seq) & todo;
    const bool in = lanes >> lane & 1;
    const Span s = visible_to(a, token.pos);
    const int first = __reduce_min_sync(kAllLanes, in ? s.first : 0x7FFFFFFF);
    const int last = __reduce_max_sync(kAllLanes, in ? s.last : -1);
    return Run{lanes, seq, last < 0 ? Span{0, -1} : Span{first, last}};
  };
  const auto n_active_of = [&](Token token, u32 todo) {
    int n = 1;
    while (todo) {
      const Run run = next_run(token, todo);
      n = max(n, share_of(a, run.seen, 0).n_active);
      todo &= ~run.lanes;
    }
    return n;
  };

  F feed(reinterpret_cast<char*>(shared));
  Token token = {-1, -1};
  u32 todo = 0;
  Run run = {};
  Share keys = {};
  const auto open = [&]() {
    run = next_run(token, todo);
    keys = share_of(a, run.seen, split);
    feed.open(a, tile.kv_head, run.seq, run.seen, keys.begin, keys.end);
  };
  const auto none = [](F&) { return false; };

  launch_dependents();
  // Where the keys are is found while the kernels ahead finish, and looked at again after that.
  token = mine();
  todo = seeing(token);
  open();
  wait_for_previous();

  feed.start(a, none);
  const Token now = mine();
  const int pages_now = feed.page_of(a, feed.entry + lane);
  R rows;
  uint4 q[NT][HD / 32];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int c = 0; c < HD / 32; ++c) {
      q[n][c] = R::query(a, tile, 8 * n + lane / 4, 32 * c + 8 * (lane % 4));
    }
  }
  rows.slopes(a, tile);
  rows.begin();
  // What was read before the wait nearly always still holds, and then the keys are on their way.
  if (!__all_sync(kAllLanes, now == token && pages_now == feed.pages)) {
    copies_wait<0>();
    __syncwarp();
    feed = F(reinterpret_cast<char*>(shared));
    token = now;
    todo = seeing(token);
    open();
    feed.start(a, none);
  }
  const int n_active = n_active_of(token, todo);
  if (split >= n_active) return;

  while (todo) {
    int pos[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int from = tile.token_of(a, 8 * n + 2 * (lane % 4) + e) - token0;
        const int p = __shfl_sync(kAllLanes, token.pos, from);
        pos[n][e] = run.lanes >> from & 1 ? p : -1;
      }
    }
    rows.attend(a, feed, keys.begin, keys.end, pos, [&](int n, int c) { return q[n][c]; }, none);
    todo &= ~run.lanes;
    if (!todo) break;
    open();
    feed.start(a, none);
  }

  // A warp's sums lie where its ring was.
  rows.put(tile.n_rows, reinterpret_cast<float*>(feed.ring), tops);
  __syncthreads();
  for (int i = threadIdx.x; i < tile.n_rows * HD; i += 32 * kWarps) {
    const int row = i / HD, d = i % HD;
    const auto p = R::gather(reinterpret_cast<const char*>(shared), F::BYTES, tops, row, d);
    if (n_active == 1) {
      tile.output(a, row)[d] = p.weights > 0.0f ? p.sum / p.weights : 0.0f;
    } else {
      R::write(a, tile.slot, split, row, d, p);
    }
  }
  if (n_active == 1 || !arrives_last(tickets + tile.slot, n_active)) return;
  join(a, tile.slot, n_active, a.tile_rows, tile.n_rows, HD,
       [&](int row, int d, float y) { tile.output(a, row)[d] = y; });
}

constexpr int kListed = 32 * kWarps;  // tokens; LISTED of attention.py

struct Piece {
  Tile tile;
  Token token;
  Span seen;
  int split, splits_end, n_active, each;
};

// The same for tokens that are each alone in their sequence. A piece is some splits of a tile, and
// a block goes from piece to piece, the keys of the next being on their way. Which split has which
// keys, and in which order their parts are added, is as above, so the results have the same bits.
template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(32 * kWarps, NT == 1 ? 2 : 1)
    attention_decode_listed(const __grid_constant__ AttentionArgs a) {
  typedef Rows<K, HD, NT> R;
  typedef Feed<K, V, HD, kListedHalves> F;
  extern __shared__ uint4 shared[];
  __shared__ Tops<R::ROWS> tops;
  __shared__ Token tokens[kListed];
  __shared__ int ends[kListed], warp_sums[kWarps];
  __shared__ uint4 queries[R::ROWS][HD / 8 + 1];  // a row more than its elements: other banks
  __shared__ Piece p;                             // that the block is at
  // Of a tile that the block does alone, what the splits so far give: a row's largest score and
  // total weight, which change places with every split, and the sums, each of one thread.
  __shared__ float2 stats[2][R::ROWS];
  char* const sums = reinterpret_cast<char*>(shared) + kWarps * F::BYTES;
  const int lane = threadIdx.x % 32, group = a.group.divisor;
  const int n_kv_head = (int)a.k.ne[1], tiles = (group + a.tile_rows - 1) / a.tile_rows;
  const int slots = n_kv_head * tiles;  // of a token
  const int warp_bytes = 4 * R::PITCH * a.tile_rows;
  float* const folded = reinterpret_cast<float*>(sums + kWarps * warp_bytes);

  const auto splits_a_piece = [&](int each) { return max(a.piece / each, 1); };
  // Thread i has token i. ends: where a token's pieces end in the list.
  const auto mine = [&]() {
    return threadIdx.x < a.q.ne[2] ? token_at(a, threadIdx.x) : Token{-1, -1};
  };
  const auto list = [&](Token token) {
    int n = 0;
    if (threadIdx.x < a.q.ne[2]) {
      const Share s = share_of(a, visible_to(a, token.pos), 0);
      const int m = splits_a_piece(s.each);
      n = (s.n_active + m - 1) / m * slots;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, n, step);
      if (lane >= step) n += before;
    }
    if (lane == 31) warp_sums[warp_index()] = n;
    tokens[threadIdx.x] = token;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) n += w < warp_index() ? warp_sums[w] : 0;
    ends[threadIdx.x] = n;
    __syncthreads();
  };
  const auto piece_of = [&](int piece) {
    // Of tokens in eights, then of one in the eight: how many have only pieces before this one.
    const int eights = __popc(__ballot_sync(kAllLanes, ends[8 * lane + 7] <= piece));
    const u32 in_eight = __ballot_sync(kAllLanes, ends[8 * eights + lane % 8] <= piece);
    const int i = 8 * eights + __popc(in_eight & 255);
    const int at = piece - (i > 0 ? ends[i - 1] : 0);
    const int part = at / slots, slot = at - part * slots;
    const int tile = slot / n_kv_head, row = tile * a.tile_rows;
    Piece p;
    p.tile = {slot - tile * n_kv_head, i * group + row, min(a.tile_rows, group - row),
              i * slots + slot};
    p.token = tokens[i];
    p.seen = visible_to(a, p.token.pos);
    const Share s = share_of(a, p.seen, 0);
    const int m = splits_a_piece(s.each);
    p.n_active = s.n_active;
    p.each = s.each;
    p.split = part * m;
    p.splits_end = min(p.split + m, s.n_active);
    return p;
  };
  const auto begin_of = [&](const Piece& p, int split) {
    return (p.seen.first / kChunk + split * p.each) * kChunk;
  };
  const auto end_of = [&](const Piece& p, int split) {
    return min(begin_of(p, split), p.seen.last + 1);
  };

  F feed(reinterpret_cast<char*>(shared));
  int asked = blockIdx.x, n_pieces;
  const auto next = [&](F& f) {
    if (asked >= n_pieces) return false;
    const Piece piece = piece_of(asked);
    f.open(a, piece.tile.kv_head, piece.token.seq, piece.seen, begin_of(piece, piece.split),
           end_of(piece, piece.splits_end));
    asked += gridDim.x;
    return true;
  };

  // As above, the first keys are found before the wait, and asked for before it is known that what
  // was read still holds.
  launch_dependents();
  const Token before = mine();
  list(before);
  n_pieces = ends[kListed - 1];
  next(feed);
  const int pages_before = feed.pages;
  wait_for_previous();
  const Token now = mine();
  const int pages_now = feed.page_of(a, feed.entry + lane);
  feed.start(a, next);
  if (__syncthreads_or(!(now == before) || pages_now != pages_before)) {
    copies_wait<0>();
    list(now);
    n_pieces = ends[kListed - 1];
    asked = blockIdx.x;
    feed = F(reinterpret_cast<char*>(shared));
    feed.start(a, next);
  }

  for (int piece = blockIdx.x; piece < n_pieces; piece += gridDim.x) {
    R rows;
    {
      const Piece its = piece_of(piece);
      __syncthreads();  // the block is done with the piece before
      if (threadIdx.x == 0) p = its;
      for (int i = threadIdx.x; i < R::ROWS * HD / 8; i += 32 * kWarps) {
        const int row = i / (HD / 8), d = i % (HD / 8);
        queries[row][d] = R::query(a, its.tile, row, 8 * d);
      }
      rows.slopes(a, its.tile);
      __syncthreads();
    }
    const bool whole = p.split == 0 && p.splits_end == p.n_active;
    for (int split = p.split; split < p.splits_end; ++split) {
      int pos[NT][2];
#pragma unroll
      for (int n = 0; n < NT; ++n) pos[n][0] = pos[n][1] = p.token.pos;
      rows.begin();
      rows.attend(
          a, feed, begin_of(p, split), end_of(p, split + 1), pos,
          [&](int n, int c) { return queries[8 * n + lane / 4][4 * c + lane % 4]; }, next);
      __syncthreads();  // the sums before have been read
      rows.put(p.tile.n_rows, reinterpret_cast<float*>(sums + warp_index() * warp_bytes), tops);
      __syncthreads();
      for (int i = threadIdx.x; i < p.tile.n_rows * HD; i += 32 * kWarps) {
        const int row = i / HD, d = i % HD;
        const auto part = R::gather(sums, warp_bytes, tops, row, d);
        if (!whole) {
          R::write(a, p.tile.slot, split, row, d, part);
          continue;
        }
        Fold fold;
        if (split > 0) {
          const float2 so_far = stats[split % 2][row];
          fold.top = so_far.x, fold.sum = folded[i], fold.total = so_far.y;
        }
        fold.add(part.best, part.sum, part.weights);
        if (split + 1 == p.n_active) {
          p.tile.output(a, row)[d] = fold.value();
        } else {
          folded[i] = fold.sum;
          if (d == 0) stats[(split + 1) % 2][row] = make_float2(fold.top, fold.total);
        }
      }
    }
    if (whole) continue;
    const int m = splits_a_piece(p.each), pieces = (p.n_active + m - 1) / m;
    if (!arrives_last(tickets + p.tile.slot, pieces)) continue;
    join(a, p.tile.slot, p.n_active, a.tile_rows, p.tile.n_rows, HD,
         [&](int row, int d, float y) { p.tile.output(a, row)[d] = y; });
  }
}
