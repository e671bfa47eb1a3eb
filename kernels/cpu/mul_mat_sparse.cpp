// mul_mat_sparse(w, x, idx?, gpu_bucket?, gpu_idx?): products with the rows of active neurons.
//
// Threads take groups of sixteen rows and the neurons from the row before on, which they set to 0.
#include "cpu/sparse_products.h"

namespace gf {
namespace {

struct Params {
  float threshold;
  int32_t n_ff;
};

struct Plan {
  const gf_tensor &w, &x, &dst;
  const RowType& type;
  Neurons neurons;
  int64_t m;
  int64_t column;  // bytes of a converted column, 0: x as it is
  bool own;        // each thread converts the only column for itself

  explicit Plan(const gf_op* op)
      : w(op->src[0]),
        x(op->src[1]),
        dst(op->dst),
        type(*find_row_type(w.type)),
        neurons(op, 2, gf_params<Params>(op).threshold, w.ne[1], dst.ne[0]),
        m(x.ne[1]),
        column(column_bytes(type.x, w.ne[0])),
        own(m == 1) {}

  int64_t acts() const { return m * column; }  // bytes
  int64_t masks() const { return SparseActs::up(2 * m); }
  int64_t own_offset(int ith) const {
    return own ? ith * (acts() + masks()) : acts() + ith * masks();
  }
  int64_t scratch(int nth) const { return own ? nth * (acts() + masks()) : acts() + nth * masks(); }

  void convert(gf_range tokens, char* acts) const {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      convert_column(type.x, floats_of(x, t), w.ne[0], acts + t * column);
    }
  }
};

void run(const Plan& p, gf_thread* th) {
  char* own = reinterpret_cast<char*>(th->scratch) + p.own_offset(th->ith);
  char* acts = p.own ? own : reinterpret_cast<char*>(th->scratch);
  auto* masks = reinterpret_cast<uint16_t*>(p.own ? own + p.acts() : own);
  if (p.own && p.column) p.convert({0, 1}, acts);
  const DotColumns x{&p.x, p.column ? acts : nullptr, p.column};
  const Neurons& neurons = p.neurons;
  const auto clamped = [&](int64_t j) { return j < 0 ? 0 : j < neurons.n_ff ? j : neurons.n_ff; };
  const auto put = [&](int64_t j, float v) { floats_of(p.dst, 0)[j] = v; };
  RowProducts<decltype(put)> alone(p.type, p.w, p.m == 1 ? x[0] : nullptr, put);
  for (int64_t group; (group = gf_steal(th)) < neurons.groups();) {
    const int64_t r0 = group * kGroup, r1 = r0 + kGroup;
    const int64_t from = r0 == 0 ? 0 : clamped(neurons.neuron(r0 - 1) + 1);
    const int64_t to = r1 >= neurons.n_rows ? neurons.n_ff : clamped(neurons.neuron(r1 - 1) + 1);
    for (int64_t t = 0; t < p.m; ++t) {
      if (to > from) std::memset(floats_of(p.dst, t) + from, 0, sizeof(float) * (to - from));
      masks[t] = static_cast<uint16_t>(neurons.active(t, group));
    }
    if (p.m == 1) {
      for_bits(masks[0], [&](int i) { alone.add(row_of(p.w, r0 + i), neurons.neuron(r0 + i)); });
      continue;
    }
    dot_group(p.type, p.w, group, masks, p.m, x,
              [&](int64_t t, int i, float v) { floats_of(p.dst, t)[neurons.neuron(r0 + i)] = v; });
  }
  alone.finish();
}

}  // namespace
}  // namespace gf

GF_KERNEL_SUPPORTS(mul_mat_sparse) {
  return gf::sparse_weight_ok(op->src[0]) && gf::sparse_floats_ok(op->src[1]) &&
         gf::sparse_floats_ok(op->dst);
}
GF_KERNEL_SCRATCH(mul_mat_sparse) { return gf::Plan(op).scratch(n_threads); }
GF_EXPORT int32_t gf_needs_init_mul_mat_sparse(const gf_op* op) {
  const gf::Plan p(op);
  return p.column && !p.own;
}
GF_KERNEL_INIT(mul_mat_sparse) {
  const gf::Plan p(op);
  p.convert(gf_split(p.m, th), reinterpret_cast<char*>(th->scratch));
}
GF_KERNEL(mul_mat_sparse) { gf::run(gf::Plan(op), th); }
