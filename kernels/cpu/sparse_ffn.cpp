// sparse_ffn(w_gate?, w_up, w_down_t, x, idx?, gpu_bucket?, gpu_idx?, b_up?): a ReLU layer over its
// active neurons.
//
// INIT computes h = relu(gate . x) * (up . x), without a gate relu(up . x + b). For few tokens
// every thread takes an equal share of each one's active neurons, in order, and keeps those whose h
// is not 0, with their h, at the start of its share of two lists. For more, threads convert the
// tokens together, meet, and take groups of sixteen rows, and h is a matrix. The kernel then adds
// up rows of w_down_t, every thread for columns of its own.
#include "cpu/sparse_products.h"
#include "cpu/sparse_sums.h"

namespace gf {
namespace {

struct Params {
  float threshold;
  int32_t relu_up;
  float cut;
};

// What a layer is: with a gate and ReLU, with a gate and a ReLU that makes more than what is
// negative zero, or without a gate.
enum class Kind { kGated, kCut, kAlone };

// One of w_gate and w_up.
struct Product {
  const gf_tensor& w;
  const RowType& type;
  int64_t column;    // bytes of a converted column of x, 0: x as it is
  int64_t acts = 0;  // where they are in scratch

  explicit Product(const gf_tensor& w_)
      : w(w_), type(*find_row_type(w_.type)), column(column_bytes(type.x, w_.ne[0])) {}
};

// A share of one token's active neurons.
struct alignas(64) Share {
  int64_t begin, count;
};

struct Plan {
  const gf_tensor &down, &x, &dst;
  Product gate, up;
  const RowType& down_type;
  bool relu_up;
  Neurons neurons;
  int64_t m, n_rows;
  bool few;  // tokens
  // Offsets in scratch. Few tokens: for each the shares, the rows and their h; each thread's masks
  // and columns. More: columns, h, each thread's masks.
  int64_t lists, weights, own, own_bytes, bytes;
  float cut;          // what is not above it ReLU makes zero
  const float* bias;  // of up, by neuron; null: none

  Plan(const gf_op* op, int nth)
      : down(op->src[2]),
        x(op->src[3]),
        dst(op->dst),
        gate(op->src[0]),
        up(op->src[1]),
        down_type(*find_row_type(down.type)),
        relu_up(gf_params<Params>(op).relu_up != 0),
        neurons(op, 4, gf_params<Params>(op).threshold, down.ne[1], INT32_MAX),
        m(x.ne[1]),
        n_rows(down.ne[1]),
        few(m <= kFewTokens),
        cut(gf_params<Params>(op).cut),
        bias(static_cast<const float*>(op->src[7].data)) {
    if (bias) neurons.n_ff = op->src[7].ne[0];
    if (neurons.idx) neurons.n_ff = neurons.idx->ne[0];
    if (op->src[6].data) neurons.n_ff = op->src[6].ne[0];
    const bool same = up.column == 0 || up.type.x == gate.type.x;
    const int64_t columns = gate.column + (same && gate.column ? 0 : up.column);
    up.acts = same ? 0 : gate.column * (few ? 1 : m);
    if (few) {
      lists = m * nth * sizeof(Share);
      weights = lists + m * list_bytes();
      own = weights + m * list_bytes();
      own_bytes = columns + SparseActs::up(2 * neurons.groups());
    } else {
      lists = 0;
      weights = columns * m;
      own = weights + m * h_stride() * 4;
      own_bytes = SparseActs::up(2 * m) + ChunkSum::scratch(m);
    }
    bytes = own + nth * own_bytes;
  }

  int64_t list_bytes() const { return SparseActs::up(4 * n_rows); }
  int64_t h_stride() const { return neurons.groups() * kGroup; }

  // Token t as column `at` of those at `acts`.
  void convert(int64_t t, char* acts, int64_t at) const {
    for (const Product* p : {&gate, &up}) {
      if (!p->column || (p == &up && up.acts == 0 && gate.column)) continue;
      convert_column(p->type.x, floats_of(x, t), x.ne[0], acts + p->acts + at * p->column);
    }
  }
  float with_bias(int64_t row, float v) const { return bias ? v + bias[neurons.neuron(row)] : v; }
  DotColumns columns(const Product& p, const char* acts) const {
    return {&x, p.column ? acts + p.acts : nullptr, p.column};
  }
};

// relu of a product that is not skipped; a NaN stays.
template <Kind kKind>
inline float relu(const Plan& p, float v) {
  return v <= (kKind == Kind::kGated ? 0.0f : p.cut) ? 0 : v;
}

// -- few tokens

// The rows of positions [share.begin, share.end) in the list of token t's active neurons.
void list_active(const Neurons& neurons, int64_t t, const gf_thread* th, uint16_t* masks,
                 int32_t* rows, gf_range* share) {
  int64_t n = 0;
  for (int64_t g = 0; g < neurons.groups(); ++g) {
    masks[g] = static_cast<uint16_t>(neurons.active(t, g));
    n += count_bits(masks[g]);
  }
  *share = gf_split(n, th);
  int64_t at = 0;
  for (int64_t g = 0; g < neurons.groups() && at < share->end; ++g) {
    const int more = count_bits(masks[g]);
    if (at + more > share->begin) {
      for_bits(masks[g], [&](int i) {
        if (at >= share->begin && at < share->end) rows[at] = static_cast<int32_t>(g * kGroup + i);
        ++at;
      });
    } else {
      at += more;
    }
  }
}

// put(i, row rows[i] . x) for i in [begin, end), in order; put may overwrite rows up to i.
template <class Put>
void dot_list(const Product& p, const void* x, const int32_t* rows, int64_t begin, int64_t end,
              Put put) {
  RowProducts<Put> products(p.type, p.w, x, put);
  for (int64_t i = begin; i < end; ++i) products.add(row_of(p.w, rows[i]), i);
  products.finish();
}

template <Kind kKind>
void hidden_of_one(const Plan& p, int64_t t, gf_thread* th) {
  char* scratch = reinterpret_cast<char*>(th->scratch);
  char* own = scratch + p.own + th->ith * p.own_bytes;
  auto* masks = reinterpret_cast<uint16_t*>(own);
  char* acts = own + SparseActs::up(2 * p.neurons.groups());
  auto* rows = reinterpret_cast<int32_t*>(scratch + p.lists + t * p.list_bytes());
  auto* h = reinterpret_cast<float*>(scratch + p.weights + t * p.list_bytes());
  gf_range share;
  list_active(p.neurons, t, th, masks, rows, &share);
  p.convert(t, acts, 0);
  const auto column = [&](const Product& w) {
    return w.column ? static_cast<const void*>(acts + w.acts) : floats_of(p.x, t);
  };
  // Both passes keep what is not 0 at the start of the share.
  int64_t end = share.begin;
  const auto keep = [&](int64_t i, float v) {
    rows[end] = rows[i];
    h[end++] = v;
  };
  if constexpr (kKind == Kind::kAlone) {
    dot_list(p.up, column(p.up), rows, share.begin, share.end, [&](int64_t i, float v) {
      v = relu<kKind>(p, p.with_bias(rows[i], v));
      if (v != 0) keep(i, v);
    });
  } else {
    dot_list(p.gate, column(p.gate), rows, share.begin, share.end, [&](int64_t i, float v) {
      if (relu<kKind>(p, v) != 0) keep(i, v);
    });
    const int64_t positive = end;
    end = share.begin;
    dot_list(p.up, column(p.up), rows, share.begin, positive, [&](int64_t i, float v) {
      v = h[i] * (p.relu_up ? relu<kKind>(p, v) : v);
      if (v != 0) keep(i, v);
    });
  }
  reinterpret_cast<Share*>(scratch)[t * th->nth + th->ith] = {share.begin, end - share.begin};
}

void add_for_one(const Plan& p, int64_t t, gf_thread* th) {
  const gf_range columns = gf_split_units(p.down.ne[0], p.down_type.unit, th);
  if (columns.begin >= columns.end) return;
  const char* scratch = reinterpret_cast<const char*>(th->scratch);
  const auto* shares = reinterpret_cast<const Share*>(scratch) + t * th->nth;
  const auto* rows = reinterpret_cast<const int32_t*>(scratch + p.lists + t * p.list_bytes());
  const auto* h = reinterpret_cast<const float*>(scratch + p.weights + t * p.list_bytes());
  RowSum sum(p.down_type, columns.begin, columns.end, floats_of(p.dst, t));
  for (int i = 0; i < th->nth; ++i) {
    for (int64_t k = shares[i].begin; k < shares[i].begin + shares[i].count; ++k) {
      sum.add(row_of(p.down, rows[k]), h[k]);
    }
  }
  sum.finish();
}

// -- more tokens

template <Kind kKind>
void hidden_of_many(const Plan& p, gf_thread* th) {
  char* acts = reinterpret_cast<char*>(th->scratch);
  auto* h = reinterpret_cast<float*>(acts + p.weights);
  auto* masks = reinterpret_cast<uint16_t*>(acts + p.own + th->ith * p.own_bytes);
  if (p.gate.column || p.up.column) {
    const gf_range mine = gf_split(p.m, th);
    for (int64_t t = mine.begin; t < mine.end; ++t) p.convert(t, acts, t);
    gf_meet(th);
  }
  for (int64_t group; (group = gf_steal(th)) < p.neurons.groups();) {
    const auto at = [&](int64_t t) { return h + t * p.h_stride() + group * kGroup; };
    for (int64_t t = 0; t < p.m; ++t) {
      masks[t] = static_cast<uint16_t>(p.neurons.active(t, group));
      std::memset(at(t), 0, sizeof(float) * kGroup);
    }
    if constexpr (kKind == Kind::kAlone) {
      dot_group(p.up.type, p.up.w, group, masks, p.m, p.columns(p.up, acts),
                [&](int64_t t, int i, float v) {
                  at(t)[i] = relu<kKind>(p, p.with_bias(group * kGroup + i, v));
                });
      continue;
    }
    dot_group(p.gate.type, p.gate.w, group, masks, p.m, p.columns(p.gate, acts),
              [&](int64_t t, int i, float v) {
                v = relu<kKind>(p, v);
                at(t)[i] = v;
                masks[t] &= static_cast<uint16_t>(~((v == 0) << i));
              });
    dot_group(p.up.type, p.up.w, group, masks, p.m, p.columns(p.up, acts),
              [&](int64_t t, int i, float v) { at(t)[i] *= p.relu_up ? relu<kKind>(p, v) : v; });
  }
}

void add_for_many(const Plan& p, gf_thread* th) {
  const gf_range columns = gf_split_units(p.down.ne[0], p.down_type.unit, th);
  if (columns.begin >= columns.end) return;
  const auto* all = reinterpret_cast<const float*>(th->scratch + p.weights);
  const auto weigh = [&](int64_t t, int64_t group, float* out) {
    std::memcpy(out, all + t * p.h_stride() + group * kGroup, sizeof(float) * kGroup);
    uint32_t mask = 0;
    for (int i = 0; i < kGroup; ++i) mask |= static_cast<uint32_t>(out[i] != 0) << i;
    return static_cast<uint16_t>(mask);
  };
  char* own = reinterpret_cast<char*>(th->scratch) + p.own + th->ith * p.own_bytes;
  ChunkSum(p.down_type, p.down, p.dst, columns.begin, columns.end, own)
      .add(p.neurons.groups(), weigh);
}

template <Kind kKind>
void hidden(const Plan& p, gf_thread* th) {
  if (!p.few) return hidden_of_many<kKind>(p, th);
  for (int64_t t = 0; t < p.m; ++t) hidden_of_one<kKind>(p, t, th);
}

// Records without memory have null addresses, so that it is the shape that tells.
bool gated(const gf_op* op) { return op->src[0].ne[1] != 0; }

}  // namespace
}  // namespace gf

GF_KERNEL_SUPPORTS(sparse_ffn) {
  for (int i = gf::gated(op) ? 0 : 1; i < 3; ++i) {
    if (!gf::sparse_weight_ok(op->src[i])) return 0;
  }
  return gf::sparse_floats_ok(op->src[3]) && gf::sparse_floats_ok(op->dst);
}
GF_KERNEL_SCRATCH(sparse_ffn) { return gf::Plan(op, n_threads).bytes; }
GF_KERNEL_INIT(sparse_ffn) {
  const gf::Plan p(op, th->nth);
  if (!gf::gated(op)) return gf::hidden<gf::Kind::kAlone>(p, th);
  if (p.cut != 0) return gf::hidden<gf::Kind::kCut>(p, th);
  gf::hidden<gf::Kind::kGated>(p, th);
}
GF_KERNEL(sparse_ffn) {
  const gf::Plan p(op, th->nth);
  if (!p.few) return gf::add_for_many(p, th);
  for (int64_t t = 0; t < p.m; ++t) gf::add_for_one(p, t, th);
}
