// mul_mat(w, x), and fused with what follows it: mul_mat_add(w, x, r), mul_mat_swiglu and
// mul_mat_geglu(gate, up, x).
//
// Threads take work items: a few groups of 16 rows times a few tiles of columns. A group times a
// tile gives a [columns][16] block of results that one of three epilogues finishes and stores.
#include "cpu/mul_mat_plan.h"
#include "cpu/packed.h"
#include "cpu/vmath.h"

namespace gf {
namespace {

// Of weights, to stay in the second-level cache, which is 2 MiB where there is a matrix unit.
#if defined(__AMX_INT8__)
constexpr int64_t kChunkBytes = 768 << 10;
#else
constexpr int64_t kChunkBytes = 192 << 10;
#endif

// -- INIT: the columns as the weights want them

// A unit is one block of one tile.
void quantize_units(const MulMatPlan& p, const Weight& w, uint8_t* acts, gf_range units) {
  const int64_t n_blocks = p.k / 32;
  const auto column = [&](int64_t c) {
    return reinterpret_cast<const float*>(p.column(p.x, 0, c));
  };
  for (int64_t u = units.begin; u < units.end;) {
    const Tile tile = p.tiles[u / n_blocks];
    const int64_t end = (u / n_blocks + 1) * n_blocks;
    uint8_t* base = acts + tile.first * n_blocks * kActBlockBytes;
    for (; u < end && u < units.end; ++u) {
      const int64_t ib = u % n_blocks;
      quantize_tile_block(tile, column, ib, w.sums(), base + ib * kActBlockBytes * tile.width);
    }
  }
}

void round_columns(const MulMatPlan& p, const Weight& w, uint8_t* acts, gf_range columns) {
  for (int64_t i = columns.begin; i < columns.end; ++i) {
    const int64_t matrix = i / p.n_cols, column = i % p.n_cols;
    const char* x = p.column(p.x, matrix, column);
    w.round(reinterpret_cast<const float*>(x), p.k, p.tiles.of(column), column,
            acts + matrix * p.n_cols * rounded_column_bytes(p.k));
  }
}

// This thread's share, or everything without a thread.
void convert_x(const MulMatPlan& p, uint8_t* acts, const gf_thread* th) {
  for (int i = 0; i < p.n_weights; ++i) {
    const Weight& w = p.w[i];
    if (!w.converts_x() || (i > 0 && w.same_acts(p.w[0]))) continue;
    if (w.quantizes_x()) {
      const int64_t units = p.tiles.count() * (p.k / 32);
      quantize_units(p, w, acts + w.acts, th ? gf_split_units(units, 8, th) : gf_range{0, units});
    } else {
      const int64_t columns = p.n_matrices * p.n_cols;
      round_columns(p, w, acts + w.acts, th ? gf_split(columns, th) : gf_range{0, columns});
    }
  }
}

// -- the product of one group of rows and one tile of columns

const char* group_rows(const gf_tensor& t, int64_t matrix, int64_t group) {
  return gf_row_ptr(t, {group * kRows, matrix % t.ne[2], matrix / t.ne[2]});
}

int rows_in_group(const MulMatPlan& p, int64_t group) {
  const int64_t left = p.n - group * kRows;
  return left < kRows ? static_cast<int>(left) : kRows;
}

struct Worker {
  const MulMatPlan& p;
  const uint8_t* acts;
  char* copies[2];  // sixteen converted rows of each weight

  // out [n_groups][tile.width][16]
  void product(int i, int64_t matrix, int64_t group, int n_groups, const Tile& tile,
               float* out) const {
    const Weight& w = p.w[i];
    if (w.packed) {
      const int64_t n_blocks = p.k / 32 / w.packed->blocks_of_32;
      const auto* rows = w.packs ? reinterpret_cast<const uint8_t*>(copies[i])
                                 : static_cast<const uint8_t*>(w.t->data) +
                                       group * w.packed->group_bytes(n_blocks);
      const uint8_t* a = acts + w.acts + tile.first * (p.k / 32) * kActBlockBytes;
      w.packed->multiply(rows, n_groups, a, n_blocks, tile, out);
      return;
    }
    if (w.grid) {
      w.grid->kernel(tile.width)(
          group_rows(*w.t, matrix, group), w.t->nb[1], rows_in_group(p, group),
          acts + w.acts + tile.first * (p.k / 32) * kActBlockBytes, p.k, out);
      return;
    }
    const uint8_t* rounded = acts + w.acts + matrix * p.n_cols * rounded_column_bytes(p.k);
    const void* x[kMaxTile];
    for (int c = 0; c < tile.width; ++c) {
      const int64_t column = tile.first + c;
      x[c] = w.round_x ? static_cast<const void*>(rounded + w.rounded_at(tile, column, p.k))
                       : p.column(p.x, matrix, column);
    }
    w.kernel(w.convert ? copies[i] : group_rows(*w.t, matrix, group),
             w.convert ? p.copied_row_bytes(i) : w.t->nb[1], rows_in_group(p, group), x, tile.width,
             p.k, p.one_pass() && !w.convert ? kRows * w.t->nb[1] : 0, out);
  }

  // Makes the group's rows ready for `product`: converted, or in the cache.
  void prepare(int i, int64_t matrix, int64_t group) const {
    const Weight& w = p.w[i];
    if ((w.packed && !w.packs) || w.grid) return;
    const char* rows = group_rows(*w.t, matrix, group);
    if (w.packs) {
      gf_pack_rows(w.t->type, rows, copies[i], rows_in_group(p, group), p.k, 0, 1);
      return;
    }
    for (int r = 0; r < rows_in_group(p, group); ++r, rows += w.t->nb[1]) {
      if (w.convert) {
        w.convert(w.t->type, rows, p.k, copies[i] + r * p.copied_row_bytes(i));
      } else if (!p.one_pass()) {
        read_ahead(rows, gf_row_bytes(w.t->type, p.k));
      }
    }
  }
};

// -- epilogues: finish the 16 values of one column and store the first n_rows

struct StoreProduct {
  static constexpr int kWeights = 1;
  static GF_INLINE void finish(const MulMatPlan&, int64_t, int64_t, int64_t, int, float*,
                               const float*) {}
};

struct AddResidual {
  static constexpr int kWeights = 1;
  static GF_INLINE void finish(const MulMatPlan& p, int64_t matrix, int64_t column, int64_t row,
                               int n_rows, float* v, const float*) {
    const auto* from = reinterpret_cast<const float*>(p.column(p.residual, matrix, column)) + row;
    if (n_rows == kRows) {
      for (int i = 0; i < kRows; ++i) v[i] += from[i];
    } else {
      for (int i = 0; i < n_rows; ++i) v[i] += from[i];
    }
  }
};

template <vf (*activation)(vf)>
struct Glu {
  static constexpr int kWeights = 2;
  static GF_INLINE void finish(const MulMatPlan&, int64_t, int64_t, int64_t, int, float* gate,
                               const float* up) {
    for (int i = 0; i < kRows; i += VL) {
      vf_store(gate + i, activation(vf_load(gate + i)) * vf_load(up + i));
    }
  }
};

// Asks for the lines of the results, and of what is added to them, which lie far apart in memory,
// before the products that take the time until they come.
void fetch_results(const MulMatPlan& p, int64_t matrix, int64_t group, int n_groups,
                   const Tile& tile) {
  const int64_t begin = group * kRows * int64_t{sizeof(float)};
  const int64_t end = begin + n_groups * kRows * int64_t{sizeof(float)};
  for (int c = 0; c < tile.width; ++c) {
    const char* to = p.column(p.dst, matrix, tile.first + c);
    for (int64_t at = begin; at < end; at += 64) __builtin_prefetch(to + at, 1, 2);
    if (!p.residual.t) continue;
    const char* from = p.column(p.residual, matrix, tile.first + c);
    for (int64_t at = begin; at < end; at += 64) __builtin_prefetch(from + at, 0, 2);
  }
}

// Finishes and stores a group's products with the columns of a tile.
template <class Epilogue>
void finish(const MulMatPlan& p, int64_t matrix, int64_t group, const Tile& tile, float* v,
            const float* v1) {
  const int64_t row = group * kRows;
  const int n_rows = rows_in_group(p, group);
  for (int c = 0; c < tile.width; ++c) {
    Epilogue::finish(p, matrix, tile.first + c, row, n_rows, v + c * kRows, v1 + c * kRows);
  }
  // Apart from what reads, as columns often lie a multiple of 4 KiB from each other: a processor
  // that tells addresses apart by their last twelve bits takes the next reading for one of the
  // writing before.
  for (int c = 0; c < tile.width; ++c, v += kRows) {
    auto* to = reinterpret_cast<float*>(p.column(p.dst, matrix, tile.first + c)) + row;
    if (n_rows == kRows) {
      std::memcpy(to, v, sizeof(float) * kRows);
    } else {
      std::memcpy(to, v, sizeof(float) * static_cast<size_t>(n_rows));
    }
  }
}

template <class Epilogue>
void run(const MulMatPlan& p, gf_thread* th) {
  if (p.n == 0 || p.n_cols == 0) return;
  uint8_t* acts = th->scratch;
  if (p.own_acts && p.acts_bytes > 0) {
    acts += p.acts_bytes * th->ith;
    convert_x(p, acts, nullptr);
  }
  auto* copies =
      reinterpret_cast<char*>(th->scratch + p.rows_offset(th->nth) + p.rows_bytes * th->ith);
  const Worker worker{p, acts, {copies, copies + p.copy_bytes(0)}};

  // Items: enough for the threads to even out. One tile of columns streams the weights, best in
  // long runs; for more, the groups of an item should stay in the cache from tile to tile.
  const bool streams = p.one_pass();
  const int64_t n_groups = (p.n + kRows - 1) / kRows;
  const int64_t group_bytes = gf_row_bytes(p.w[0].t->type, p.k) * kRows * p.n_weights;
  const int64_t wanted = th->nth * int64_t{streams ? 4 : 8};
  int64_t groups = n_groups * p.n_matrices / wanted;
  if (!streams && groups > kChunkBytes / (group_bytes + 1)) {
    groups = kChunkBytes / (group_bytes + 1);
  }
  if (groups < 1 || p.rows_bytes > 0) groups = 1;
  const int64_t row_items = (n_groups + groups - 1) / groups;
  int64_t tile_items = wanted / (row_items * p.n_matrices);
  if (tile_items > p.tiles.count()) tile_items = p.tiles.count();
  if (tile_items < 1 || th->nth == 1) tile_items = 1;

  // Packed rows are multiplied some groups at a time by some tiles at a time where that pays.
  const bool together = all_packed(p.w, p.n_weights);
  const int most_tiles = together ? kTilesTogether : 1;
  alignas(64) float out[2][kGroupsTogether * kTilesTogether * kMaxTile * kRows];
  const MatrixUnit unit;
  for (int64_t item; (item = gf_steal(th)) < row_items * tile_items * p.n_matrices;) {
    const int64_t matrix = item / (row_items * tile_items);
    const int64_t first = item / tile_items % row_items * groups;
    const int64_t last = first + groups < n_groups ? first + groups : n_groups;
    const int64_t tile_item = item % tile_items;
    for (int64_t group = first; group < last; ++group) {
      for (int i = 0; i < Epilogue::kWeights; ++i) worker.prepare(i, matrix, group);
    }
    const int64_t end = p.tiles.count() * (tile_item + 1) / tile_items;
    for (int64_t t = p.tiles.count() * tile_item / tile_items; t < end;) {
      const Tile tile = p.tiles.joined(t, end, most_tiles);
      t += Tiling::count(tile);
      const int most_groups = together && tile.width >= kMaxTile ? kGroupsTogether : 1;
      for (int64_t group = first; group < last; group += most_groups) {
        const int n = last - group < most_groups ? static_cast<int>(last - group) : most_groups;
        if (!streams) fetch_results(p, matrix, group, n, tile);
        for (int i = 0; i < Epilogue::kWeights; ++i) {
          worker.product(i, matrix, group, n, tile, out[i]);
        }
        for (int g = 0; g < n; ++g) {
          const int64_t at = int64_t{g} * tile.width * kRows;
          finish<Epilogue>(p, matrix, group + g, tile, out[0] + at, out[1] + at);
        }
      }
    }
  }
}

// -- what can be run

bool weight_ok(const gf_tensor& w) {
  if (gf_block(w.type) == 0 || w.ne[0] % gf_block(w.type) != 0 || !gf_rows_dense(w)) return false;
  if (!(w.flags & GF_PACKED)) return true;
  return w.ne[2] == 1 && w.ne[3] == 1 && find_packed_type(w.type) != nullptr;
}

bool floats_ok(const gf_tensor& t) { return t.type == GF_F32 && gf_rows_dense(t); }

int64_t scratch_bytes(const gf_op* op, int n_weights, const gf_tensor& x, int n_threads) {
  MulMatPlan p(op, n_weights, x);
  // Whether INIT will be left out may not be decided yet.
  p.own_acts = p.n_cols * p.n_matrices == 1;
  return p.scratch(n_threads);
}

bool needs_init(const gf_op* op, int n_weights, const gf_tensor& x) {
  const MulMatPlan p(op, n_weights, x);
  return p.acts_bytes > 0 && p.n_cols * p.n_matrices > 1;
}

}  // namespace
}  // namespace gf

// INIT quantizes x for packed weights. gf_needs_init_* says when the executor may leave it out
// (op->init = NULL, no barrier): with other weights, and for one column, which each thread then
// quantizes for itself.

GF_KERNEL_PACKED(mul_mat, 1)
GF_KERNEL_SUPPORTS(mul_mat) {
  return gf::weight_ok(op->src[0]) && gf::floats_ok(op->src[1]) && gf::floats_ok(op->dst);
}
GF_KERNEL_SCRATCH(mul_mat) { return gf::scratch_bytes(op, 1, op->src[1], n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat(const gf_op* op) {
  return gf::needs_init(op, 1, op->src[1]);
}
GF_KERNEL_INIT(mul_mat) { gf::convert_x(gf::MulMatPlan(op, 1, op->src[1]), th->scratch, th); }
GF_KERNEL(mul_mat) { gf::run<gf::StoreProduct>(gf::MulMatPlan(op, 1, op->src[1]), th); }

GF_KERNEL_PACKED(mul_mat_add, 1)
GF_KERNEL_SUPPORTS(mul_mat_add) {
  return gf::weight_ok(op->src[0]) && gf::floats_ok(op->src[1]) && gf::floats_ok(op->dst) &&
         gf::floats_ok(op->src[2]);
}
GF_KERNEL_SCRATCH(mul_mat_add) { return gf::scratch_bytes(op, 1, op->src[1], n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat_add(const gf_op* op) {
  return gf::needs_init(op, 1, op->src[1]);
}
GF_KERNEL_INIT(mul_mat_add) { gf::convert_x(gf::MulMatPlan(op, 1, op->src[1]), th->scratch, th); }
GF_KERNEL(mul_mat_add) { gf::run<gf::AddResidual>(gf::MulMatPlan(op, 1, op->src[1]), th); }

GF_KERNEL_PACKED(mul_mat_swiglu, 3)
GF_KERNEL_SUPPORTS(mul_mat_swiglu) {
  return gf::weight_ok(op->src[0]) && gf::floats_ok(op->src[2]) && gf::floats_ok(op->dst) &&
         gf::weight_ok(op->src[1]);
}
GF_KERNEL_SCRATCH(mul_mat_swiglu) { return gf::scratch_bytes(op, 2, op->src[2], n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat_swiglu(const gf_op* op) {
  return gf::needs_init(op, 2, op->src[2]);
}
GF_KERNEL_INIT(mul_mat_swiglu) {
  gf::convert_x(gf::MulMatPlan(op, 2, op->src[2]), th->scratch, th);
}
GF_KERNEL(mul_mat_swiglu) { gf::run<gf::Glu<vf_silu>>(gf::MulMatPlan(op, 2, op->src[2]), th); }

GF_KERNEL_PACKED(mul_mat_geglu, 3)
GF_KERNEL_SUPPORTS(mul_mat_geglu) {
  return gf::weight_ok(op->src[0]) && gf::floats_ok(op->src[2]) && gf::floats_ok(op->dst) &&
         gf::weight_ok(op->src[1]);
}
GF_KERNEL_SCRATCH(mul_mat_geglu) { return gf::scratch_bytes(op, 2, op->src[2], n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat_geglu(const gf_op* op) {
  return gf::needs_init(op, 2, op->src[2]);
}
GF_KERNEL_INIT(mul_mat_geglu) { gf::convert_x(gf::MulMatPlan(op, 2, op->src[2]), th->scratch, th); }
GF_KERNEL(mul_mat_geglu) { gf::run<gf::Glu<vf_gelu>>(gf::MulMatPlan(op, 2, op->src[2]), th); }
