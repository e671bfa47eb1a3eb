// sum, mean, max, argmax along a dimension. The innermost one is reduced on vectors along the row;
// any other by walking the dimension with the lanes on neighbouring results.
#include "cpu/elementwise.h"
#include "cpu/top_k.h"

namespace {

struct reduce_params {
  int32_t axis;  // -1 is the innermost
};

int reduced_dim(const gf_op* op) { return -1 - gf_params<reduce_params>(op).axis; }

constexpr float kLowest = -__builtin_huge_valf();

struct sum_of {
  static vf start() { return vf_zero(); }
  static vf join(vf a, vf b) { return a + b; }
  static float row(const float* x, int64_t n) { return vf_row_sum(x, n); }
  static float join(float a, float b) { return a + b; }
};

struct max_of {  // a NaN counts as -inf: vf_max gives its second operand where the first is one
  static vf start() { return vf_set(kLowest); }
  static vf join(vf acc, vf x) { return vf_max(x, acc); }
  static float row(const float* x, int64_t n) { return vf_row_max(x, n); }
  static float join(float a, float b) { return a > b ? a : b; }
};

// Results are multiplied by `factor` at the end.
template <typename R>
void reduce(const gf_op* op, gf_thread* th, float factor) {
  const gf_tensor& x = op->src[0];
  const gf_tensor& y = op->dst;
  const int d = reduced_dim(op);
  if (d == 0) {
    const gf_range rows = gf_split(gf_nrows(y), th);
    for (int64_t k = rows.begin; k < rows.end; ++k) {
      const char* const from = gf_row_ptr(x, k);
      float buffer[GF_RUN];
      float total = R::row(gf_read_run(x, from, 0, x.ne[0] < GF_RUN ? x.ne[0] : GF_RUN, buffer),
                           x.ne[0] < GF_RUN ? x.ne[0] : GF_RUN);
      for (int64_t i0 = GF_RUN; i0 < x.ne[0]; i0 += GF_RUN) {
        const int64_t n = x.ne[0] - i0 < GF_RUN ? x.ne[0] - i0 : GF_RUN;
        total = R::join(total, R::row(gf_read_run(x, from, i0, n, buffer), n));
      }
      *reinterpret_cast<float*>(gf_row_ptr(y, k)) = total * factor;
    }
    return;
  }
  const vf scale = vf_set(factor);
  gf_for_runs(y, th, [&](gf_row r, int64_t i0, int64_t n) {
    float acc[GF_RUN], buffer[GF_RUN];
    gf_map_run(acc, acc, n, [](vf) { return R::start(); });
    const char* from = gf_row_ptr(x, r);
    for (int64_t j = 0; j < x.ne[d]; ++j, from += x.nb[d]) {
      const float* const v = gf_read_run(x, from, i0, n, buffer);
      for (int64_t i = 0; i < n; i += VL) {
        const vf joined = R::join(vf_load_to(acc + i, n - i), vf_load_to(v + i, n - i));
        vf_store_to(acc + i, joined, n - i);
      }
    }
    gf_map_run(acc, acc, n, [scale](vf v) { return v * scale; });
    gf_write_run(y, gf_row_ptr(y, r), i0, n, acc);
  });
}

}  // namespace

GF_KERNEL(sum) { reduce<sum_of>(op, th, 1.0f); }
GF_KERNEL(mean) {
  reduce<sum_of>(op, th, 1.0f / static_cast<float>(op->src[0].ne[reduced_dim(op)]));
}
GF_KERNEL(max) { reduce<max_of>(op, th, 1.0f); }

GF_KERNEL(argmax) {
  const gf_tensor& x = op->src[0];
  const gf_tensor& y = op->dst;
  const int d = reduced_dim(op);
  const gf_range share = gf_split(gf_nelements(y), th);
  for (int64_t k = share.begin; k < share.end; ++k) {
    const gf_row r = gf_row_index(y, k / y.ne[0]);
    const int64_t i = k % y.ne[0];
    const char* p = gf_row_ptr(x, r) + i * x.nb[0];
    if (d == 0 && gf_rows_dense(x)) {
      *reinterpret_cast<int32_t*>(gf_row_ptr(y, r)) =
          static_cast<int32_t>(gf_argmax(reinterpret_cast<const float*>(p), x.ne[0]));
      continue;
    }
    float best = kLowest;
    int32_t where = 0;
    for (int32_t j = 0; j < x.ne[d]; ++j, p += x.nb[d]) {
      const float v = *reinterpret_cast<const float*>(p);
      if (v > best) {
        best = v;
        where = j;
      }
    }
    *reinterpret_cast<int32_t*>(gf_row_ptr(y, r) + i * y.nb[0]) = where;
  }
}
