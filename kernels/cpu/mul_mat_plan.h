// One mul_mat op laid out for its threads: shapes, the way each weight is read, scratch, work
// items.
#pragma once

#include "cpu/mul_mat_float.h"
#include "cpu/mul_mat_types.h"
#include "quants/traits.h"

namespace gf {

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// How one weight is read.
struct Weight {
  enum Path {
    kPacked,  // interleaved rows, quantized activations
    kFloat,   // rows of f32, f16 or bf16
    kQuant,   // quantized rows as in the file: sixteen at a time are turned into f32
  };
  const gf_tensor* t = nullptr;
  Path path = kQuant;
  const PackedType* packed = nullptr;
  FloatKernel kernel = nullptr;
  int64_t acts = 0;  // scratch offset of the activations it multiplies (kPacked)
};

inline FloatKernel float_kernel(int type) {
  if (type == GF_F32) return &float_tile<RowF32>;
  if (type == GF_F16) return &float_tile<RowF16>;
  if (type == GF_BF16) return &float_tile<RowBF16>;
  return nullptr;
}

inline Weight read_weight(const gf_tensor& t) {
  Weight w;
  w.t = &t;
  if (t.flags & GF_PACKED) {
    w.path = Weight::kPacked;
    w.packed = find_packed_type(t.type);
  } else if (float_kernel(t.type)) {
    w.path = Weight::kFloat;
    w.kernel = float_kernel(t.type);
  } else {
    w.kernel = float_kernel(GF_F32);
  }
  return w;
}

// w [b3, b2, n, k] times the columns of x [c3, c2, m, k]: for each of the weight's matrices all the
// columns it multiplies, numbered 0 .. n_cols - 1.
struct MulMatPlan {
  const gf_op* op;
  const gf_tensor *x, *dst;
  Weight w[2];  // two for swiglu: gate, up
  int n_weights;
  int64_t n, k, n_matrices, r2, r3, n_cols;
  Tiling tiles;
  int64_t acts_bytes = 0;      // all quantized copies of x
  int64_t rows_f32_bytes = 0;  // a thread
  bool own_acts;               // each thread quantizes x for itself: op->init is NULL

  MulMatPlan(const gf_op* o, int n_w, const gf_tensor* x_)
      : op(o),
        x(x_),
        dst(&o->dst),
        n_weights(n_w),
        n(o->src[0].ne[1]),
        k(o->src[0].ne[0]),
        n_matrices(o->src[0].ne[2] * o->src[0].ne[3]),
        r2(x_->ne[2] / o->src[0].ne[2]),
        r3(x_->ne[3] / o->src[0].ne[3]),
        n_cols(x_->ne[1] * r2 * r3),
        tiles(n_cols),
        own_acts(o->init == nullptr) {
    bool any_quant = false;
    for (int i = 0; i < n_weights; ++i) {
      w[i] = read_weight(o->src[i]);
      any_quant |= w[i].path == Weight::kQuant;
      if (w[i].path != Weight::kPacked) continue;
      if (i > 0 && w[0].path == Weight::kPacked && w[0].packed->sums == w[i].packed->sums) {
        w[i].acts = w[0].acts;
      } else {
        w[i].acts = acts_bytes;
        acts_bytes += round_up(tiles.padded_columns() * (k / 32) * kActBlockBytes, 64);
      }
    }
    if (any_quant) rows_f32_bytes = round_up(kRows * k * 4, 64) * n_weights;
  }

  // Scratch: quantized x, once or once a thread, then each thread's converted rows.
  int64_t rows_f32(int n_threads) const { return acts_bytes * (own_acts ? n_threads : 1); }
  int64_t scratch(int n_threads) const { return rows_f32(n_threads) + rows_f32_bytes * n_threads; }

  // Where column c of weight matrix b is in a tensor of columns; t may repeat along any dimension.
  char* column(const gf_tensor& t, int64_t b, int64_t c) const {
    if (n_matrices == 1 && r2 == 1 && r3 == 1) return gf_row_ptr_mod(t, {c, 0, 0});
    const int64_t m = x->ne[1], j = c / m;
    const int64_t b2 = b % op->src[0].ne[2], b3 = b / op->src[0].ne[2];
    return gf_row_ptr_mod(t, {c % m, b2 * r2 + j % r2, b3 * r3 + j / r2});
  }
};

}  // namespace gf
