// mul_mat_id: each row of x times the matrices that its ids name, the experts of a layer.
// mul_mat_id_glu: two such products of the same rows, and the gated activation over them.
#include "cpu/mul_mat_id.h"

#include "cpu/vmath.h"

namespace gf {
namespace {

constexpr int64_t kChunkBytes = 192 << 10;  // of weights, to stay in the second-level cache

// The rows of x as weight i wants them: this thread's share of all pairs, or the only one.
void convert_for(const IdPlan& p, int i, const gf_thread* th) {
  const Weight& w = p.w[i];
  uint8_t* const acts = p.acts(th) + w.acts;
  const int64_t n_blocks = p.k / 32;
  const auto column = [&p](int64_t c) { return p.column(c); };
  const auto convert = [&](Tile tile) {
    if (!w.quantizes_x()) {
      for (int64_t c = tile.first; c < tile.first + tile.width; ++c) {
        w.round(p.column(c), p.k, tile, c, acts);
      }
      return;
    }
    uint8_t* const base = acts + tile.first * n_blocks * kActBlockBytes;
    for (int64_t ib = 0; ib < n_blocks; ++ib) {
      quantize_tile_block(tile, column, ib, w.sums(), base + ib * kActBlockBytes * tile.width);
    }
  };
  if (p.one_row) return convert(Tile{0, 1});
  int64_t index = 0;
  for (int64_t e = 0; e < p.n_experts; ++e) {
    p.for_tiles(e, 1, [&](Tile tile) {
      if (index++ % th->nth == th->ith) convert(tile);
    });
  }
}

void convert_x(const IdPlan& p, const gf_thread* th) {
  for (int i = 0; i < p.n_weights; ++i) {
    if (p.w[i].converts_x() && !(i > 0 && p.w[i].same_acts(p.w[0]))) convert_for(p, i, th);
  }
}

// Sixteen rows of an expert of weight i, from `row` on.
struct Rows {
  const char* data;
  int64_t bytes;  // from one to the next
  int n;
};

Rows rows_of(const IdPlan& p, int i, int64_t expert, int64_t group) {
  const Weight& w = p.w[i];
  const int64_t row = group * kRows;
  const int n_rows = static_cast<int>(std::min<int64_t>(kRows, p.n - row));
  if (w.packed) {
    const int64_t group_bytes = kRows * (p.k / 32 / w.packed->blocks_of_32) * w.packed->block_bytes;
    const auto* const all = static_cast<const char*>(w.t->data);
    return {all + (expert * p.n_groups + group) * group_bytes, 0, n_rows};
  }
  const char* const rows = gf_row_ptr(*w.t, {row, expert, 0});
  if (!w.convert) return {rows, w.t->nb[1], n_rows};
  const int64_t row_bytes = p.copied_row_bytes(i);
  for (int r = 0; r < n_rows; ++r) {
    w.convert(w.t->type, rows + r * w.t->nb[1], p.k, p.copy(i) + r * row_bytes);
  }
  return {p.copy(i), row_bytes, n_rows};
}

// Rows of weight i times a tile: out [tile.width][16].
void product(const IdPlan& p, int i, const uint8_t* acts, const Rows& rows, const Tile& tile,
             float* out) {
  const Weight& w = p.w[i];
  const int64_t first = p.one_row ? 0 : tile.first;
  const uint8_t* const a = acts + w.acts;
  if (w.quantizes_x()) {
    const uint8_t* const columns = a + first * (p.k / 32) * kActBlockBytes;
    if (w.packed) {
      w.packed->multiply(reinterpret_cast<const uint8_t*>(rows.data), 1, columns,
                         p.k / 32 / w.packed->blocks_of_32, tile, out);
    } else {
      w.grid->kernel(tile.width)(rows.data, rows.bytes, rows.n, columns, p.k, out);
    }
    return;
  }
  const Tile converted{first, tile.width};
  const void* x[kMaxTile];
  for (int c = 0; c < tile.width; ++c) {
    x[c] = w.round_x ? static_cast<const void*>(a + w.rounded_at(converted, first + c, p.k))
                     : p.column(first + c);
  }
  w.kernel(rows.data, rows.bytes, rows.n, x, tile.width, p.k, 0, out);
}

void add_bias(const IdPlan& p, int i, int64_t expert, int64_t row, int n_rows, float* v) {
  if (!p.bias[i]) return;
  const auto* const b = reinterpret_cast<const float*>(gf_row_ptr(*p.bias[i], {expert, 0, 0}));
  for (int r = 0; r < n_rows; ++r) v[r] += b[row + r];
}

// The groups [first, last) of sixteen rows of an expert, for all of its pairs. join(gate, up): what
// becomes of two products' vectors, in the first.
template <int N, typename Join>
void run_groups(const IdPlan& p, const uint8_t* acts, int64_t expert, int64_t first, int64_t last,
                Join&& join) {
  alignas(64) float out[N][kTilesTogether * kMaxTile * kRows];
  const int together = all_packed(p.w, p.n_weights) ? kTilesTogether : 1;
  for (int64_t group = first; group < last; ++group) {
    const int64_t row = group * kRows;
    Rows rows[N];
    for (int i = 0; i < N; ++i) rows[i] = rows_of(p, i, expert, group);
    p.for_tiles(expert, together, [&](Tile tile) {
      for (int i = 0; i < N; ++i) product(p, i, acts, rows[i], tile, out[i]);
      for (int c = 0; c < tile.width; ++c) {
        float* const v = out[0] + c * kRows;
        for (int i = 0; i < N; ++i) add_bias(p, i, expert, row, rows[0].n, out[i] + c * kRows);
        if constexpr (N == 2) {
          const float* const up = out[1] + c * kRows;
          for (int r = 0; r < kRows; r += VL) {
            vf_store(v + r, join(vf_load(v + r), vf_load(up + r)));
          }
        }
        std::memcpy(p.result(p.pairs[tile.first + c]) + row, v,
                    sizeof(float) * static_cast<size_t>(rows[0].n));
      }
    });
  }
}

template <int N, typename Join>
void run(IdPlan& p, gf_thread* th, Join&& join) {
  if (p.n == 0 || p.n_pairs == 0) return;
  p.sort(th);
  if (p.one_row) convert_x(p, th);
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
    const int64_t group_bytes = gf_row_bytes(p.w[0].t->type, p.k) * kRows * N;
    groups = std::min(groups, std::max<int64_t>(1, kChunkBytes / (group_bytes + 1)));
  }
  const int64_t per_expert = (p.n_groups + groups - 1) / groups;
  const MatrixUnit unit;
  int64_t item = gf_steal(th), first = 0;
  for (int64_t e = 0; e < p.n_experts; ++e) {
    if (p.starts[e + 1] == p.starts[e]) continue;
    for (; item < first + per_expert; item = gf_steal(th)) {
      const int64_t begin = (item - first) * groups;
      run_groups<N>(p, p.acts(th), e, begin, std::min(begin + groups, p.n_groups), join);
    }
    first += per_expert;
  }
}

void init(IdPlan p, const gf_thread* th) {
  p.sort(th);
  convert_x(p, th);
}

bool needs_init(const IdPlan& p) { return p.acts_bytes > 0 && !p.one_row; }

bool weight_ok(const gf_tensor& w) {
  return gf_block(w.type) > 0 && w.ne[0] % gf_block(w.type) == 0 && gf_rows_dense(w);
}
bool floats_ok(const gf_tensor& t) { return t.type == GF_F32 && gf_rows_dense(t); }

struct glu_params {
  int32_t act;
  float alpha, limit;
};
enum { SWIGLU, GEGLU, SWIGLU_CLAMPED };

}  // namespace
}  // namespace gf

// Weights may be packed, as stacks of matrices: bits 16 and 17 say so.
GF_KERNEL_PACKED(mul_mat_id, 1 | 1 << 16)
GF_KERNEL_SUPPORTS(mul_mat_id) {
  return gf::weight_ok(op->src[0]) && gf::floats_ok(op->src[1]) && gf::floats_ok(op->dst);
}
GF_KERNEL_SCRATCH(mul_mat_id) { return gf::IdPlan(op, 1).scratch(n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat_id(const gf_op* op) {
  return gf::needs_init(gf::IdPlan(op, 1));
}
GF_KERNEL_INIT(mul_mat_id) { gf::init(gf::IdPlan(op, 1), th); }
GF_KERNEL(mul_mat_id) {
  gf::IdPlan p(op, 1);
  gf::run<1>(p, th, [](vf v, vf) { return v; });
}

GF_KERNEL_PACKED(mul_mat_id_glu, 3 | 3 << 16)
GF_KERNEL_SUPPORTS(mul_mat_id_glu) {
  return gf::weight_ok(op->src[0]) && gf::weight_ok(op->src[1]) && gf::floats_ok(op->src[2]) &&
         gf::floats_ok(op->dst);
}
GF_KERNEL_SCRATCH(mul_mat_id_glu) { return gf::IdPlan(op, 2).scratch(n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat_id_glu(const gf_op* op) {
  return gf::needs_init(gf::IdPlan(op, 2));
}
GF_KERNEL_INIT(mul_mat_id_glu) { gf::init(gf::IdPlan(op, 2), th); }
GF_KERNEL(mul_mat_id_glu) {
  gf::IdPlan p(op, 2);
  const auto params = gf_params<gf::glu_params>(op);
  if (params.act == gf::SWIGLU) {
    gf::run<2>(p, th, [](vf gate, vf up) { return vf_silu(gate) * up; });
  } else if (params.act == gf::GEGLU) {
    gf::run<2>(p, th, [](vf gate, vf up) { return vf_gelu(gate) * up; });
  } else {
    const vf alpha = vf_set(params.alpha), most = vf_set(params.limit);
    const vf least = vf_set(-params.limit);
    gf::run<2>(p, th, [=](vf gate, vf up) {
      const vf g = vf_min(gate, most), u = vf_min(vf_max(up, least), most);
      return g * vf_sigmoid(alpha * g) * (u + vf_set(1.0f));
    });
  }
}
