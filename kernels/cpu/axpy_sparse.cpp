// axpy_sparse(w_t, h, idx?, gpu_bucket?, gpu_idx?): weighted rows of active neurons, added up.
//
// Every thread has columns of its own and goes through all rows.
#include "cpu/sparse_sums.h"

namespace gf {
namespace {

struct Params {
  float threshold;
};

// The weights of a group's rows for one token, and which are not 0.
struct Weigh {
  const gf_tensor& h;
  const Neurons& neurons;

  uint16_t operator()(int64_t t, int64_t group, float* out) const {
    const float* ht = floats_of(h, t);
    uint32_t mask = 0;
    for_bits(neurons.active(t, group), [&](int i) {
      out[i] = ht[neurons.neuron(group * kGroup + i)];
      mask |= static_cast<uint32_t>(out[i] != 0) << i;
    });
    return static_cast<uint16_t>(mask);
  }
};

void run(const gf_op* op, gf_thread* th) {
  const gf_tensor &w = op->src[0], &h = op->src[1];
  const RowType& type = *find_row_type(w.type);
  const Neurons neurons(op, 2, gf_params<Params>(op).threshold, w.ne[1], h.ne[0]);
  const gf_range columns = gf_split_units(w.ne[0], type.unit, th);
  if (columns.begin >= columns.end) return;
  const Weigh weigh{h, neurons};
  if (h.ne[1] > kFewTokens) {
    char* own = reinterpret_cast<char*>(th->scratch) + th->ith * ChunkSum::scratch(h.ne[1]);
    ChunkSum(type, w, op->dst, columns.begin, columns.end, own).add(neurons.groups(), weigh);
    return;
  }
  for (int64_t t = 0; t < h.ne[1]; ++t) {
    RowSum sum(type, columns.begin, columns.end, floats_of(op->dst, t));
    for (int64_t group = 0; group < neurons.groups(); ++group) {
      float weights[kGroup];
      for_bits(weigh(t, group, weights),
               [&](int i) { sum.add(row_of(w, group * kGroup + i), weights[i]); });
    }
    sum.finish();
  }
}

}  // namespace
}  // namespace gf

GF_KERNEL_SUPPORTS(axpy_sparse) {
  return gf::sparse_weight_ok(op->src[0]) && gf::sparse_floats_ok(op->src[1]) &&
         gf::sparse_floats_ok(op->dst);
}
GF_KERNEL_SCRATCH(axpy_sparse) {
  const int64_t m = op->src[1].ne[1];
  return m > gf::kFewTokens ? n_threads * gf::ChunkSum::scratch(m) : 0;
}
GF_KERNEL(axpy_sparse) { gf::run(op, th); }
