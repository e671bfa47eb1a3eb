// One mul_mat_id or mul_mat_id_glu laid out for its threads: rows of x times the matrices that
// their ids name.
//
// The pairs (row, id) are sorted by expert. An expert's pairs are the columns of a product of its
// own, cut into tiles as those of mul_mat are and computed by the same inner kernels: a pair's
// result does not depend on which others go to its expert. Only the weights of experts that
// somebody goes to are read.
#pragma once

#include <algorithm>

#include "cpu/mul_mat_plan.h"
#include "cpu/packed.h"

namespace gf {

struct IdPlan {
  const gf_op* op;
  int n_weights;  // 2: gate and up
  const gf_tensor &x, &ids, &dst;
  Weight w[2];
  const gf_tensor* bias[2] = {nullptr, nullptr};
  int64_t k, n, n_experts, used, n_pairs, n_groups;
  bool own_rows;                   // x has a row for each id
  bool one_row;                    // one row for all ids: each thread converts it for itself
  int64_t acts_bytes = 0;          // converted columns of x for all weights
  int64_t copy_bytes[2] = {0, 0};  // sixteen converted rows of each weight
  int32_t* starts = nullptr;       // [n_experts + 1] where an expert's pairs begin
  int32_t* pairs = nullptr;        // [n_pairs] by expert; pair = row * used + j

  IdPlan(const gf_op* o, int n_w)
      : op(o),
        n_weights(n_w),
        x(o->src[n_w]),
        ids(o->src[n_w + 1]),
        dst(o->dst),
        k(o->src[0].ne[0]),
        n(o->src[0].ne[1]),
        n_experts(o->src[0].ne[2]),
        used(dst.ne[1]),
        n_pairs(dst.ne[1] * dst.ne[2]),
        n_groups((n + kRows - 1) / kRows),
        own_rows(x.ne[1] == dst.ne[1] && x.ne[2] == dst.ne[2]),
        one_row(dst.ne[2] == 1 && (used == 1 || !own_rows)) {
    for (int i = 0; i < n_weights; ++i) {
      w[i] = weight(o->src[i]);
      const int at = n_weights + 2 + i;
      if (o->n_src > at && o->src[at].data != nullptr) bias[i] = &o->src[at];
      if (w[i].convert) copy_bytes[i] = round_up(kRows * copied_row_bytes(i), 64);
      if (!w[i].converts_x()) continue;
      if (i > 0 && w[i].same_acts(w[0])) {
        w[i].acts = w[0].acts;
        continue;
      }
      w[i].acts = acts_bytes;
      acts_bytes += w[i].quantizes_x() ? round_up(n_columns() * (k / 32) * kActBlockBytes, 64)
                                       : n_columns() * rounded_column_bytes(k);
    }
  }

  // Columns that are converted: one for all pairs of a row by itself.
  int64_t n_columns() const { return one_row ? 1 : n_pairs; }
  int64_t copied_row_bytes(int i) const { return spread(k * w[i].copy_bytes); }
  int64_t sort_bytes() const { return round_up((n_pairs + n_experts + 1) * 4, 64); }

  // Scratch: converted x, once or once a thread, then each thread's sorted pairs and copied rows.
  int64_t own_offset(int n_threads) const { return acts_bytes * (one_row ? n_threads : 1); }
  int64_t own_bytes() const { return sort_bytes() + copy_bytes[0] + copy_bytes[1]; }
  int64_t scratch(int n_threads) const { return own_offset(n_threads) + own_bytes() * n_threads; }
  uint8_t* acts(const gf_thread* th) const {
    return th->scratch + (one_row ? acts_bytes * th->ith : 0);
  }
  char* copy(int i) const {
    return reinterpret_cast<char*>(starts) + sort_bytes() + (i ? copy_bytes[0] : 0);
  }

  int32_t id(int64_t pair) const {
    return reinterpret_cast<const int32_t*>(gf_row_ptr(ids, {pair / used, 0, 0}))[pair % used];
  }
  bool known(int64_t pair) const { return id(pair) >= 0 && id(pair) < n_experts; }

  // The column of a sorted pair; of the only one.
  const float* column(int64_t i) const {
    const int64_t pair = one_row ? 0 : pairs[i];
    const int64_t row = pair / used;
    const gf_row at = own_rows ? gf_row{pair % used, row, 0} : gf_row{row, 0, 0};
    return reinterpret_cast<const float*>(gf_row_ptr(x, at));
  }
  float* result(int64_t pair) const {
    return reinterpret_cast<float*>(gf_row_ptr(dst, {pair % used, pair / used, 0}));
  }

  void sort(const gf_thread* th) {
    starts = reinterpret_cast<int32_t*>(th->scratch + own_offset(th->nth) + own_bytes() * th->ith);
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

  // Calls f(tile) for the tiles of an expert's pairs, up to `together` full ones joined; tile.first
  // counts all pairs.
  template <typename F>
  void for_tiles(int64_t expert, int together, F&& f) const {
    const int64_t begin = starts[expert], end = starts[expert + 1];
    if (one_row) {
      for (int64_t i = begin; i < end; ++i) f(Tile{i, 1});
      return;
    }
    const Tiling tiles(end - begin);
    for (int64_t i = 0; i < tiles.count();) {
      const Tile t = tiles.joined(i, tiles.count(), together);
      f(Tile{begin + t.first, t.width});
      i += Tiling::count(t);
    }
  }

 private:
  Weight weight(const gf_tensor& t) const {
    Weight found = read_weight(t, n_pairs);
    if (const GridType* grid = find_grid_type(t.type)) {
      found = {};
      found.t = &t;
      found.grid = grid;
    }
    if (found.packs) {  // one expert alone: its rows are read as they are, like those of many
      found = {};
      const FloatType f = float_type(t.type);
      found.t = &t;
      found.kernel = f.on_copy;
      found.convert = f.convert;
      found.copy_bytes = f.copy_bytes;
    }
    return found;
  }
};

}  // namespace gf
