// What the products with experts share: which rows belong to a pair (row, id), and eight
// neighbouring weights of a row of any type.
#pragma once

#include "cuda/eight.cuh"
#include "cuda/gated.cuh"

struct IdArgs {
  gf_tensor dst, w, x, ids, bias;  // bias may be null
  i32 own_rows;                    // x has a row for each id
};

__device__ __forceinline__ i32 id_of(const IdArgs& a, i64 pair) {
  const i64 used = a.dst.ne[1];
  return reinterpret_cast<const i32*>(a.ids.row(pair / used, 0, 0))[pair % used];
}
__device__ __forceinline__ const char* x_of(const IdArgs& a, i64 pair) {
  const i64 used = a.dst.ne[1], row = pair / used;
  return a.own_rows ? a.x.row(pair % used, row, 0) : a.x.row(row, 0, 0);
}
__device__ __forceinline__ float* result_of(const IdArgs& a, i64 pair) {
  const i64 used = a.dst.ne[1];
  return reinterpret_cast<float*>(a.dst.row(pair % used, pair / used, 0));
}
__device__ __forceinline__ float bias_of(const gf_tensor& bias, i32 expert, i64 row) {
  return bias.data ? reinterpret_cast<const float*>(bias.row(expert, 0, 0))[row] : 0.0f;
}

struct IdGluArgs {
  IdArgs id;              // w and bias are the gate's
  gf_tensor up, up_bias;  // of the shapes of the gate's
  i32 act;                // an index of ACTS in engine/ops/mul_mat_id_glu.py
  float alpha, limit;     // of gated_clamped
};

template <class Act>
__device__ __forceinline__ Act act_of(const IdGluArgs&) {
  return Act();
}
template <>
__device__ __forceinline__ gated_clamped act_of<gated_clamped>(const IdGluArgs& a) {
  gated_clamped act;
  act.alpha = a.alpha;
  act.limit = a.limit;
  return act;
}

// Of rows whose blocks of eight plain elements lie at multiples of their size.
template <class W>
struct Expert {
  static constexpr bool WIDE = is_wide<W>();  // bytes of 128 and more
  static constexpr int PIECES = W::QK / 8;

  static __device__ __forceinline__ float dot(const char* row, i64 p, const float* x) {
    const Eight e = eight(reinterpret_cast<const W*>(row) + p / PIECES, (int)(p % PIECES));
    const float4 a = *reinterpret_cast<const float4*>(x);
    const float4 b = *reinterpret_cast<const float4*>(x + 4);
    float sum = byte_as_float<0>(e.lo) * a.x;
    sum = fmaf(byte_as_float<1>(e.lo), a.y, sum);
    sum = fmaf(byte_as_float<2>(e.lo), a.z, sum);
    sum = fmaf(byte_as_float<3>(e.lo), a.w, sum);
    sum = fmaf(byte_as_float<0>(e.hi), b.x, sum);
    sum = fmaf(byte_as_float<1>(e.hi), b.y, sum);
    sum = fmaf(byte_as_float<2>(e.hi), b.z, sum);
    sum = fmaf(byte_as_float<3>(e.hi), b.w, sum);
    const float all = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
    return fmaf(e.scale, sum, e.offset * all);
  }
  template <class T>
  static __device__ __forceinline__ uint4 as(const char* row, i64 p) {
    return rounded<T, WIDE>(eight(reinterpret_cast<const W*>(row) + p / PIECES, (int)(p % PIECES)));
  }
};

template <class W>
struct PlainExpert {
  static __device__ __forceinline__ float dot(const char* row, i64 p, const float* x) {
    const W* const w = reinterpret_cast<const W*>(row) + 8 * p;
    const Pack<W, 4> lo = load_pack(reinterpret_cast<const Pack<W, 4>*>(w));
    const Pack<W, 4> hi = load_pack(reinterpret_cast<const Pack<W, 4>*>(w + 4));
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = fmaf(element_f32(lo, j), x[j], sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = fmaf(element_f32(hi, j), x[4 + j], sum);
    return sum;
  }
  // T is W.
  template <class T>
  static __device__ __forceinline__ uint4 as(const char* row, i64 p) {
    return *reinterpret_cast<const uint4*>(reinterpret_cast<const W*>(row) + 8 * p);
  }
};
template <>
struct Expert<f32> : PlainExpert<f32> {};
template <>
struct Expert<f16> : PlainExpert<f16> {};
template <>
struct Expert<bf16> : PlainExpert<bf16> {};
