// One mul_mat op laid out for its threads: how each weight is read, where columns are, scratch.
#pragma once

#include "cpu/mul_mat_float.h"
#include "cpu/mul_mat_grid.h"
#include "cpu/mul_mat_types.h"

namespace gf {

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Bytes from one copied row to the next. Rows of a power of two would meet in the same few sets of
// the L1 cache.
inline int64_t spread(int64_t row_bytes) {
  return round_up(row_bytes, 64) + (row_bytes % 1024 == 0 ? 256 : 0);
}

// Bytes of a column rounded to halves; what is behind them has a cache line of its own.
inline int64_t rounded_column_bytes(int64_t k) { return spread(round_up(k, 32) * 2) + 64; }

// How one weight is read: packed, before or sixteen rows at a time; by rows of a grid type; or by
// rows of floats, straight or converted sixteen at a time.
struct Weight {
  const gf_tensor* t = nullptr;
  const PackedType* packed = nullptr;
  bool packs = false;  // its groups are packed as they are needed
  const GridType* grid = nullptr;
  FloatKernel kernel = nullptr;     // when neither
  RowConverter convert = nullptr;   // to the rows kernel takes; null: as they are
  int copy_bytes = 0;               // an element of a converted row
  ColumnRounder round_x = nullptr;  // to the halves that the kernel multiplies; null: floats
  bool interleaved = false;         // a tile's rounded columns
  int64_t acts = 0;                 // scratch offset of the converted columns, where it wants any

  bool quantizes_x() const { return packed || grid; }
  const SumUse& sums() const { return packed ? packed->sums : GridType::kSums; }
  bool converts_x() const { return quantizes_x() || round_x; }
  bool same_acts(const Weight& o) const {
    if (quantizes_x() && o.quantizes_x()) return sums() == o.sums();
    return round_x && round_x == o.round_x;
  }
  // Where column c of a tile begins among the rounded columns of depth k.
  int64_t rounded_at(const Tile& tile, int64_t c, int64_t k) const {
    return interleaved ? tile.first * rounded_column_bytes(k) + 4 * (c - tile.first)
                       : c * rounded_column_bytes(k);
  }
  void round(const float* x, int64_t k, const Tile& tile, int64_t c, uint8_t* columns) const {
    round_x(x, k, reinterpret_cast<uint16_t*>(columns + rounded_at(tile, c, k)), tile.width);
  }
};

inline bool all_packed(const Weight (&w)[2], int n_weights) {
  return w[0].packed && (n_weights == 1 || w[1].packed);
}

inline Weight read_weight(const gf_tensor& t, int64_t n_cols) {
  Weight w;
  w.t = &t;
  if (t.flags & GF_PACKED) {
    w.packed = find_packed_type(t.type);
    return w;
  }
  const PackedType* packed = find_packed_type(t.type);
  if (packed && t.ne[2] * t.ne[3] == 1 &&
      (t.ne[1] == 1 || t.nb[1] == gf_row_bytes(t.type, t.ne[0]))) {
    w.packed = packed;
    w.packs = true;
    return w;
  }
  w.grid = t.ne[2] * t.ne[3] == 1 ? find_grid_type(t.type) : nullptr;
  if (w.grid) return w;
  const FloatType f = float_type(t.type);
  w.round_x = f.round_x;
  w.interleaved = f.interleaved;
  const bool copy = f.convert && (n_cols > kFewColumns || !f.kernel);
  w.kernel = copy ? f.on_copy : f.kernel;
  if (copy) {
    w.convert = f.convert;
    w.copy_bytes = f.copy_bytes;
  }
  return w;
}

// The columns of a tensor [c3, c2, m, rows] as numbered by a plan; repeats along dimensions of 1.
struct Columns {
  const gf_tensor* t = nullptr;
  bool flat = false;  // column c of the only matrix is at data + c * stride
  int64_t stride = 0;
};

// w [b3, b2, n, k] times the columns of x [c3, c2, m, k]: for each of the weight's matrices all the
// columns it multiplies, numbered 0 .. n_cols - 1.
struct MulMatPlan {
  const gf_op* op;
  Columns x, dst, residual;
  Weight w[2];  // two for swiglu: gate, up
  int n_weights;
  int64_t n, k, m, n_matrices, r2, r3, n_cols;
  Tiling tiles;
  int64_t acts_bytes = 0;  // all converted copies of x
  int64_t rows_bytes = 0;  // converted rows of all weights, a thread
  bool own_acts;           // each thread converts x for itself: op->init is NULL

  MulMatPlan(const gf_op* o, int n_w, const gf_tensor& x_)
      : op(o),
        n_weights(n_w),
        n(o->src[0].ne[1]),
        k(o->src[0].ne[0]),
        m(x_.ne[1]),
        n_matrices(o->src[0].ne[2] * o->src[0].ne[3]),
        r2(x_.ne[2] / o->src[0].ne[2]),
        r3(x_.ne[3] / o->src[0].ne[3]),
        n_cols(m * r2 * r3),
        tiles(n_cols),
        own_acts(o->init == nullptr) {
    x = columns(x_);
    dst = columns(o->dst);
    if (n_w == 1 && o->n_src > 2) residual = columns(o->src[2]);
    for (int i = 0; i < n_weights; ++i) {
      w[i] = read_weight(o->src[i], n_cols);
      rows_bytes += copy_bytes(i);
      if (!w[i].converts_x()) continue;
      if (i > 0 && w[i].same_acts(w[0])) {
        w[i].acts = w[0].acts;
        continue;
      }
      w[i].acts = acts_bytes;
      acts_bytes += w[i].quantizes_x() ? round_up(n_cols * (k / 32) * kActBlockBytes, 64)
                                       : n_matrices * n_cols * rounded_column_bytes(k);
    }
  }

  // Whether each weight is used for one tile of columns: it streams through the caches.
  bool one_pass() const { return tiles.count() == 1; }

  int64_t copy_bytes(int i) const {
    if (w[i].packs) return round_up(kRows * gf_row_bytes(w[i].t->type, k), 64);
    return w[i].convert ? kRows * copied_row_bytes(i) : 0;
  }
  int64_t copied_row_bytes(int i) const { return spread(k * w[i].copy_bytes); }

  // Scratch: converted x, once or once a thread, then each thread's converted rows.
  int64_t rows_offset(int n_threads) const { return acts_bytes * (own_acts ? n_threads : 1); }
  int64_t scratch(int n_threads) const { return rows_offset(n_threads) + rows_bytes * n_threads; }

  // Where column c of weight matrix b is.
  char* column(const Columns& v, int64_t b, int64_t c) const {
    if (v.flat) return static_cast<char*>(v.t->data) + c * v.stride;
    const int64_t j = c / m;
    const int64_t b2 = b % op->src[0].ne[2], b3 = b / op->src[0].ne[2];
    return gf_row_ptr_mod(*v.t, {c % m, b2 * r2 + j % r2, b3 * r3 + j / r2});
  }

 private:
  Columns columns(const gf_tensor& t) const {
    const bool flat = n_matrices == 1 && r2 == 1 && r3 == 1;
    return {&t, flat, t.ne[1] == 1 ? 0 : t.nb[1]};
  }
};

}  // namespace gf
