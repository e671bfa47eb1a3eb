// attention for few tokens of a sequence ("flash decoding", Dao et al. 2023): a block takes a tile
// of rows and a split of their keys, where a row is a (token, head) of a KV head's group. Keys and
// values go from memory straight into the tensor cores' fragments; the cache is read once for all
// rows of a tile.
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

constexpr int kNear = 4;  // chunks brought into the second-level cache ahead of time

// NT: tiles of 8 rows. HD: head size of keys and values.
template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(32 * kWarps, 1)
    attention_decode(const __grid_constant__ AttentionArgs a) {
  constexpr int ROWS = 8 * NT;
  extern __shared__ float sums[];
  __shared__ Tops<ROWS> tops;
  const int lane = threadIdx.x % 32;
  const int last_row = (int)a.q.ne[2] * (int)a.group.divisor - 1;
  const int row0 = blockIdx.z * a.tile_rows, split = blockIdx.y;
  const Tile tile = {(int)blockIdx.x, row0, min(a.tile_rows, last_row - row0 + 1),
                     (int)(blockIdx.z * gridDim.x + blockIdx.x)};
  const int token0 = a.group.div(row0);
  const int n_tokens = a.group.div(row0 + tile.n_rows - 1) - token0 + 1;  // at most 16

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

  launch_dependents();
  // While the kernels ahead finish, the cache can come nearer. Should the positions read here be
  // old, other rows of the cache come, and nothing is lost.
  Token token = mine();
  u32 todo = seeing(token);
  Run run = next_run(token, todo);
  Share keys = share_of(a, run.seen, split);
  Group<K, V, HD> group;
  int page = page_of_group(a, run, keys, keys.begin + kKeys * warp_index());
  {
    int pages[kNear];
#pragma unroll
    for (int i = 0; i < kNear; ++i) {
      const int j = keys.begin + i * kChunk + kKeys * warp_index();
      pages[i] = i == 0 ? page : page_of_group(a, run, keys, j);
    }
#pragma unroll
    for (int i = 0; i < kNear; ++i) {
      const int j = keys.begin + i * kChunk + kKeys * warp_index();
      group.ask(a, tile.kv_head, pages[i], j, run.seen.last);
    }
  }
  wait_for_previous();

  Rows<K, HD, NT> rows;
  uint4 q[NT][HD / 32];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int c = 0; c < HD / 32; ++c) {
      q[n][c] = rows.query(a, tile, 8 * n + lane / 4, 32 * c + 8 * (lane % 4));
    }
  }
  rows.begin(a, tile);
  int j = keys.begin + kKeys * warp_index();
  group.load(a, tile.kv_head, page, j, run.seen);
  // What was read before the wait nearly always still holds, and then the keys are on their way.
  const Token now = mine();
  const int page_now = page_of_group(a, run, keys, j);
  if (!__all_sync(kAllLanes, now == token && page_now == page)) {
    token = now;
    todo = seeing(token);
    run = next_run(token, todo);
    keys = share_of(a, run.seen, split);
    j = keys.begin + kKeys * warp_index();
    page = page_of_group(a, run, keys, j);
    group.load(a, tile.kv_head, page, j, run.seen);
  }
  const int n_active = n_active_of(token, todo);
  if (split >= n_active) return;

  while (todo) {
    int pos[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = min(8 * n + 2 * (lane % 4) + e, tile.n_rows - 1);
        const int from = a.group.div(row0 + row) - token0;
        const int p = __shfl_sync(kAllLanes, token.pos, from);
        pos[n][e] = run.lanes >> from & 1 ? p : -1;
      }
    }
    rows.attend(a, tile.kv_head, run, keys, pos, page, group,
                [&](int n, int c) { return q[n][c]; });
    todo &= ~run.lanes;
    if (!todo) break;
    run = next_run(token, todo);
    keys = share_of(a, run.seen, split);
    j = keys.begin + kKeys * warp_index();
    page = page_of_group(a, run, keys, j);
    group.load(a, tile.kv_head, page, j, run.seen);
  }
  rows.finish(a, tile, split, n_active, sums, tops);
}

constexpr int kListed = 32 * kWarps;  // tokens; LISTED of attention.py

// The same for tokens that are each alone in their sequence. Which split has which keys is decided
// as above, so the results have the same bits.
template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(32 * kWarps, NT == 1 ? 2 : 1)
    attention_decode_listed(const __grid_constant__ AttentionArgs a) {
  constexpr int ROWS = 8 * NT;
  extern __shared__ float sums[];
  __shared__ Tops<ROWS> tops;
  __shared__ uint4 queries[ROWS][HD / 8 + 1];  // a row more than its elements: other banks
  __shared__ Token tokens[kListed];
  __shared__ int ends[kListed], warp_sums[kWarps];
  const int lane = threadIdx.x % 32, group = a.group.divisor;
  const int n_kv_head = (int)a.k.ne[1], tiles = (group + a.tile_rows - 1) / a.tile_rows;
  const int slots = n_kv_head * tiles;  // of a token

  // Thread i has token i. `end`: where its pieces end in the list, a piece being a split of a slot.
  const auto mine = [&]() {
    return threadIdx.x < a.q.ne[2] ? token_at(a, threadIdx.x) : Token{-1, -1};
  };
  int end;
  const auto list = [&](Token token) {
    int n = threadIdx.x < a.q.ne[2] ? share_of(a, visible_to(a, token.pos), 0).n_active * slots : 0;
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
    ends[threadIdx.x] = end = n;
    __syncthreads();
  };
  // Of which token a piece is; kListed behind the end. A barrier for the block.
  const auto token_of = [&](int piece) { return __syncthreads_count(end <= piece); };
  struct Piece {
    Tile tile;
    int split;
    Run run;
    Share keys;
  };
  const auto piece_of = [&](int piece, int i) {
    const int at = piece - (i > 0 ? ends[i - 1] : 0);
    const int split = at / slots, slot = at - split * slots;
    const int part = slot / n_kv_head, row = part * a.tile_rows;
    const Token token = tokens[i];
    const Run run = {1, token.seq, visible_to(a, token.pos)};
    return Piece{
        {slot - part * n_kv_head, i * group + row, min(a.tile_rows, group - row), i * slots + slot},
        split,
        run,
        share_of(a, run.seen, split)};
  };
  const auto first_page = [&](const Piece& p) {
    return page_of_group(a, p.run, p.keys, p.keys.begin + kKeys * warp_index());
  };
  Group<K, V, HD> keys;
  const auto ask = [&](const Piece& p, int page) {
    keys.ask(a, p.tile.kv_head, page, p.keys.begin + kKeys * warp_index(), p.run.seen.last);
  };

  launch_dependents();
  const Token before = mine();
  list(before);
  int piece = blockIdx.x, i = token_of(piece);
  if (i < kListed) {
    const Piece p = piece_of(piece, i);
    ask(p, first_page(p));
  }
  wait_for_previous();
  const Token now = mine();
  if (__syncthreads_or(!(now == before))) {
    list(now);
    i = token_of(piece);
  }
  int page = i < kListed ? first_page(piece_of(piece, i)) : -1;

  while (i < kListed) {
    const int next_piece = piece + gridDim.x;
    int next, next_page;
    Rows<K, HD, NT> rows;
    {
      const Piece p = piece_of(piece, i);
      keys.load(a, p.tile.kv_head, page, p.keys.begin + kKeys * warp_index(), p.run.seen);
      for (int r = threadIdx.x; r < ROWS * HD / 8; r += 32 * kWarps) {
        const int row = r / (HD / 8), d = r % (HD / 8);
        queries[row][d] = rows.query(a, p.tile, row, 8 * d);
      }
      next = token_of(next_piece);  // and all are done with the piece before, and have the queries
      next_page = next < kListed ? first_page(piece_of(next_piece, next)) : -1;
      rows.begin(a, p.tile);
      int pos[NT][2];
#pragma unroll
      for (int n = 0; n < NT; ++n) pos[n][0] = pos[n][1] = tokens[i].pos;
      rows.attend(a, p.tile.kv_head, p.run, p.keys, pos, page, keys,
                  [&](int n, int c) { return queries[8 * n + lane / 4][4 * c + lane % 4]; });
    }
    if (next < kListed) ask(piece_of(next_piece, next), next_page);
    const Piece p = piece_of(piece, i);  // again, for it takes registers
    rows.finish(a, p.tile, p.split, p.keys.n_active, sums, tops);
    piece = next_piece;
    i = next;
    page = next_page;
  }
}
