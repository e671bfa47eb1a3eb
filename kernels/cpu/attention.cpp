// attention: causal attention over a KV cache with grouped heads, an online softmax over blocks of
// keys (Dao et al. 2022).
//
// A piece of work is a tile: some tokens, some KV heads, and some of the query heads that share
// one. Keys and values are converted to floats once, block by block, for all rows (token, query
// head) of the tile. Blocks begin at multiples of ATT_KEYS from key 0, and a row takes every block
// it sees anything of in order, so its result is the same to the bit in any tile: prompt or single
// token, any number of threads.
#include <algorithm>

#include "cpu/alibi.h"
#include "cpu/attention_tile.h"

namespace {

struct attention_params {
  float scale, max_bias, softcap;
  int32_t window;
};

constexpr int64_t kMaxRows = 64;  // rows (token, query head) a tile
constexpr int64_t kFewRows = 8;   // rows a KV head
constexpr int kRowsAtOnce = VL >= 16 ? 4 : VL >= 8 ? 2 : 1;

// Shapes, the size of tiles and the scratch of one thread.
struct layout {
  int64_t n_tok, n_head, n_head_kv, group, dk, dv, n_ctx;
  int64_t tokens, kv_heads, heads;            // of a tile; heads a KV head
  int64_t kv_parts, head_parts, n_tiles = 0;  // tiles beside each other in these dimensions; all
  int64_t chunk;                              // keys converted at once
  int64_t kv = 0, q = 0, o = 0, s = 0, state = 0, bytes = 0;  // offsets in scratch, in bytes

  layout(const gf_op* op, int64_t n_threads) {
    if (gf_nelements(op->dst) == 0 || op->src[1].ne[1] == 0) return;  // no tiles
    n_tok = op->src[0].ne[2];
    n_head = op->src[0].ne[1];
    n_head_kv = op->src[1].ne[1];
    n_ctx = op->src[1].ne[2];
    group = n_head / n_head_kv;
    dk = vf_padded(op->src[0].ne[0]);
    dv = vf_padded(op->src[2].ne[0]);
    // Many rows a KV head convert keys less often. With few tokens many KV heads are taken
    // together, for the heads of a key lie side by side and memory likes to be read in order.
    heads = std::min(group, kMaxRows);
    tokens = std::max<int64_t>(1, std::min(n_tok, kMaxRows / heads));
    kv_heads = std::min(n_head_kv, kMaxRows / (heads * tokens));
    const auto count = [this] {
      kv_parts = (n_head_kv + kv_heads - 1) / kv_heads;
      head_parts = (group + heads - 1) / heads;
      return kv_parts * head_parts * ((n_tok + tokens - 1) / tokens);
    };
    while (count() < n_threads && kv_heads * tokens * heads > 1) {  // something for every thread
      int64_t& side = kv_heads > 1 ? kv_heads : tokens > 1 ? tokens : heads;
      side = (side + 1) / 2;
    }
    n_tiles = count();
    const int64_t rows = kv_heads * tokens * heads;
    int64_t end = 0;
    const auto place = [&end](int64_t n_floats) {
      const int64_t at = end;
      end += (n_floats * int64_t{sizeof(float)} + 63) / 64 * 64;
      return at;
    };
    // For few rows what counts is that converted keys stay in the first-level cache until used.
    chunk = tokens * heads <= kFewRows ? ATT_KEYS / 4 : ATT_KEYS;
    kv = place(chunk * std::max(dk, dv));
    q = place(rows * dk);
    o = place(rows * dv);
    s = place(tokens * heads * ATT_KEYS);
    state = place(2 * rows);
    bytes = end;
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

  // Late tokens see most keys, so their tiles come first: the threads then end together.
  void run(int64_t index) {
    const int64_t per_range = l_.kv_parts * l_.head_parts;
    const int64_t range = (l_.n_tiles / per_range - 1) - index / per_range;
    const int64_t head_part = index % l_.head_parts;
    const int64_t kv_part = index % per_range / l_.head_parts;
    first_kv_ = kv_part * l_.kv_heads;
    kv_heads_ = std::min(l_.kv_heads, l_.n_head_kv - first_kv_);
    first_head_ = head_part * l_.heads;
    heads_ = std::min(l_.heads, l_.group - first_head_);
    first_ = range * l_.tokens;
    tokens_ = std::min(l_.tokens, l_.n_tok - first_);

    gf_range keys = {l_.n_ctx, 0};
    for (int64_t t = 0; t < tokens_; ++t) {
      const gf_range r = visible(t);
      if (r.begin >= r.end) continue;
      keys = {std::min(keys.begin, r.begin), std::max(keys.end, r.end)};
    }
    begin_rows();
    for (int64_t b = keys.begin / ATT_KEYS * ATT_KEYS; b < keys.end; b += ATT_KEYS) {
      for (int64_t g = 0; g < kv_heads_; ++g) {
        block(g, b, {std::max(b, keys.begin), std::min(b + ATT_KEYS, keys.end)});
      }
    }
    end_rows();
  }

 private:
  int64_t position(int64_t t) const {
    return static_cast<const int32_t*>(op_->src[3].data)[first_ + t];
  }

  // Keys that the tile's token t sees.
  gf_range visible(int64_t t) const {
    const int64_t pos = position(t);
    const int64_t begin = p_.window > 0 ? std::max<int64_t>(0, pos - p_.window + 1) : 0;
    return {begin, std::min(pos + 1, l_.n_ctx)};
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
    for (int64_t at = (keys.begin - b) / l_.chunk * l_.chunk; b + at < keys.end; at += l_.chunk) {
      const int64_t first = b + at;
      const gf_range inside = {std::max(first, keys.begin), std::min(first + l_.chunk, keys.end)};
      stage(x, g, inside, kv_ + (inside.begin - first) * width, width);
      for (int64_t t = 0; t < tokens_;) {
        const gf_range seen = visible_part(t, first, l_.chunk);
        int64_t next = t + 1;
        for (; next < tokens_; ++next) {
          const gf_range other = visible_part(next, first, l_.chunk);
          if (other.begin != seen.begin || other.end != seen.end) break;
        }
        if (seen.begin < seen.end) f(t * heads_, (next - t) * heads_, seen, at);
        t = next;
      }
    }
  }

  // Converts rows of k or v of the tile's KV head g to floats.
  void stage(const gf_tensor& x, int64_t g, gf_range keys, float* to, int64_t width) const {
    const int64_t bytes = gf_row_bytes(x.type, x.ne[0]);
    const char* from = gf_row_ptr(x, {first_kv_ + g, keys.begin, 0});
    for (int64_t j = keys.begin; j < keys.end; ++j, from += x.nb[2], to += width) {
      // The next block, to the second-level cache: its rows lie too far apart to be foreseen.
      for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(from + ATT_KEYS * x.nb[2] + i, 0, 2);
      }
      att_stage_row(x.type, from, to, x.ne[0]);
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
    for (; r + kRowsAtOnce <= n; r += kRowsAtOnce) f(r, std::integral_constant<int, kRowsAtOnce>());
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

  void end_rows() const {
    const int64_t n = op_->dst.ne[0];
    for_rows([&](int64_t row, int64_t h, int64_t t) {
      auto* const y = reinterpret_cast<float*>(gf_row_ptr(op_->dst, {h, t, 0}));
      const float sum = state_[row].sum;
      const vf inverse = vf_set(sum == 0.0f ? 0.0f : 1.0f / sum);  // saw nothing: zeros
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
};

}  // namespace

GF_KERNEL_SUPPORTS(attention) {
  const auto known = [](int32_t t) {
    return t == GF_F32 || t == GF_F16 || t == GF_BF16 || t == GF_Q8_0;
  };
  return known(op->src[1].type) && known(op->src[2].type);
}

GF_KERNEL_SCRATCH(attention) {
  int64_t most = 0;  // fewer threads may run the op than there are, with larger tiles
  for (int32_t n = 1; n <= n_threads; ++n) most = std::max(most, layout(op, n).bytes * n);
  return most;
}

GF_KERNEL(attention) {
  const layout l(op, th->nth);
  Tile tile(op, l, th->scratch + th->ith * l.bytes);
  for (int64_t i = gf_steal(th); i < l.n_tiles; i = gf_steal(th)) tile.run(i);
}
