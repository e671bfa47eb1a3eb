// attention for tokens of the single class, one or few of a sequence ("flash decoding", Dao et al.
// 2023): a block takes a tile of heads that read one KV head and a split of the token's keys.
//
// Scores are computed transposed, [16 keys, 8 rows] = K [16, hd] Q^T, and so is the sum,
// [16 dims, 8 rows] = V^T [16, 16 keys] P^T: with rows as the narrow side few of them are wasted.
// The order of a product's inner dimension is free, so each thread takes 16 bytes of a key as what
// two products want of it, and the order of dims within the result is free for the values.
//
// The keys before those of a sequence's tokens are those of earlier runs: blocks ask for them while
// the kernels ahead finish. Positions and tables read that early are looked at again afterwards.
// Little shared memory and few registers let a block start beside those of other kernels, and
// little code lets it be there in time: most of it runs once.
//
// Beside tokens of prompts, for which there is a launch before this one, blocks wait for that one
// only in the end: it was over with what came before it when it let this one start.
//
// One token has a block for each split; several have a list of pieces that blocks go through. Which
// split has which keys, and in which order parts are added, is the same, and so are the bits.
#include "cuda/attention_decode.cuh"

constexpr int kAlone = 4,
              kLeast = 2;  // of splits_of: a ring holds the keys of two chunks at most

// So that the launch after this one finds done what came before it.
struct WaitAtEnd {
  bool needed;

  __device__ __forceinline__ explicit WaitAtEnd(bool needed) : needed(needed) {}
  __device__ __forceinline__ ~WaitAtEnd() {
    if (needed) wait_for_previous();
  }
};

// Of a multiprocessor.
template <int HD, int NT>
constexpr int kBlocks = NT == 1 && HD <= 128 ? 2 : 1;

// NT: tiles of 8 rows. HD: head size of keys and values. Of one token. LATE: the launch after this
// one begins when those before this one have ended, whose results it may read before this one ends.
// DEPTH: groups that a warp has on their way; with more the block starts later beside others.
template <class K, class V, int HD, int NT, bool LATE = false, int DEPTH = kDepth<K, V, HD>>
__global__ void __launch_bounds__(32 * kWarps, kBlocks<HD, NT>)
    attention_decode(const __grid_constant__ AttentionArgs a) {
  typedef Rows<K, HD, NT> R;
  typedef Feed<K, V, HD, DEPTH> F;
  // A warp's sums take the place of its ring.
  constexpr int WARP_BYTES = larger(F::BYTES, 4 * R::ROWS * R::PITCH);
  extern __shared__ uint4 shared[];
  __shared__ Tops<R::ROWS> tops;
  __shared__ typename R::Queries queries;
  const int lane = threadIdx.x % 32, split = blockIdx.y;
  const int group = (int)a.group.divisor, row0 = blockIdx.z * a.tile_rows;
  const Tile tile = {0, (int)blockIdx.x * group + row0, min(a.tile_rows, group - row0),
                     (int)(blockIdx.z * gridDim.x + blockIdx.x)};
  char* const sums = reinterpret_cast<char*>(shared);
  const auto none = [](F&) { return false; };

  if (!LATE) launch_dependents();
  R rows;
  rows.slopes(a, tile);
  rows.begin();
  F feed(sums + warp_index() * WARP_BYTES);
  Token token = token_at(a, 0);
  token.pos = __shfl_sync(kAllLanes, token.pos, 0);  // while it may change
  token.seq = __shfl_sync(kAllLanes, token.seq, 0);
  Splits splits;
  int begin, end;
#pragma unroll 1
  for (;;) {
    const Span seen = visible_to(a, token.pos);
    splits = splits_of<kAlone, kLeast>(a, seen);
    begin = splits.begin(split), end = splits.end(split, seen);
    feed.open(a, blockIdx.x, token.seq, seen, begin, end);
    const int pages_before = feed.pages;
    Token now;
    int pages_now;
    feed.start(a, none, token.pos, [&]() {
      if (!a.beside) wait_for_previous();
      now = token_at(a, 0);
      pages_now = feed.page_of(a, feed.entry + lane);
    });
    R::load(a, tile, queries);
    if (!__syncthreads_or(!(now == token) || pages_now != pages_before)) break;
    copies_wait<0>();
    feed = F(feed.ring);
    token = now;
  }
  if (LATE) launch_dependents();
  const WaitAtEnd end_of_prompts(a.beside);
  if (split >= splits.n) return;

  rows.attend(a, feed, begin, end, token.pos, queries, none);
  rows.put(tile.n_rows, reinterpret_cast<float*>(feed.ring), tops);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < tile.n_rows * HD; i += 32 * kWarps) {
    const int row = i / HD, d = i % HD;
    const auto p = R::gather(sums, WARP_BYTES, tops, row, d);
    if (splits.n == 1) {
      tile.output(a, row)[d] = p.value(a, tile.head_of(row));
    } else {
      R::write(a, tile.slot, split, row, d, p);
    }
  }
  if (splits.n == 1 || !arrives_last(tickets + tile.slot, splits.n)) return;
  join(
      a, tile.slot, splits.n, a.tile_rows, tile.n_rows, HD,
      [&](int row) { return tile.head_of(row); },
      [&](int row, int d, float y) { tile.output(a, row)[d] = y; });
}

constexpr int kListed = 32 * kWarps;  // tokens; LISTED of attention.py
constexpr int kPiece = 8;             // chunks that a block takes together, at most

// Some splits of a tile. whole: all of them.
struct Piece {
  Tile tile;
  int kv_head, pos, seq, old;
  Span seen;
  Splits splits;
  int split, splits_end, n_pieces;  // of the tile

  __device__ __forceinline__ bool whole() const { return n_pieces == 1; }
};

// A listed token: where it stands, and how its splits are shared among 2^shift pieces.
struct Listed {
  int pos, seq;
  unsigned short each, shift;  // chunks of a split; splits of a piece, as a power of two
  int n;                       // splits
  int old;                     // the keys before this one are those of earlier runs
};

// The same for several tokens. A block goes from piece to piece, the keys of the next being on
// their way.
template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(32 * kWarps, kBlocks<HD, NT>)
    attention_decode_listed(const __grid_constant__ AttentionArgs a) {
  typedef Rows<K, HD, NT> R;
  typedef Feed<K, V, HD> F;
  extern __shared__ uint4 shared[];
  __shared__ Tops<R::ROWS> tops;
  __shared__ Listed tokens[kListed];
  __shared__ int ends[kListed];
  // Read by fours: without the alignment, with a number that others write beside them.
  __shared__ alignas(16) int warp_sums[kWarps];
  __shared__ int oldest[kListed];  // token of the sequences that have this remainder
  __shared__ typename R::Queries queries;
  __shared__ Piece p;  // that the block is at
  // Of a tile that the block does alone, what the splits so far give: a row's largest score and
  // total weight, which change places with every split, and the sums, each of one thread.
  __shared__ float2 stats[2][R::ROWS];
  char* const sums = reinterpret_cast<char*>(shared) + kWarps * F::BYTES;
  const int lane = threadIdx.x % 32, group = (int)a.group.divisor;
  const int n_kv_head = (int)a.k.ne[1];
  const int warp_bytes = 4 * R::PITCH * a.tile_rows;
  float* const folded = reinterpret_cast<float*>(sums + kWarps * warp_bytes);

  // Thread i has token i.
  const bool has_token = threadIdx.x < a.q.ne[2];
  const auto mine = [&]() { return has_token ? token_at(a, threadIdx.x) : Token{-1, -1}; };
  // The sum of the warps before this one, of what each of them brings, and of all of them.
  const auto sum_warps = [&](int n, int& all) {
    __syncthreads();
    if (lane == 31) warp_sums[warp_index()] = n;
    __syncthreads();
    int before = 0;
    all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int sum = warp_sums[w];
      before += w < warp_index() ? sum : 0;
      all += sum;
    }
    return before;
  };
  // Fills tokens and ends, which says where a token's pieces end in the list; returns its length.
  const auto list = [&](Token token) {
    const Splits s = splits_of<kAlone, kLeast>(a, visible_to(a, token.pos));
    oldest[threadIdx.x] = 0x7FFFFFFF;
    int chunks;  // of all tokens and their slots: pieces are as long as leaves some for each block
    sum_warps(__reduce_add_sync(kAllLanes, has_token ? s.n * s.each : 0), chunks);
    const int most = min((int)(chunks * a.slots.divisor / gridDim.x), kPiece);
    int shift = 0;
    while (1 << shift < s.n && s.each << (shift + 1) <= most) ++shift;
    if (token.seq >= 0) atomicMin(&oldest[token.seq % kListed], token.pos);
    int n = has_token ? ((s.n + (1 << shift) - 1) >> shift) * (int)a.slots.divisor : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, n, step);
      if (lane >= step) n += before;
    }
    int all;
    n += sum_warps(n, all);
    const int old = a.early && token.seq >= 0 ? oldest[token.seq % kListed] : 0;
    tokens[threadIdx.x] = {token.pos, token.seq, (unsigned short)s.each, (unsigned short)shift,
                           s.n,       old};
    ends[threadIdx.x] = n;
    __syncthreads();
    return all;
  };
  const auto piece_of = [&](int piece) {
    // Of tokens in eights, then of one in the eight: how many have only pieces before this one.
    const int eights = __popc(__ballot_sync(kAllLanes, ends[8 * lane + 7] <= piece));
    const u32 in_eight = __ballot_sync(kAllLanes, ends[8 * eights + lane % 8] <= piece);
    const int i = 8 * eights + __popc(in_eight & 255);
    const int at = piece - (i > 0 ? ends[i - 1] : 0);
    const int part = a.slots.div(at), slot = at - part * (int)a.slots.divisor;
    const int row = slot / n_kv_head * a.tile_rows;
    const Listed token = tokens[i];
    Piece p;
    p.kv_head = slot % n_kv_head;
    p.tile = {i, p.kv_head * group + row, min(a.tile_rows, group - row),
              i * (int)a.slots.divisor + slot};
    p.pos = token.pos;
    p.seq = token.seq;
    p.old = token.old;
    p.seen = visible_to(a, token.pos);
    p.splits = {p.seen.first / kChunk, token.each, token.n};
    p.split = part << token.shift;
    p.splits_end = min(p.split + (1 << token.shift), token.n);
    p.n_pieces = (token.n + (1 << token.shift) - 1) >> token.shift;
    return p;
  };

  F feed(reinterpret_cast<char*>(shared) + warp_index() * F::BYTES);
  int asked, n_pieces;
  const auto open = [&](F& f, const Piece& piece) {
    f.open(a, piece.kv_head, piece.seq, piece.seen, piece.splits.begin(piece.split),
           piece.splits.end(piece.splits_end - 1, piece.seen));
    asked += gridDim.x;
  };
  const auto next = [&](F& f) {
    if (asked >= n_pieces) return false;
    open(f, piece_of(asked));
    return true;
  };

  launch_dependents();
  Token token = mine();
#pragma unroll 1
  for (;;) {
    n_pieces = list(token);
    asked = blockIdx.x;
    Piece its = {};
    if (asked < n_pieces) {
      its = piece_of(asked);
      if (threadIdx.x == 0) p = its;
      open(feed, its);
    }
    const int pages_before = feed.pages;
    Token now;
    int pages_now;
    feed.start(a, next, its.old, [&]() {
      if (!a.beside) wait_for_previous();
      now = mine();
      pages_now = feed.page_of(a, feed.entry + lane);
    });
    if (blockIdx.x < n_pieces) R::load(a, its.tile, queries);
    if (!__syncthreads_or(!(now == token) || pages_now != pages_before)) break;
    copies_wait<0>();
    feed = F(feed.ring);
    token = now;
  }

  // A result; of whole warps, of which each has 32 neighbours.
  const auto put = [&](const Tile& tile, int row, int d, float y) {
    tile.output(a, row)[d] = y;
    if constexpr (HD % 32 == 0) {
      const int block = ((tile.head + row) * HD + d) / 32;
      if (a.next.to) put_element(a.next, block, tile.token, y);
      if (a.next_floats.to) put_element(a.next_floats, block, tile.token, y);
    }
  };
  const WaitAtEnd end_of_prompts(a.beside);
#pragma unroll 1
  for (int piece = blockIdx.x; piece < n_pieces; piece += gridDim.x) {
    if (piece != blockIdx.x) {
      const Piece its = piece_of(piece);
      __syncthreads();  // the block is done with the piece before
      if (threadIdx.x == 0) p = its;
      R::load(a, its.tile, queries);
      __syncthreads();
    }
    R rows;
    rows.slopes(a, p.tile);
#pragma unroll 1
    for (int split = p.split; split < p.splits_end; ++split) {
      rows.begin();
      rows.attend(a, feed, p.splits.begin(split), p.splits.end(split, p.seen), p.pos, queries,
                  next);
      if (split > p.split) __syncthreads();  // the sums before have been read
      rows.put(p.tile.n_rows, reinterpret_cast<float*>(sums + warp_index() * warp_bytes), tops);
      __syncthreads();
#pragma unroll 1
      for (int i = threadIdx.x; i < p.tile.n_rows * HD; i += 32 * kWarps) {
        const int row = i / HD, d = i % HD;
        const auto part = R::gather(sums, warp_bytes, tops, row, d);
        if (!p.whole()) {
          R::write(a, p.tile.slot, split, row, d, part);
          continue;
        }
        if (p.splits.n == 1) {
          put(p.tile, row, d, part.value(a, p.tile.head_of(row)));
          continue;
        }
        Fold fold;
        if (split > 0) {
          const float2 so_far = stats[split % 2][row];
          fold.top = so_far.x, fold.sum = folded[i], fold.total = so_far.y;
        }
        fold.add(part.best, part.sum, part.weights);
        if (split + 1 == p.splits.n) {
          put(p.tile, row, d, fold.value(a, p.tile.head_of(row)));
        } else {
          folded[i] = fold.sum;
          if (d == 0) stats[(split + 1) % 2][row] = make_float2(fold.top, fold.total);
        }
      }
    }
    if (p.whole() || !arrives_last(tickets + p.tile.slot, p.n_pieces)) continue;
    join(
        a, p.tile.slot, p.splits.n, a.tile_rows, p.tile.n_rows, HD,
        [&](int row) { return p.tile.head_of(row); },
        [&](int row, int d, float y) { put(p.tile, row, d, y); });
  }
}
