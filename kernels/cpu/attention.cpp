// attention: causal attention of many sequences over a KV cache in pages, with grouped heads and an
// online softmax over blocks of keys (Dao et al. 2022). A block of keys is a page, so finding it is
// one look-up.
//
// A piece of work is a tile: some tokens, some KV heads, and some of the query heads that share
// one. A tile's tokens are taken sequence by sequence. Keys and values are converted to floats
// once, block by block, for all rows (token, query head) of a sequence's tokens. A row takes every
// block it sees anything of in order, so its result is the same to the bit in any tile: prompt or
// single token, any batch, any number of threads.
#include <math.h>

#include <algorithm>

#include "cpu/alibi.h"
#include "cpu/attention_tile.h"

namespace {

struct attention_params {
  float scale, max_bias, softcap;
  int32_t window, n_single;
};

constexpr int64_t kMaxRows = 64;  // rows (token, query head) a tile
constexpr int64_t kFewRows = 8;   // rows a KV head
constexpr int64_t kStayingBytes = 16 << 10;

// How some neighbouring tokens are cut into tiles.
struct cut {
  int64_t first, n_tok;                   // these tokens
  int64_t tokens, kv_heads, heads;        // of a tile; heads a KV head
  int64_t kv_parts, head_parts, n_tiles;  // tiles beside each other in these dimensions; all tiles

  cut(int64_t first, int64_t n_tok, int64_t at_once, int64_t n_head_kv, int64_t group,
      int64_t n_wanted)
      : first(first), n_tok(n_tok) {
    // Many rows a KV head convert keys less often. With few tokens many KV heads are taken
    // together, for the heads of a key lie side by side and memory likes to be read in order.
    heads = std::max<int64_t>(1, std::min(group, kMaxRows));
    tokens = std::max<int64_t>(1, std::min(at_once, kMaxRows / heads));
    kv_heads = std::max<int64_t>(1, std::min(n_head_kv, kMaxRows / (heads * tokens)));
    const auto count = [&] {
      kv_parts = (n_head_kv + kv_heads - 1) / kv_heads;
      head_parts = (group + heads - 1) / heads;
      return kv_parts * head_parts * ((n_tok + tokens - 1) / tokens);
    };
    while (count() < n_wanted && kv_heads * tokens * heads > 1) {
      int64_t& side = kv_heads > 1 ? kv_heads : tokens > 1 ? tokens : heads;
      side = (side + 1) / 2;
    }
    n_tiles = count();
  }
};

// Shapes, tiles and the scratch of one thread.
struct layout {
  int64_t n_tok, n_head, n_head_kv, group, dk, dv;
  int64_t n_seqs, n_entries, n_pages;
  cut singles, others;
  int64_t kv, q, o, s, state, bytes;  // offsets in scratch, in bytes

  layout(const gf_op* op, int64_t n_threads)
      : n_tok(op->src[0].ne[2]),
        n_head(op->src[0].ne[1]),
        n_head_kv(op->src[1].ne[1]),
        group(n_head / std::max<int64_t>(n_head_kv, 1)),
        dk(vf_padded(op->src[0].ne[0])),
        dv(vf_padded(op->src[2].ne[0])),
        n_seqs(op->src[5].ne[1]),
        n_entries(op->src[5].ne[0]),
        n_pages(op->src[1].ne[2] / ATT_KEYS),
        singles(cut_singles(n_singles(op), n_threads)),
        others(cut_others(n_singles(op), n_threads)) {
    int64_t end = 0;
    const auto place = [&end](int64_t n_floats) {
      const int64_t at = end;
      end += (n_floats * int64_t{sizeof(float)} + 63) / 64 * 64;
      return at;
    };
    // Room for the largest tile: a run of fewer tokens than were reserved for may have it.
    kv = place(ATT_KEYS * std::max(dk, dv));
    q = place(kMaxRows * dk);
    o = place(kMaxRows * dv);
    s = place(kMaxRows * ATT_KEYS);
    state = place(2 * kMaxRows);
    bytes = end;
  }

  // For few rows what counts is that converted keys stay in the first-level cache until used: how
  // many of a block do.
  int64_t staying_keys() const {
    int64_t n = ATT_KEYS;
    while (n > kAttKeys && n * std::max(dk, dv) * int64_t{sizeof(float)} > kStayingBytes) n /= 2;
    return n;
  }

 private:
  int64_t n_singles(const gf_op* op) const {
    return std::min<int64_t>(gf_params<attention_params>(op).n_single, n_tok);
  }
  // Sequences differ in length: more tiles than threads even that out.
  cut cut_singles(int64_t n, int64_t n_threads) const {
    return {0, n, 1, n_head_kv, group, n > 1 ? 2 * n_threads : n_threads};
  }
  cut cut_others(int64_t first, int64_t n_threads) const {
    return {first, n_tok - first, n_tok - first, n_head_kv, group, n_threads};
  }
};

class Tile {
 public:
  Tile(const gf_op* op, const layout& l, unsigned char* scratch)
      : op_(op), l_(l), p_(gf_params<attention_params>(op)) {
    const auto floats = [scratch](int64_t at) { return reinterpret_cast<float*>(scratch + at); };
    kv_ = floats(l.kv);
    q_ = floats(l.q);
    o_ = floats(l.o);
    s_ = floats(l.s);
    state_ = reinterpret_cast<att_state*>(scratch + l.state);
  }

  // Late tokens of a prompt see most keys, so their tiles come first: the threads then end
  // together.
  void run(const cut& c, int64_t index) {
    const int64_t per_range = c.kv_parts * c.head_parts;
    const int64_t range = (c.n_tiles / per_range - 1) - index / per_range;
    const int64_t head_part = index % c.head_parts;
    const int64_t kv_part = index % per_range / c.head_parts;
    first_kv_ = kv_part * c.kv_heads;
    kv_heads_ = std::min(c.kv_heads, l_.n_head_kv - first_kv_);
    first_head_ = head_part * c.heads;
    heads_ = std::min(c.heads, l_.group - first_head_);
    chunk_ = c.tokens * c.heads <= kFewRows ? l_.staying_keys() : ATT_KEYS;

    first_ = c.first + range * c.tokens;
    const int64_t end = std::min(first_ + c.tokens, c.first + c.n_tok);
    for (; first_ < end; first_ += tokens_) {
      const int64_t seq = sequence(first_);
      for (tokens_ = 1; first_ + tokens_ < end && sequence(first_ + tokens_) == seq;) ++tokens_;
      run_sequence(seq);
    }
  }

 private:
  // Tokens first_ .. first_ + tokens_ - 1, all of one sequence.
  void run_sequence(int64_t seq) {
    gf_range keys = {l_.n_entries * ATT_KEYS, 0};
    const bool known = seq >= 0 && seq < l_.n_seqs;
    for (int64_t t = 0; known && t < tokens_; ++t) {
      const gf_range r = visible(t);
      if (r.begin >= r.end) continue;
      keys = {std::min(keys.begin, r.begin), std::max(keys.end, r.end)};
    }
    begin_rows();
    for (int64_t b = keys.begin / ATT_KEYS * ATT_KEYS; b < keys.end; b += ATT_KEYS) {
      page_ = page(seq, b / ATT_KEYS);
      if (page_ < 0) continue;
      next_page_ = b + ATT_KEYS < keys.end ? page(seq, b / ATT_KEYS + 1) : -1;
      for (int64_t g = 0; g < kv_heads_; ++g) {
        block(g, b, {std::max(b, keys.begin), std::min(b + ATT_KEYS, keys.end)});
      }
    }
    end_rows();
  }

  int64_t sequence(int64_t token) const {
    return static_cast<const int32_t*>(op_->src[4].data)[token];
  }

  int64_t position(int64_t t) const {
    return static_cast<const int32_t*>(op_->src[3].data)[first_ + t];
  }

  // The page of an entry of the sequence's table; -1 when there is none.
  int64_t page(int64_t seq, int64_t entry) const {
    const int64_t i = reinterpret_cast<const int32_t*>(gf_row_ptr(op_->src[5], {seq, 0, 0}))[entry];
    return i >= 0 && i < l_.n_pages ? i : -1;
  }

  // Keys that the tile's token t sees.
  gf_range visible(int64_t t) const {
    const int64_t pos = position(t);
    const int64_t begin = p_.window > 0 ? std::max<int64_t>(0, pos - p_.window + 1) : 0;
    return {begin, std::min(pos + 1, l_.n_entries * ATT_KEYS)};
  }

  // Calls f(row, head, token) for the rows of the tile; head and token index q and the result.
  template <typename F>
  void for_rows(F&& f) const {
    int64_t row = 0;
    for (int64_t g = 0; g < kv_heads_; ++g) {
      for (int64_t t = 0; t < tokens_; ++t) {
        for (int64_t h = 0; h < heads_; ++h) f(row++, head(g, h), first_ + t);
      }
    }
  }

  int64_t head(int64_t g, int64_t h) const { return (first_kv_ + g) * l_.group + first_head_ + h; }

  void begin_rows() {
    const gf_tensor& q = op_->src[0];
    const vf scale = vf_set(p_.scale);
    for_rows([&](int64_t row, int64_t h, int64_t t) {
      const auto* const x = reinterpret_cast<const float*>(gf_row_ptr(q, {h, t, 0}));
      float* const y = q_ + row * l_.dk;
      for (int64_t i = 0; i < q.ne[0]; i += VL) {
        vf_store(y + i, vf_load_to(x + i, q.ne[0] - i) * scale);
      }
      state_[row] = {-__builtin_huge_valf(), 0.0f};
    });
    std::memset(o_, 0, kv_heads_ * tokens_ * heads_ * l_.dv * sizeof(float));
  }

  // Adds the block of keys that begins at b, of which `keys` are visible, to the rows of KV head g.
  void block(int64_t g, int64_t b, gf_range keys) {
    const int64_t row0 = g * tokens_ * heads_;
    for_chunks(op_->src[1], g, b, keys, l_.dk, [&](int64_t row, int64_t n, gf_range c, int64_t at) {
      for_groups(n, [&](int64_t r, auto at_once) {
        att_scores<decltype(at_once)::value>(q_ + (row0 + row + r) * l_.dk, kv_,
                                             s_ + (row + r) * ATT_KEYS + at, l_.dk, c.begin, c.end);
      });
    });
    for (int64_t t = 0; t < tokens_; ++t) {
      const gf_range seen = visible_part(t, b, ATT_KEYS);
      if (seen.begin < seen.end) soft_max(g, t, b, seen);
    }
    for_chunks(op_->src[2], g, b, keys, l_.dv, [&](int64_t row, int64_t n, gf_range c, int64_t at) {
      for_groups(n, [&](int64_t r, auto at_once) {
        att_values<decltype(at_once)::value>(s_ + (row + r) * ATT_KEYS + at, kv_,
                                             o_ + (row0 + row + r) * l_.dv, l_.dv, c.begin, c.end);
      });
    });
  }

  // What token t sees of the n keys from `begin` on, counted from there.
  gf_range visible_part(int64_t t, int64_t begin, int64_t n) const {
    const gf_range r = visible(t);
    return {std::max<int64_t>(r.begin - begin, 0), std::min(r.end - begin, n)};
  }

  // Converts a block's rows of k or v chunk by chunk and calls f(first row, rows, part of the chunk
  // they see, where the chunk begins in the block). Neighbouring tokens that see the same part,
  // which is all of it for most, come together.
  template <typename F>
  void for_chunks(const gf_tensor& x, int64_t g, int64_t b, gf_range keys, int64_t width, F&& f) {
    for (int64_t at = (keys.begin - b) / chunk_ * chunk_; b + at < keys.end; at += chunk_) {
      const int64_t first = b + at;
      const gf_range inside = {std::max(first, keys.begin), std::min(first + chunk_, keys.end)};
      stage(x, g, inside.begin - b, inside.end - b, kv_ + (inside.begin - first) * width, width);
      for (int64_t t = 0; t < tokens_;) {
        const gf_range seen = visible_part(t, first, chunk_);
        int64_t next = t + 1;
        for (; next < tokens_; ++next) {
          const gf_range other = visible_part(next, first, chunk_);
          if (other.begin != seen.begin || other.end != seen.end) break;
        }
        if (seen.begin < seen.end) f(t * heads_, (next - t) * heads_, seen, at);
        t = next;
      }
    }
  }

  // Converts rows [begin, end) of the page, of k or v and the tile's KV head g, to floats.
  void stage(const gf_tensor& x, int64_t g, int64_t begin, int64_t end, float* to,
             int64_t width) const {
    const int64_t bytes = gf_row_bytes(x.type, x.ne[0]);
    const char* from = gf_row_ptr(x, {first_kv_ + g, page_ * ATT_KEYS + begin, 0});
    // The next block, to the second-level cache: its rows lie too far apart to be foreseen.
    const int64_t ahead = next_page_ < 0 ? 0 : (next_page_ - page_) * ATT_KEYS * x.nb[2];
    const auto rows = [&](int32_t type) {
      for (int64_t j = begin; j < end; ++j, from += x.nb[2], to += width) {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + ahead + i, 0, 2);
        att_stage_row(type, from, to, x.ne[0]);
      }
    };
    if (x.type == GF_F16) {  // the usual one: a loop of its own
      rows(GF_F16);
    } else {
      rows(x.type);
    }
  }

  // Scores of token t to weights; what the rows have gathered so far shrinks when the maximum
  // grows.
  void soft_max(int64_t g, int64_t t, int64_t b, gf_range seen) {
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t row = (g * tokens_ + t) * heads_ + h;
      float* const s = s_ + (t * heads_ + h) * ATT_KEYS;
      if (p_.softcap > 0.0f) cap(s);
      if (p_.max_bias > 0.0f) bias(s, head(g, h), seen, position(t) - b);
      const float shrink = att_soft_max(s, state_ + row, seen.begin, seen.end);
      if (shrink == 1.0f) continue;
      float* const o = o_ + row * l_.dv;
      gf_map_run(o, o, l_.dv, [f = vf_set(shrink)](vf v) { return v * f; });
    }
  }

  template <typename F>
  static void for_groups(int64_t n, F&& f) {
    int64_t r = 0;
    for (; r + kAttRows <= n; r += kAttRows) f(r, std::integral_constant<int, kAttRows>());
    for (; r < n; ++r) f(r, std::integral_constant<int, 1>());
  }

  void cap(float* s) const {
    const vf most = vf_set(p_.softcap), inverse = vf_set(1.0f / p_.softcap);
    for (int64_t j = 0; j < ATT_KEYS; j += VL) {
      vf_store(s + j, most * vf_tanh(vf_load(s + j) * inverse));
    }
  }

  // ALiBi; `distance` is how far back the block's first key lies.
  void bias(float* s, int64_t h, gf_range keys, int64_t distance) const {
    const float slope = gf_alibi_slope(h, l_.n_head, p_.max_bias);
    for (int64_t j = keys.begin; j < keys.end; ++j)
      s[j] -= slope * static_cast<float>(distance - j);
  }

  // What a row's values are multiplied by in the end. A sink is one more score, without a value.
  float share(const att_state& s, int64_t h) const {
    if (s.sum == 0.0f) return 0.0f;  // saw nothing: zeros
    if (op_->n_src < 7 || op_->src[6].data == nullptr) return 1.0f / s.sum;
    const float sink = static_cast<const float*>(op_->src[6].data)[h];
    if (sink <= s.max) return 1.0f / (s.sum + expf(sink - s.max));
    const float shrink = expf(s.max - sink);
    return shrink / (s.sum * shrink + 1.0f);
  }

  void end_rows() const {
    const int64_t n = op_->dst.ne[0];
    for_rows([&](int64_t row, int64_t h, int64_t t) {
      auto* const y = reinterpret_cast<float*>(gf_row_ptr(op_->dst, {h, t, 0}));
      const vf inverse = vf_set(share(state_[row], h));
      for (int64_t i = 0; i < n; i += VL) {
        vf_store_to(y + i, vf_load(o_ + row * l_.dv + i) * inverse, n - i);
      }
    });
  }

  const gf_op* op_;
  const layout& l_;
  const attention_params p_;
  float *kv_, *q_, *o_, *s_;
  att_state* state_;
  int64_t first_kv_ = 0, kv_heads_ = 0;  // KV heads
  int64_t first_head_ = 0, heads_ = 0;   // query heads within those of a KV head
  int64_t first_ = 0, tokens_ = 0;
  int64_t chunk_ = 0;                  // keys converted at once
  int64_t page_ = 0, next_page_ = -1;  // of the block; of the one after it, -1 when there is none
};

bool is_empty(const gf_op* op) { return gf_nelements(op->dst) == 0 || op->src[1].ne[1] == 0; }

}  // namespace

GF_KERNEL_SUPPORTS(attention) {
  const auto known = [](int32_t t) {
    return t == GF_F32 || t == GF_F16 || t == GF_BF16 || t == GF_Q8_0;
  };
  return known(op->src[1].type) && known(op->src[2].type);
}

GF_KERNEL_SCRATCH(attention) { return is_empty(op) ? 0 : layout(op, n_threads).bytes * n_threads; }

GF_KERNEL(attention) {
  if (is_empty(op)) return;
  const layout l(op, th->nth);
  Tile tile(op, l, th->scratch + th->ith * l.bytes);
  const int64_t n = l.others.n_tiles + l.singles.n_tiles;
  for (int64_t i = gf_steal(th); i < n; i = gf_steal(th)) {
    const bool single = i >= l.others.n_tiles;
    tile.run(single ? l.singles : l.others, single ? i - l.others.n_tiles : i);
  }
}
