// mul_mat_id: each row of x times the matrices that its ids name, the experts of a layer.
//
// The pairs (row, id) are sorted by expert. An expert's pairs are the columns of a product of its
// own, cut into tiles as those of mul_mat are and computed by the same inner kernels: a pair's
// result does not depend on which others go to its expert. Only the weights of experts that
// somebody goes to are read.
#include <algorithm>

#include "cpu/mul_mat_plan.h"
#include "cpu/packed.h"

namespace gf {
namespace {

constexpr int64_t kChunkBytes = 192 << 10;  // of weights, to stay in the second-level cache

// How the op is laid out. Every thread sorts the pairs for itself, in scratch of its own: there are
// few of them.
struct IdPlan {
  const gf_op* op;
  const gf_tensor &w, &x, &ids, &dst;
  Weight weight;
  int64_t k, n, n_experts, used, n_pairs, n_groups;
  bool own_rows;  // x has a row for each id
  int64_t acts_bytes = 0, copy_bytes = 0;
  int32_t* starts = nullptr;  // [n_experts + 1] where an expert's pairs begin
  int32_t* pairs = nullptr;   // [n_pairs] by expert; pair = row * used + j

  explicit IdPlan(const gf_op* o)
      : op(o),
        w(o->src[0]),
        x(o->src[1]),
        ids(o->src[2]),
        dst(o->dst),
        k(w.ne[0]),
        n(w.ne[1]),
        n_experts(w.ne[2]),
        used(dst.ne[1]),
        n_pairs(dst.ne[1] * dst.ne[2]),
        n_groups((n + kRows - 1) / kRows),
        own_rows(x.ne[1] == dst.ne[1] && x.ne[2] == dst.ne[2]) {
    weight = read_weight(w, n_pairs);
    if (const GridType* grid = find_grid_type(w.type)) {
      weight = {};
      weight.t = &w;
      weight.grid = grid;
    }
    if (weight
            .packs) {  // one expert alone, as mul_mat would take it: its rows are read as they are
      weight = {};
      const FloatType f = float_type(w.type);
      weight.t = &w;
      weight.kernel = f.on_copy;
      weight.convert = f.convert;
      weight.copy_bytes = f.copy_bytes;
    }
    if (weight.quantizes_x()) {
      acts_bytes = round_up(n_pairs * (k / 32) * kActBlockBytes, 64);
    } else if (weight.rounds_x) {
      acts_bytes = n_pairs * bf16_column_bytes();
    }
    if (weight.convert) copy_bytes = round_up(kRows * copied_row_bytes(), 64);
  }

  int64_t bf16_column_bytes() const { return spread(round_up(k, 32) * 2); }
  int64_t copied_row_bytes() const { return spread(k * weight.copy_bytes); }
  int64_t sort_bytes() const { return round_up((n_pairs + n_experts + 1) * 4, 64); }
  int64_t scratch(int n_threads) const {
    return acts_bytes + (sort_bytes() + copy_bytes) * n_threads;
  }

  int32_t id(int64_t pair) const {
    return reinterpret_cast<const int32_t*>(gf_row_ptr(ids, {pair / used, 0, 0}))[pair % used];
  }
  bool known(int64_t pair) const { return id(pair) >= 0 && id(pair) < n_experts; }

  const float* column(int64_t pair) const {
    const int64_t row = pair / used;
    const gf_row at = own_rows ? gf_row{pair % used, row, 0} : gf_row{row, 0, 0};
    return reinterpret_cast<const float*>(gf_row_ptr(x, at));
  }
  float* result(int64_t pair) const {
    return reinterpret_cast<float*>(gf_row_ptr(dst, {pair % used, pair / used, 0}));
  }

  void sort(const gf_thread* th) {
    starts = reinterpret_cast<int32_t*>(th->scratch + acts_bytes +
                                        (sort_bytes() + copy_bytes) * th->ith);
    pairs = starts + n_experts + 1;
    std::fill(starts, starts + n_experts + 1, 0);
    for (int64_t p = 0; p < n_pairs; ++p) {
      if (known(p)) ++starts[id(p) + 1];
    }
    for (int64_t e = 0; e < n_experts; ++e) starts[e + 1] += starts[e];
    for (int64_t p = 0; p < n_pairs; ++p) {
      if (known(p)) pairs[starts[id(p)]++] = static_cast<int32_t>(p);
    }
    // Each now stands where the next one begins.
    std::memmove(starts + 1, starts, n_experts * sizeof(int32_t));
    starts[0] = 0;
  }
  char* copy() const { return reinterpret_cast<char*>(starts) + sort_bytes(); }
};

// Calls f(tile) for the tiles of an expert's pairs; tile.first counts all pairs.
template <typename F>
void for_tiles(const IdPlan& p, int64_t expert, F&& f) {
  const int64_t begin = p.starts[expert];
  const Tiling tiles(p.starts[expert + 1] - begin);
  for (int64_t i = 0; i < tiles.count(); ++i) {
    const Tile t = tiles[i];
    f(Tile{begin + t.first, t.width});
  }
}

// The pairs' rows as the weights want them: this thread's share.
void convert_x(const IdPlan& p, const gf_thread* th) {
  if (!p.weight.quantizes_x()) {
    const gf_range share = gf_split(p.starts[p.n_experts], th);
    for (int64_t i = share.begin; i < share.end; ++i) {
      f32_row_to_bf16(p.column(p.pairs[i]), p.k,
                      reinterpret_cast<uint16_t*>(th->scratch + i * p.bf16_column_bytes()));
    }
    return;
  }
  const int64_t n_blocks = p.k / 32;
  const auto column = [&p](int64_t c) { return p.column(p.pairs[c]); };
  int64_t index = 0;
  for (int64_t e = 0; e < p.n_experts; ++e) {
    for_tiles(p, e, [&](Tile tile) {
      if (index++ % th->nth != th->ith) return;
      uint8_t* const base = th->scratch + tile.first * n_blocks * kActBlockBytes;
      for (int64_t ib = 0; ib < n_blocks; ++ib) {
        quantize_tile_block(tile, column, ib, p.weight.sums(),
                            base + ib * kActBlockBytes * tile.width);
      }
    });
  }
}

// Sixteen rows of an expert times a tile: out [tile.width][16].
void product(const IdPlan& p, const uint8_t* acts, const char* rows, int64_t row_bytes, int n_rows,
             const Tile& tile, float* out) {
  if (p.weight.packed) {
    const PackedType& type = *p.weight.packed;
    const uint8_t* a = acts + tile.first * (p.k / 32) * kActBlockBytes;
    type.kernel(tile.width)(reinterpret_cast<const uint8_t*>(rows), a, p.k / 32 / type.blocks_of_32,
                            out);
    return;
  }
  if (p.weight.grid) {
    const uint8_t* a = acts + tile.first * (p.k / 32) * kActBlockBytes;
    p.weight.grid->kernel(tile.width)(rows, row_bytes, n_rows, a, p.k, out);
    return;
  }
  const void* x[kMaxTile];
  for (int c = 0; c < tile.width; ++c) {
    const int64_t i = tile.first + c;
    x[c] = p.weight.rounds_x ? static_cast<const void*>(acts + i * p.bf16_column_bytes())
                             : p.column(p.pairs[i]);
  }
  p.weight.kernel(rows, row_bytes, n_rows, x, tile.width, p.k, out);
}

// The groups [first, last) of sixteen rows of an expert, for all of its pairs.
void run_groups(const IdPlan& p, const uint8_t* acts, int64_t expert, int64_t first, int64_t last) {
  const bool biased = p.op->n_src > 3 && p.op->src[3].data != nullptr;
  alignas(64) float out[kMaxTile * kRows];
  for (int64_t group = first; group < last; ++group) {
    const int64_t row = group * kRows;
    const int n_rows = static_cast<int>(std::min<int64_t>(kRows, p.n - row));
    const char* rows = gf_row_ptr(p.w, {row, expert, 0});
    int64_t row_bytes = p.w.nb[1];
    if (p.weight.packed) {
      const PackedType& type = *p.weight.packed;
      rows = static_cast<const char*>(p.w.data) + (expert * p.n_groups + group) * kRows *
                                                      (p.k / 32 / type.blocks_of_32) *
                                                      type.block_bytes;
    } else if (p.weight.convert) {
      row_bytes = p.copied_row_bytes();
      for (int r = 0; r < n_rows; ++r) {
        p.weight.convert(p.w.type, rows + r * p.w.nb[1], p.k, p.copy() + r * row_bytes);
      }
      rows = p.copy();
    }
    for_tiles(p, expert, [&](Tile tile) {
      product(p, acts, rows, row_bytes, n_rows, tile, out);
      for (int c = 0; c < tile.width; ++c) {
        float* const v = out + c * kRows;
        if (biased) {
          const float* const b =
              reinterpret_cast<const float*>(gf_row_ptr(p.op->src[3], {expert, 0, 0})) + row;
          for (int i = 0; i < n_rows; ++i) v[i] += b[i];
        }
        std::memcpy(p.result(p.pairs[tile.first + c]) + row, v,
                    sizeof(float) * static_cast<size_t>(n_rows));
      }
    });
  }
}

void run(IdPlan& p, gf_thread* th) {
  if (p.n == 0 || p.n_pairs == 0) return;
  p.sort(th);
  const gf_range share = gf_split(p.n_pairs, th);
  for (int64_t i = share.begin; i < share.end; ++i) {
    if (!p.known(i)) std::memset(p.result(i), 0, sizeof(float) * static_cast<size_t>(p.n));
  }
  int64_t n_active = 0;
  for (int64_t e = 0; e < p.n_experts; ++e) n_active += p.starts[e + 1] > p.starts[e];
  if (n_active == 0) return;
  // Items: enough for the threads to even out, of few rows where they are read once a tile.
  int64_t groups = std::max<int64_t>(1, p.n_groups * n_active / (th->nth * int64_t{8}));
  if (p.n_pairs > n_active) {
    const int64_t group_bytes = gf_row_bytes(p.w.type, p.k) * kRows;
    groups = std::min(groups, std::max<int64_t>(1, kChunkBytes / (group_bytes + 1)));
  }
  const int64_t per_expert = (p.n_groups + groups - 1) / groups;
  int64_t item = gf_steal(th), first = 0;
  for (int64_t e = 0; e < p.n_experts; ++e) {
    if (p.starts[e + 1] == p.starts[e]) continue;
    for (; item < first + per_expert; item = gf_steal(th)) {
      const int64_t begin = (item - first) * groups;
      run_groups(p, th->scratch, e, begin, std::min(begin + groups, p.n_groups));
    }
    first += per_expert;
  }
}

bool floats_ok(const gf_tensor& t) { return t.type == GF_F32 && gf_rows_dense(t); }

}  // namespace
}  // namespace gf

// Operand 0 may be packed, as a stack of matrices: bit 16 says so.
GF_KERNEL_PACKED(mul_mat_id, 1 | 1 << 16)
GF_KERNEL_SUPPORTS(mul_mat_id) {
  const gf_tensor& w = op->src[0];
  const bool whole = gf_block(w.type) > 0 && w.ne[0] % gf_block(w.type) == 0 && gf_rows_dense(w);
  return whole && gf::floats_ok(op->src[1]) && gf::floats_ok(op->dst);
}
GF_KERNEL_SCRATCH(mul_mat_id) { return gf::IdPlan(op).scratch(n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat_id(const gf_op* op) {
  return gf::IdPlan(op).acts_bytes > 0;
}
GF_KERNEL_INIT(mul_mat_id) {
  gf::IdPlan p(op);
  p.sort(th);
  gf::convert_x(p, th);
}
GF_KERNEL(mul_mat_id) {
  gf::IdPlan p(op);
  gf::run(p, th);
}
